//! The list of masters: `/masters` over HTTP shows and sets it, and SIGHUP reads it again from the configuration file.

use std::convert::Infallible;
use std::ffi::OsString;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use mc_process::config::{self, Origin};
use mc_store::{DEFAULT_MASTER_PORT, MasterList};
use serde::Deserialize;
use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::args::{Flags, command};

/// Parameters of a new list.
#[derive(Debug, Deserialize)]
struct NewList {
    list: String,
}

pub(crate) fn routes(masters: MasterList) -> Router {
    Router::new().route("/masters", get(show).put(set)).with_state(masters)
}

fn shown(masters: &MasterList) -> Response {
    Json(masters.get().iter().map(ToString::to_string).collect::<Vec<_>>()).into_response()
}

async fn show(State(masters): State<MasterList>) -> Response {
    shown(&masters)
}

async fn set(State(masters): State<MasterList>, Query(NewList { list }): Query<NewList>) -> Response {
    let refused = |why: String| (StatusCode::BAD_REQUEST, format!("list: {why}\n")).into_response();
    let list = match mc_types::parse_list(&list, DEFAULT_MASTER_PORT) {
        Ok(list) => list,
        Err(error) => return refused(error.to_string()),
    };
    match masters.set(list) {
        Ok(()) => shown(&masters),
        Err(error) => refused(error.to_string()),
    }
}

/// Reads the list again at each of `hangups`, by the rules of the start with `args`. No other setting changes.
pub(crate) async fn read_again(mut hangups: Signal, args: Vec<OsString>, masters: MasterList) -> Infallible {
    loop {
        if hangups.recv().await.is_none() {
            return std::future::pending().await;
        }
        let loaded = match config::load::<Flags>(command(), args.clone(), |name| std::env::var_os(name)) {
            Ok(loaded) => loaded,
            Err(why) => {
                error!("SIGHUP: the list of masters stays as it is: {why}");
                continue;
            }
        };
        match loaded.origin("masters") {
            Some(Origin::File(path)) => match masters.set(loaded.args.store.masters.clone()) {
                Ok(()) => info!(file = %path.display(), "SIGHUP: the list of masters was read again"),
                Err(why) => error!("SIGHUP: the list of masters stays as it is: {why}"),
            },
            origin => warn!(
                "SIGHUP: the list of masters stays as it is: it comes from {}, which cannot change while the store runs. Put \
                 `masters` into the file of --config, or set it over HTTP (PUT /masters?list=HOST:PORT,HOST:PORT)",
                origin.map_or_else(|| "nowhere".to_owned(), ToString::to_string)
            ),
        }
    }
}
