//! `/segments` over HTTP: lists the segments of the store, mounts further ones and unmounts segments.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use mc_store::{SegmentError, Segments};
use mc_types::{ByteSize, SegmentNumber};
use serde::Deserialize;
use serde_json::json;

/// Longest wait for a leader's confirmation.
const WITHIN: Duration = Duration::from_secs(5);

/// Parameters of a mount.
#[derive(Debug, Deserialize)]
struct Mount {
    size: String,
}

pub(crate) fn routes(segments: Segments) -> Router {
    Router::new()
        .route("/segments", get(list).post(mount))
        .route("/segments/{number}", delete(unmount))
        .with_state(segments)
}

async fn list(State(segments): State<Segments>) -> Response {
    let mounted = (0u32..).zip(segments.list()).filter(|(_, bytes)| *bytes > 0);
    let mounted: Vec<_> = mounted.map(|(number, bytes)| json!({"segment": number, "bytes": bytes})).collect();
    Json(mounted).into_response()
}

async fn mount(State(segments): State<Segments>, Query(Mount { size }): Query<Mount>) -> Response {
    let size: ByteSize = match size.parse() {
        Ok(size) => size,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("size: {error}\n")).into_response(),
    };
    match segments.mount(size, WITHIN).await {
        Ok(number) => {
            (StatusCode::CREATED, Json(json!({"segment": number, "bytes": size.0}))).into_response()
        }
        Err(error) => failed(&error),
    }
}

async fn unmount(State(segments): State<Segments>, Path(number): Path<SegmentNumber>) -> Response {
    match segments.unmount(number, WITHIN).await {
        Ok(()) => (StatusCode::OK, "unmounted\n").into_response(),
        Err(error) => failed(&error),
    }
}

fn failed(error: &SegmentError) -> Response {
    let status = match error {
        SegmentError::Small(_) => StatusCode::BAD_REQUEST,
        SegmentError::Unknown(_) => StatusCode::NOT_FOUND,
        SegmentError::Last(_) | SegmentError::TooMany => StatusCode::CONFLICT,
        SegmentError::Allocate(_) => StatusCode::INSUFFICIENT_STORAGE,
        SegmentError::Pending { .. } => StatusCode::ACCEPTED,
        SegmentError::Starting | SegmentError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n")).into_response()
}
