//! HTTP paths of Mooncake, in its formats, for engines and tools that were made for it.

mod admin;
mod answers;
mod forward;
mod keys;
mod metadata;
mod metrics;
mod quotas;
mod segments;
mod state;
mod summary;
mod tenant;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::api::Api;
pub use metrics::mooncake_metrics_reference;
pub(crate) use metrics::renamed;
pub(crate) use summary::log_summaries;

/// Returns the paths of Mooncake's master. Those about the pool are answered by the leader, also through other masters;
/// those about a master by itself.
pub(crate) fn routes(api: Arc<Api>) -> Router {
    Router::new()
        .route("/get_all_segments", get(segments::get_all_segments))
        .route("/get_segments_detail", get(segments::get_segments_detail))
        .route("/query_segment", get(segments::query_segment))
        .route("/get_all_keys", get(keys::get_all_keys))
        .route("/query_key", get(keys::query_key))
        .route("/batch_query_keys", get(keys::batch_query_keys))
        .route("/health", get(state::health))
        .route("/role", get(state::role))
        .route("/leader", get(state::leader))
        .route("/ha_status", get(state::ha_status))
        .route("/metrics/summary", get(summary::metrics_summary))
        .route("/kv_events/status", get(admin::kv_events_status))
        .route("/api/v1/segments/status", get(segments::segment_status))
        .route(
            "/api/v1/tenant_quotas",
            get(quotas::tenant_quotas).put(quotas::tenant_quotas).delete(quotas::tenant_quotas),
        )
        .route("/api/v1/remove_all", post(admin::remove_all))
        .route("/api/v1/drain_jobs", post(admin::create_drain_job))
        .route("/api/v1/drain_jobs/query", get(admin::find_drain_job))
        .route("/api/v1/drain_jobs/cancel", post(admin::find_drain_job))
        .with_state(api.clone())
        .merge(metadata::routes(api))
}

/// Returns the routes of the port that stands for Mooncake's metadata server.
pub(crate) fn metadata_port(api: Arc<Api>) -> Router {
    // As Mooncake's metadata server answers it: the process is up.
    metadata::routes(api).route("/health", get(|| async { "OK" }))
}
