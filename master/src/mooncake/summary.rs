use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::answers::TEXT;
use super::state::{LeaderView, RuntimeState};
use crate::api::Api;

/// Pool of a master in a few numbers.
struct Pool {
    used: u64,
    capacity: u64,
    keys: u64,
    stores: usize,
}

/// Returns the state of a master in one line, as far as Mooncake's summary has a meaning here.
fn summary(api: &Api) -> String {
    let status = api.own_status();
    let pool = Pool {
        used: status.stores.iter().map(|store| store.used_bytes).fold(0, u64::saturating_add),
        capacity: status.stores.iter().map(|store| store.capacity_bytes).fold(0, u64::saturating_add),
        keys: status.keys,
        stores: status.stores.len(),
    };
    line(RuntimeState::of(api), &pool, &LeaderView::of(api))
}

fn line(state: RuntimeState, pool: &Pool, leader: &LeaderView) -> String {
    let Pool { used, capacity, keys, stores } = *pool;
    let mut line = format!(
        "role={}, state={}, service_ready={}, master={{Mem Storage: {} / {}",
        state.role(),
        state.name(),
        state.is_serving(),
        size(used),
        size(capacity),
    );
    // Writing to a string does not fail.
    if capacity > 0 {
        let _ = write!(line, " ({:.1}%)", used as f64 / capacity as f64 * 100.0);
    }
    let _ = write!(line, " | Keys: {keys} | Clients: {stores}}}");
    if let LeaderView { leader_address: Some(address), view_version: Some(version) } = leader {
        let _ = write!(line, ", leader={address}, view_version={version}");
    }
    line
}

/// Writes a size as Mooncake does.
fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Serves `/metrics/summary`: a summary of the metrics, as text.
pub(super) async fn metrics_summary(State(api): State<Arc<Api>>) -> Response {
    (TEXT, summary(&api)).into_response()
}

/// Logs the summary as Mooncake's master does, at once and then every so often, until `stop`.
pub(crate) async fn log_summaries(api: Arc<Api>, every: Duration, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(every);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        tracing::info!("Master Admin Metrics: {}", summary(&api));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_form_that_mooncake_prints() {
        let pool = Pool { used: 27_871_150, capacity: 100 << 30, keys: 487, stores: 2 };
        assert_eq!(
            line(RuntimeState::Serving, &pool, &LeaderView::default()),
            "role=leader, state=serving, service_ready=true, master={Mem Storage: 26.58 MB / 100.00 GB (0.0%) | \
             Keys: 487 | Clients: 2}"
        );
        let empty = Pool { used: 0, capacity: 0, keys: 0, stores: 0 };
        let leader = LeaderView { leader_address: Some("a:50051".into()), view_version: Some(7) };
        assert_eq!(
            line(RuntimeState::Standby, &empty, &leader),
            "role=standby, state=standby, service_ready=false, master={Mem Storage: 0 B / 0 B | Keys: 0 | Clients: 0}, \
             leader=a:50051, view_version=7"
        );
    }
}
