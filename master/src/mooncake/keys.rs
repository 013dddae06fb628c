use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use mc_index::KeyPage;
use mc_types::{Code, MAX_ITEMS};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

use super::answers::{TEXT, bad_request, failure, or_unavailable};
use super::forward::{NEXT, PassableRequest, on_leader};
use crate::api::{Api, ReplySize};
use crate::leader::{Described, Refusal, Services};

/// Tenant of requests that name none.
const DEFAULT_TENANT: &str = "";
/// Most keys on a page, and the number of keys on a page that names none.
const PAGE_KEYS: usize = 10_000;
/// Bytes of keys after which a page ends.
const PAGE_BYTES: usize = 8 << 20;
/// Look-ups in the index after which a page ends. Each is a millisecond or so of its lock, and of the runtime's thread.
const PAGE_LOOKS: usize = 8;

#[derive(Debug, Deserialize)]
pub(super) struct PageOf {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Key {
    #[serde(default)]
    key: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Keys {
    #[serde(default)]
    keys: String,
}

/// A replica as Mooncake shows it.
#[derive(Serialize)]
struct Buffer {
    size_: u64,
    /// Offset in the store's segment.
    buffer_address_: u64,
    protocol_: String,
    /// Name of the store, as `get_hostname` of its process returns it.
    transport_endpoint_: String,
}

#[derive(Serialize)]
struct Replicas {
    success: bool,
    data: Vec<Buffer>,
}

#[derive(Serialize)]
struct Results {
    success: bool,
    data: BTreeMap<String, KeyResult>,
}

/// Result of one key. All replicas are in memory, so the other lists are always null.
#[derive(Serialize)]
struct KeyResult {
    ok: bool,
    error: Option<&'static str>,
    values: Option<Vec<Buffer>>,
    disk_values: Option<()>,
    local_disk_values: Option<()>,
    nof_values: Option<()>,
}

impl KeyResult {
    fn new(found: Result<Described, Code>) -> Self {
        let (error, values) = match found {
            Ok(described) => (None, Some(buffers(described))),
            Err(code) => (Some(code.name()), None),
        };
        Self {
            ok: values.is_some(),
            error,
            values,
            disk_values: None,
            local_disk_values: None,
            nof_values: None,
        }
    }
}

fn buffers(described: Described) -> Vec<Buffer> {
    let size = described.size;
    let buffer = |replica: crate::leader::DescribedReplica| Buffer {
        size_: size,
        buffer_address_: replica.offset,
        protocol_: replica.transport,
        transport_endpoint_: if replica.name.is_empty() { replica.address } else { replica.name },
    };
    described.replicas.into_iter().map(buffer).collect()
}

/// `/get_all_keys?from=POSITION&limit=N`: keys, one a line, in no order.
pub(super) async fn get_all_keys(
    State(api): State<Arc<Api>>,
    page: Result<Query<PageOf>, QueryRejection>,
    asked: PassableRequest,
) -> Response {
    let PageOf { from, limit } = match page {
        Ok(Query(page)) => page,
        Err(rejection) => return bad_request(rejection.body_text()),
    };
    let limit = limit.unwrap_or(PAGE_KEYS);
    if !(1..=PAGE_KEYS).contains(&limit) {
        return bad_request(format!("limit={limit} is out of bounds: 1 to {PAGE_KEYS}"));
    }
    or_unavailable(
        on_leader(&api, &asked, ReplySize::Large, |services| page_of_keys(services, from, limit)).await,
    )
}

async fn page_of_keys(services: Arc<Services>, from: u64, limit: usize) -> Result<Response, Refusal> {
    let objects = &services.objects;
    let look = |from, limit| objects.list_keys(DEFAULT_TENANT, b"", from, limit);
    let (lines, next) = page_of(look, from, limit).await?;
    Ok(match next {
        Some(next) => (TEXT, [(NEXT, next.to_string())], lines).into_response(),
        None => (TEXT, lines).into_response(),
    })
}

/// Collects the keys of several look-ups, one a line. Returns also the position of the next page, if there is one.
async fn page_of<F>(
    look: impl Fn(u64, usize) -> F,
    mut from: u64,
    limit: usize,
) -> Result<(Vec<u8>, Option<u64>), Refusal>
where
    F: Future<Output = Result<KeyPage, Refusal>>,
{
    let (mut lines, mut listed) = (Vec::new(), 0);
    for _ in 0..PAGE_LOOKS {
        let page = look(from, limit - listed).await?;
        listed += page.objects.len();
        for object in page.objects {
            lines.extend(object.key);
            lines.push(b'\n');
        }
        let Some(next) = page.next else { return Ok((lines, None)) };
        from = next;
        if listed >= limit || lines.len() >= PAGE_BYTES {
            break;
        }
        // A look-up never waits, and all of them in one go would hold up other calls on this thread.
        yield_now().await;
    }
    Ok((lines, Some(from)))
}

/// `/query_key?key=KEY`: the replicas of an object. It takes no lease, and is no use for the eviction order.
pub(super) async fn query_key(
    State(api): State<Arc<Api>>,
    Query(Key { key }): Query<Key>,
    asked: PassableRequest,
) -> Response {
    if key.is_empty() {
        let why = "no key is given: ask for /query_key?key=KEY";
        return failure(StatusCode::NOT_FOUND, Code::ObjectNotFound as i32, why);
    }
    let keys = [Bytes::from(key)];
    let replicas = async |services: Arc<Services>| {
        let found = services.objects.describe(DEFAULT_TENANT, &keys).await?.pop();
        Ok(match found.unwrap_or(Err(Code::ObjectNotFound)) {
            Ok(described) => Json(Replicas { success: true, data: buffers(described) }).into_response(),
            Err(code) => failure(StatusCode::NOT_FOUND, code as i32, code.name()),
        })
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Small, replicas).await)
}

/// `/batch_query_keys?keys=KEY,KEY`: the replicas of several objects.
pub(super) async fn batch_query_keys(
    State(api): State<Arc<Api>>,
    Query(Keys { keys: list }): Query<Keys>,
    asked: PassableRequest,
) -> Response {
    if list.is_empty() {
        return bad_request("No keys provided. Use ?keys=key1,key2,...");
    }
    let names: Vec<&str> = list.split(',').collect();
    if names.len() > MAX_ITEMS {
        return bad_request(format!("{} keys: a request can have {MAX_ITEMS}", names.len()));
    }
    let keys: Vec<Bytes> = names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    let results = async |services: Arc<Services>| {
        let found = services.objects.describe(DEFAULT_TENANT, &keys).await?;
        let results = names.iter().map(|name| (*name).to_owned()).zip(found.into_iter().map(KeyResult::new));
        Ok(Json(Results { success: true, data: results.collect() }).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Large, results).await)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use futures::poll;
    use mc_index::ListedObject;

    use super::*;

    #[tokio::test]
    async fn other_calls_run_between_the_look_ups_of_a_page() {
        let looks = Cell::new(0);
        let look = |from: u64, _| {
            looks.set(looks.get() + 1);
            let object =
                ListedObject { key: b"key".to_vec(), size: 1, version: mc_types::PutId(1), after: from + 1 };
            ready(Ok(KeyPage { objects: vec![object], next: Some(from + 1) }))
        };
        let mut page = std::pin::pin!(page_of(look, 0, PAGE_KEYS));
        for looked in 1..=PAGE_LOOKS {
            assert!(poll!(&mut page).is_pending());
            assert_eq!(looks.get(), looked, "one look-up, then the turn of others");
        }
        let (lines, next) = page.await.unwrap();
        assert_eq!((lines.len(), next), (4 * PAGE_LOOKS, Some(PAGE_LOOKS as u64)));
    }
}
