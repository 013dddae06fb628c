use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{self, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use mc_process::http::{ExchangeError, exchange};
use tokio::time::{Instant, sleep, timeout};

use super::keys::NEXT;
use crate::api::Api;
use crate::leader::{Refusal, Services};

/// Longest time until a request is answered. Mooncake's transfer engine waits for 3 s, once.
const WITHIN: Duration = Duration::from_millis(2_500);
/// Longest wait for a leader's answer to a read, which another leader can answer as well.
const READ_WITHIN: Duration = Duration::from_millis(700);
/// Pause before the leader is looked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// Header of a request that another master passed on.
const FORWARDED: &str = "mc-forwarded";
/// Headers of the leader's answer that the caller gets, too.
const PASSED_ON: [HeaderName; 2] = [header::CONTENT_TYPE, NEXT];

/// A request as it came, which the leader can answer as well.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) body: Bytes,
    uri: Uri,
    forwarded: bool,
}

impl<S: Send + Sync> FromRequest<S> for Asked {
    type Rejection = BytesRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, BytesRejection> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        // The router takes the body off the answer.
        let method = if method == Method::HEAD { Method::GET } else { method };
        let forwarded = request.headers().contains_key(FORWARDED);
        Ok(Self { method, uri, forwarded, body: Bytes::from_request(request, state).await? })
    }
}

/// Answers with `serve` if this master leads, else with the leader's answer. While no leader is known, looks for one.
///
/// The caller gets an answer within [`WITHIN`], from any master: Mooncake's clients follow no redirection. A request that
/// another master passed on goes no further, so there is no loop, whatever the two believe.
///
/// # Errors
/// The reason why there is no answer now.
pub(super) async fn on_leader<F>(
    api: &Api,
    asked: &Asked,
    serve: impl Fn(Arc<Services>) -> F,
) -> Result<Response, String>
where
    F: Future<Output = Result<Response, Refusal>>,
{
    let Some(services) = api.services() else {
        return Err("this master belongs to no cluster yet".into());
    };
    match timeout(WITHIN, answer(&services, asked, serve)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("there is no answer within {WITHIN:?}: a change may have been made or not")),
    }
}

async fn answer<F>(
    services: &Arc<Services>,
    asked: &Asked,
    serve: impl Fn(Arc<Services>) -> F,
) -> Result<Response, String>
where
    F: Future<Output = Result<Response, Refusal>>,
{
    let begun = Instant::now();
    loop {
        let refusal = match serve(services.clone()).await {
            Ok(response) => return Ok(response),
            Err(refusal) => refusal,
        };
        let Refusal::NotLeader { .. } = refusal else { return Err(refusal.to_string()) };
        if asked.forwarded {
            return Ok((StatusCode::MISDIRECTED_REQUEST, format!("{refusal}\n")).into_response());
        }
        let leader = services.coordinator.leader_http();
        if let Some(leader) = &leader
            && let Some(answer) = asked.forward(leader).await
        {
            return answer;
        }
        if begun.elapsed() + 2 * PAUSE >= WITHIN {
            return Err(match leader {
                Some(leader) => format!("the leader's HTTP port {leader} does not answer: try again shortly"),
                None => services.coordinator.not_leader().to_string(),
            });
        }
        sleep(PAUSE).await;
    }
}

impl Asked {
    /// Returns the answer of the master at `leader`; `None` if it did not act on the request, or if acting twice is no harm.
    async fn forward(&self, leader: &str) -> Option<Result<Response, String>> {
        let mut request = http::Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
        let reads = self.method == Method::GET;
        let within = if reads { READ_WITHIN } else { WITHIN };
        match timeout(within, exchange(leader, request)).await {
            // A build that redirects did nothing either.
            Ok(Ok(answer)) if is_refusal(answer.status()) => None,
            Ok(Ok(mut answer)) => {
                let mut response = (answer.status(), std::mem::take(answer.body_mut())).into_response();
                response.headers_mut().remove(header::CONTENT_TYPE);
                for name in PASSED_ON {
                    let value = answer.headers_mut().remove(&name);
                    value.and_then(|value| response.headers_mut().insert(name, value));
                }
                Some(Ok(response))
            }
            Ok(Err(ExchangeError::Unsent { .. })) => None,
            Ok(Err(ExchangeError::Unanswered { .. })) | Err(_) if reads => None,
            Ok(Err(error)) => Some(Err(format!("{error}: the change may have been made or not"))),
            Err(_) => Some(Err(format!("no answer from {leader}: the change may have been made or not"))),
        }
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::MISDIRECTED_REQUEST | StatusCode::TEMPORARY_REDIRECT)
}
