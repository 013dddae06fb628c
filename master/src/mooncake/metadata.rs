//! `/metadata?key=KEY` over HTTP: a small replicated table of keys and values, for what inference engines and transfer
//! engines tell each other at start. GET, PUT and DELETE, as clients of Mooncake's metadata server use them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mc_index::{KEY_VALUE_KEY_MAX, KEY_VALUE_MAX, KEY_VALUES_BYTES_MAX, KEY_VALUES_MAX};
use mc_types::Code;
use serde::Deserialize;

use super::forward::{PassableRequest, on_leader};
use crate::api::{Api, ReplySize};
use crate::leader::{Refusal, Services, SetFirst};

/// Part of the keys under which Mooncake's transfer engines have their addresses.
const RPC_META: &[u8] = b"rpc_meta";

/// Parameters of a request.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(default)]
    key: String,
}

/// Returns the route `/metadata`, under which Mooncake's engines keep key-value pairs.
pub(super) fn routes(api: Arc<Api>) -> Router {
    Router::new().route("/metadata", get(serve).put(serve).delete(serve)).with_state(api)
}

async fn serve(
    State(api): State<Arc<Api>>,
    Query(Entry { key }): Query<Entry>,
    asked: PassableRequest,
) -> Response {
    if key.is_empty() {
        return (StatusCode::BAD_REQUEST, "no key is given: ask for /metadata?key=KEY\n").into_response();
    }
    if key.len() > KEY_VALUE_KEY_MAX {
        let why = format!("a key of {} bytes: it can have 1 to {KEY_VALUE_KEY_MAX}\n", key.len());
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    if asked.body.len() > KEY_VALUE_MAX {
        let why = format!("a value of {} bytes: it can have {KEY_VALUE_MAX} at most\n", asked.body.len());
        return (StatusCode::PAYLOAD_TOO_LARGE, why).into_response();
    }
    let answer = on_leader(&api, &asked, ReplySize::Small, |services| act(services, &key, &asked)).await;
    answer.unwrap_or_else(|why| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response())
}

async fn act(services: Arc<Services>, key: &str, asked: &PassableRequest) -> Result<Response, Refusal> {
    let table = &services.key_values;
    let key = key.as_bytes();
    Ok(match asked.method {
        Method::PUT if is_address(key) => match table.set_first(key.to_vec(), asked.body.to_vec()).await? {
            SetFirst::Set(code) => changed(code, "metadata updated\n"),
            SetFirst::Same => "metadata unchanged\n".into_response(),
            SetFirst::Other => {
                (StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed\n").into_response()
            }
        },
        Method::PUT => {
            changed(table.set(key.to_vec(), Some(asked.body.to_vec())).await?, "metadata updated\n")
        }
        Method::DELETE => changed(table.set(key.to_vec(), None).await?, "metadata deleted\n"),
        _ => match table.get(key).await? {
            Some(value) => ([(header::CONTENT_TYPE, "application/json")], value).into_response(),
            None => (StatusCode::NOT_FOUND, "metadata not found\n").into_response(),
        },
    })
}

/// Whether an entry is the address of an engine, which must not move to another engine unnoticed.
fn is_address(key: &[u8]) -> bool {
    key.windows(RPC_META.len()).any(|part| part == RPC_META)
}

fn changed(code: Code, done: &'static str) -> Response {
    match code {
        Code::Ok => done.into_response(),
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
