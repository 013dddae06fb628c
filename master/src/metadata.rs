//! `/metadata?key=KEY` over HTTP: a small replicated table of keys and values, for what inference engines and transfer
//! engines tell each other at start. GET, PUT and DELETE, as clients of Mooncake's metadata server use them.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, RawQuery, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mc_index::{KEY_VALUE_KEY_MAX, KEY_VALUE_MAX, KEY_VALUES_BYTES_MAX, KEY_VALUES_MAX};
use mc_types::Code;
use serde::Deserialize;

use crate::api::Api;
use crate::leader::Refusal;

/// Parameters of a request.
#[derive(Debug, Deserialize)]
struct Entry {
    key: String,
}

/// Returns the route.
pub(crate) fn routes(api: Arc<Api>) -> Router {
    Router::new().route("/metadata", get(serve).put(serve).delete(serve)).with_state(api)
}

async fn serve(
    State(api): State<Arc<Api>>,
    method: Method,
    Query(Entry { key }): Query<Entry>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Response {
    if key.is_empty() || key.len() > KEY_VALUE_KEY_MAX {
        let why = format!("a key of {} bytes: it can have 1 to {KEY_VALUE_KEY_MAX}\n", key.len());
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    if body.len() > KEY_VALUE_MAX {
        let why = format!("a value of {} bytes: it can have {KEY_VALUE_MAX} at most\n", body.len());
        return (StatusCode::PAYLOAD_TOO_LARGE, why).into_response();
    }
    let Some(services) = api.services() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this master belongs to no cluster yet\n").into_response();
    };
    let table = &services.key_values;
    let answered = match method {
        Method::PUT => table.set(key.into_bytes(), Some(body.to_vec())).await.map(changed),
        Method::DELETE => table.set(key.into_bytes(), None).await.map(changed),
        _ => table.get(key.as_bytes()).await.map(|value| match value {
            Some(value) => (StatusCode::OK, value).into_response(),
            None => (StatusCode::NOT_FOUND, "metadata not found\n").into_response(),
        }),
    };
    match answered {
        Ok(response) => response,
        Err(Refusal::NotLeader { leader: Some(leader), .. }) => {
            let status = api.own_status();
            let is_leader = |id: &[u8]| id == leader.node.to_bytes();
            match status.masters.iter().find(|master| is_leader(&master.node_id)) {
                Some(master) => {
                    let to = format!("http://{}/metadata?{}", master.http_address, query.unwrap_or_default());
                    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
                }
                None => unavailable(&Refusal::NotLeader { leader: Some(leader), term: 0 }),
            }
        }
        Err(refusal) => unavailable(&refusal),
    }
}

fn changed(code: Code) -> Response {
    match code {
        Code::Ok => (StatusCode::OK, "metadata updated\n").into_response(),
        Code::ObjectNotFound => (StatusCode::NOT_FOUND, "metadata not found\n").into_response(),
        Code::NoAvailableHandle => {
            let why = format!(
                "the table is full: it holds {KEY_VALUES_MAX} entries and {KEY_VALUES_BYTES_MAX} bytes; delete some\n"
            );
            (StatusCode::INSUFFICIENT_STORAGE, why).into_response()
        }
        code => (StatusCode::BAD_REQUEST, format!("{}\n", code.name())).into_response(),
    }
}

fn unavailable(refusal: &Refusal) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")).into_response()
}
