//! HTTP paths of Mooncake, in its formats, for engines and tools that were made for it.

mod forward;
mod metadata;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::api::Api;
pub(crate) use metadata::routes as metadata_routes;

/// Returns the routes of the port that stands for Mooncake's metadata server.
pub(crate) fn metadata_port(api: Arc<Api>) -> Router {
    // As Mooncake's metadata server answers it: the process is up.
    metadata_routes(api).route("/health", get(|| async { "OK" }))
}
