//! Health, metrics and status.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::post;
use mc_base::http::standard_routes;
use serde::Deserialize;
use serde_json::json;

use crate::state::StoreState;

pub(crate) fn routes(state: Arc<StoreState>, faults: bool) -> Router {
    let (ready, metrics, status) = (state.clone(), state.clone(), state.clone());
    let router = standard_routes(
        move || ready.ready(),
        move || metrics.render(),
        move || std::future::ready(self::status(&status)),
    );
    match faults {
        true => router.merge(Router::new().route("/fault/flip", post(flip)).with_state(state)),
        false => router,
    }
}

fn status(state: &StoreState) -> serde_json::Value {
    let link = state.link();
    let leader = link.as_ref().and_then(|link| link.get().leader);
    let link_state = link.as_ref().map(|link| link.get());
    json!({
        "id": state.store().to_string(),
        "name": state.name(),
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "ready": state.ready().is_ok(),
        "why_not_ready": state.ready().err(),
        "capacity_bytes": state.capacity_bytes(),
        "allocated_bytes": state.allocated_bytes(),
        "cluster": link_state.as_ref().and_then(|link| link.cluster).map(|id| id.to_string()),
        "epoch": link_state.as_ref().map(|link| link.epoch.to_string()),
        "leader": leader.as_ref().map(|leader| leader.address.clone()),
        "term": leader.as_ref().map(|leader| leader.term),
        "heartbeat_age_ms": link.as_ref().and_then(|link| link.age()).map(|age| age.as_millis() as u64),
        "mounts": link_state.as_ref().map_or(0, |link| link.mounts),
        "dead_epochs": link_state.as_ref().map_or(0, |link| link.dead_epochs),
    })
}

#[derive(Deserialize)]
struct Flip {
    segment: usize,
    offset: u64,
}

async fn flip(State(state): State<Arc<StoreState>>, Query(flip): Query<Flip>) -> (StatusCode, String) {
    let Some(segment) = state.segments().get(flip.segment) else {
        return (StatusCode::NOT_FOUND, "no such segment\n".to_owned());
    };
    match segment.corrupt(flip.offset) {
        Ok(()) => (StatusCode::OK, "flipped\n".to_owned()),
        Err(err) => (StatusCode::BAD_REQUEST, format!("{err}\n")),
    }
}
