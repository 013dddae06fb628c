//! Health, metrics and status.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::post;
use mc_base::http::standard_routes;
use serde_json::json;

use crate::state::StoreState;

pub(crate) fn routes(state: Arc<StoreState>, faults: bool) -> Router {
    let (ready, metrics, status) = (state.clone(), state.clone(), state.clone());
    let router = standard_routes(
        move || ready.ready(),
        move || metrics.render_metrics(),
        move || std::future::ready(self::status(&status)),
    );
    match faults {
        true => router.merge(Router::new().route("/fault/flip", post(flip)).with_state(state)),
        false => router,
    }
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

/// Fault injection, behind its flag: damages one byte as failing memory would. `?segment=0&offset=4096`
async fn flip(State(state): State<Arc<StoreState>>, RawQuery(query): RawQuery) -> (StatusCode, String) {
    let query = query.unwrap_or_default();
    let number = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1.parse().ok()
    };
    let (Some(segment), Some(offset)) = (number("segment"), number("offset")) else {
        return (StatusCode::BAD_REQUEST, "say ?segment=NUMBER&offset=BYTES\n".to_owned());
    };
    let segments = state.serving().map_or(&[][..], |serving| &serving.segments);
    let Some(segment) = segments.iter().find(|lent| u64::from(lent.number()) == segment) else {
        return (StatusCode::NOT_FOUND, "no such segment\n".to_owned());
    };
    match segment.corrupt(offset) {
        Ok(()) => (StatusCode::OK, "flipped\n".to_owned()),
        Err(err) => (StatusCode::BAD_REQUEST, format!("{err}\n")),
    }
}
