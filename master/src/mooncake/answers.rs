use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use mc_types::Code;
use serde::Serialize;

/// Type of lists in plain text.
pub(super) const TEXT: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];

/// Mooncake's number for a master that can't answer.
pub(super) const UNAVAILABLE_IN_CURRENT_MODE: i32 = -1011;

/// An error with a result code.
#[derive(Serialize)]
struct Failure {
    success: bool,
    error_code: i32,
    error_message: String,
}

/// An error of a request that makes no sense.
#[derive(Serialize)]
struct BadRequest {
    success: bool,
    error: String,
}

pub(super) fn failure(status: StatusCode, error_code: i32, error_message: impl Into<String>) -> Response {
    (status, Json(Failure { success: false, error_code, error_message: error_message.into() }))
        .into_response()
}

pub(super) fn bad_request(error: impl Into<String>) -> Response {
    (StatusCode::BAD_REQUEST, Json(BadRequest { success: false, error: error.into() })).into_response()
}

/// Answers a parameter or a field that can't be used.
pub(super) fn invalid(error_message: impl Into<String>) -> Response {
    failure(StatusCode::BAD_REQUEST, Code::InvalidParams as i32, error_message)
}

/// Returns the answer, or the error that says why there is none.
pub(super) fn or_unavailable(answer: Result<Response, String>) -> Response {
    answer.unwrap_or_else(|why| failure(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE_IN_CURRENT_MODE, why))
}
