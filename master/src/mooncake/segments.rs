use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use mc_index::{SegmentView, State as Index, StoreView};
use mc_types::Code;
use serde::{Deserialize, Serialize};

use super::answers::{TEXT, failure, invalid, or_unavailable};
use super::forward::{PassableRequest, on_leader};
use crate::api::{Api, ReplySize};
use crate::leader::{Leading, Refusal, Services};

/// A mounted segment as Mooncake shows it.
#[derive(Debug, Serialize)]
struct Segment {
    segment_name: String,
    segment_id: String,
    client_id: String,
    base_address: &'static str,
    size_bytes: u64,
    size_human: String,
    te_endpoint: String,
    protocol: String,
    status: &'static str,
    allocator_used_bytes: u64,
    allocator_capacity_bytes: u64,
    allocator_usage_percent: f64,
}

/// Status of a segment that can be read.
const OK: &str = "OK";
/// Status of a segment whose store is silent. Mooncake has no such status.
const SUSPECT: &str = "SUSPECT";

impl Segment {
    fn new(store: &StoreView<'_>, segment: &SegmentView, suspect: bool) -> Self {
        let SegmentView { number, capacity, used, .. } = *segment;
        let endpoint = store.endpoints.first();
        Self {
            segment_name: store.name.to_owned(),
            segment_id: uuid(store.store.0, u64::from(number) + 1),
            client_id: uuid(store.store.0, 0),
            // Places are offsets into a segment.
            base_address: "0x0",
            size_bytes: capacity,
            size_human: format!("{} GiB", (capacity as f64 / f64::from(1 << 30) * 1e4).round() / 1e4),
            te_endpoint: endpoint.map(|endpoint| endpoint.address.clone()).unwrap_or_default(),
            protocol: endpoint.map(|endpoint| endpoint.transport.clone()).unwrap_or_default(),
            status: if suspect { SUSPECT } else { OK },
            allocator_used_bytes: used,
            allocator_capacity_bytes: capacity,
            allocator_usage_percent: if capacity == 0 { 0.0 } else { used as f64 / capacity as f64 * 100.0 },
        }
    }
}

/// Writes two numbers in the form of a UUID.
fn uuid(high: u64, low: u64) -> String {
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[derive(Serialize)]
struct Details {
    total_segments: usize,
    segments: Vec<Segment>,
}

fn segments_in(index: &Index, leading: &Leading) -> Vec<Segment> {
    let of_store = |store: StoreView<'_>| {
        let suspect = leading.is_suspect(store.store);
        let segments = index.store_segments(store.store);
        segments.map(|segment| Segment::new(&store, &segment, suspect)).collect::<Vec<_>>()
    };
    index.stores().flat_map(of_store).collect()
}

async fn mounted(services: Arc<Services>) -> Result<Vec<Segment>, Refusal> {
    let leading = services.coordinator.lead().await?;
    Ok(services.coordinator.read(|applied| segments_in(&applied.state, &leading)))
}

/// `/get_all_segments`: the name of each segment that can be read, one a line.
pub(super) async fn get_all_segments(State(api): State<Arc<Api>>, asked: PassableRequest) -> Response {
    let names = async |services| {
        let segments = mounted(services).await?;
        let well = segments.iter().filter(|segment| segment.status == OK);
        let lines: String = well.map(|segment| format!("{}\n", segment.segment_name)).collect();
        Ok((TEXT, lines).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Large, names).await)
}

/// Serves `/get_segments_detail`.
pub(super) async fn get_segments_detail(State(api): State<Arc<Api>>, asked: PassableRequest) -> Response {
    let details = async |services| {
        let segments = mounted(services).await?;
        Ok(Json(Details { total_segments: segments.len(), segments }).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Large, details).await)
}

#[derive(Debug, Deserialize)]
pub(super) struct Name {
    #[serde(default)]
    segment: String,
}

/// `/query_segment?segment=NAME`: used and lent bytes of the stores with this name.
pub(super) async fn query_segment(
    State(api): State<Arc<Api>>,
    Query(Name { segment: name }): Query<Name>,
    asked: PassableRequest,
) -> Response {
    let usage = async |services| {
        let segments = mounted(services).await?;
        let named = || segments.iter().filter(|segment| segment.segment_name == name);
        if named().next().is_none() {
            let why = format!("Failed to query segment: there is no segment {name:?}");
            return Ok((StatusCode::INTERNAL_SERVER_ERROR, TEXT, why).into_response());
        }
        let sum = |of: fn(&Segment) -> u64| named().map(of).fold(0, u64::saturating_add);
        let (used, capacity) =
            (sum(|segment| segment.allocator_used_bytes), sum(|segment| segment.size_bytes));
        // With the blank, as Mooncake writes it.
        let lines = format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n");
        Ok((TEXT, lines).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Small, usage).await)
}

#[derive(Serialize)]
struct Status {
    success: bool,
    segment: String,
    status: i32,
    status_name: &'static str,
    error_code: i32,
    error_message: &'static str,
}

/// Serves `/api/v1/segments/status?segment=NAME`.
pub(super) async fn segment_status(
    State(api): State<Arc<Api>>,
    Query(Name { segment: name }): Query<Name>,
    asked: PassableRequest,
) -> Response {
    if name.is_empty() {
        return invalid("Missing segment query parameter");
    }
    let status = async |services| {
        let segments = mounted(services).await?;
        let mut named = segments.iter().filter(|segment| segment.segment_name == name);
        let Some(first) = named.next() else {
            let code = Code::SegmentNotFound;
            return Ok(failure(StatusCode::NOT_FOUND, code as i32, code.name()));
        };
        let status_name = if named.any(|segment| segment.status == OK) { OK } else { first.status };
        // 0 is Mooncake's UNDEFINED.
        let status = i32::from(status_name == OK);
        let segment = name.clone();
        let found = Status { success: true, segment, status, status_name, error_code: 0, error_message: "" };
        Ok(Json(found).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Small, status).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_of_a_uuid() {
        assert_eq!(uuid(0x0123_4567_89ab_cdef, 2), "01234567-89ab-cdef-0000-000000000002");
    }
}
