//! Health, metrics and status.

use std::sync::Arc;

use axum::Router;
use mc_process::http::standard_routes;
use serde_json::json;

use crate::state::StoreState;

pub(crate) fn routes(state: Arc<StoreState>) -> Router {
    let (ready, metrics) = (state.clone(), state.clone());
    standard_routes(
        move || ready.ready(),
        move || metrics.render_metrics(),
        move || std::future::ready(self::status(&state)),
    )
}

fn status(state: &StoreState) -> serde_json::Value {
    let link = state.serving().map(|serving| &serving.link);
    let age = link.and_then(|link| link.age());
    let link = link.map(|link| link.get());
    let leader = link.as_ref().and_then(|link| link.leader.as_ref());
    let why_not_ready = state.ready().err();
    json!({
        "id": state.store.to_string(),
        "name": state.name,
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "ready": why_not_ready.is_none(),
        "why_not_ready": why_not_ready,
        "capacity_bytes": state.capacity.0,
        "allocated_bytes": state.allocated().0,
        "cluster": link.as_ref().and_then(|link| link.cluster).map(|id| id.to_string()),
        "epoch": link.as_ref().map(|link| link.epoch.to_string()),
        "leader": leader.map(|leader| &leader.address),
        "term": leader.map(|leader| leader.term),
        "heartbeat_age_ms": age.map(|age| age.as_millis()),
        "mounts": link.as_ref().map_or(0, |link| link.mounts),
        "dead_epochs": link.as_ref().map_or(0, |link| link.dead_epochs),
        "bytes_read": state.totals().bytes_read,
        "bytes_written": state.totals().bytes_written,
    })
}
