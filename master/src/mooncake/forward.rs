use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{self, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use mc_process::http::{ExchangeError, exchange};
use mc_raft::RaftTiming;
use tokio::time::{Instant, sleep, timeout_at};

use crate::access::FORWARDED;
use crate::api::{Api, AuditedCaller, ReplySize};
use crate::leader::{Refusal, Services};

/// Longest time until a request is answered. Mooncake's transfer engine waits for 3 s, once.
const WITHIN: Duration = Duration::from_millis(2_500);
/// Pause before the leader is looked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// Header of a page that is not the last one: the position of the next.
pub(super) const NEXT: HeaderName = HeaderName::from_static("mc-next");
/// Headers of the leader's answer that the caller gets, too.
const PASSED_ON: [HeaderName; 2] = [header::CONTENT_TYPE, NEXT];

/// A request as it came, which the leader can answer as well.
#[derive(Debug)]
pub(super) struct PassableRequest {
    pub(super) method: Method,
    pub(super) body: Bytes,
    /// Who asks, also if another master passed the request on.
    pub(super) caller: AuditedCaller,
    uri: Uri,
    forwarded: bool,
}

impl<S: Send + Sync> FromRequest<S> for PassableRequest {
    type Rejection = BytesRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, BytesRejection> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        // The router takes the body off the answer.
        let method = if method == Method::HEAD { Method::GET } else { method };
        let forwarded = request.headers().contains_key(FORWARDED);
        let caller = AuditedCaller::of_http(request.extensions(), request.headers().get(FORWARDED));
        Ok(Self { method, uri, forwarded, caller, body: Bytes::from_request(request, state).await? })
    }
}

/// Why a leader's answer is missing.
enum NoReply {
    /// It did not act on the request, or acting twice is no harm: the next leader can be asked.
    Again(String),
    /// A change may have been made or not.
    Unknown(String),
}

/// Answers with `serve` if this master leads, else with the leader's answer. While no leader is known, looks for one.
///
/// The caller gets an answer within [`WITHIN`], from any master: Mooncake's clients follow no redirection. A request that
/// another master passed on goes no further, so there is no loop, whatever the two believe.
///
/// A large answer has its room before it is made, here or by the leader, and keeps it until it is sent.
///
/// # Errors
/// The reason why there is no answer now.
pub(super) async fn on_leader<F>(
    api: &Api,
    asked: &PassableRequest,
    size: ReplySize,
    serve: impl Fn(Arc<Services>) -> F,
) -> Result<Response, String>
where
    F: Future<Output = Result<Response, Refusal>>,
{
    let Some(services) = api.services() else {
        return Err("this master belongs to no cluster yet".into());
    };
    let end = Instant::now() + WITHIN;
    let Ok(room) = timeout_at(end, api.reply_memory.reserve(size)).await else {
        return Err("this master sends as many large answers as it has memory for: try again shortly".into());
    };
    loop {
        let refusal = match timeout_at(end, serve(services.clone())).await {
            Ok(Ok(response)) => return Ok(room.with(response).await),
            Ok(Err(refusal)) => refusal,
            Err(_) => {
                // A leader that reaches no majority waits for one.
                let why = match services.coordinator.leader() {
                    Some(_) => format!("this master has no answer within {WITHIN:?}"),
                    None => services.coordinator.not_leader().to_string(),
                };
                let (NoReply::Again(why) | NoReply::Unknown(why)) = asked.unanswered(why);
                return Err(why);
            }
        };
        let Refusal::NotLeader { .. } = refusal else { return Err(refusal.to_string()) };
        if asked.forwarded {
            return Ok((StatusCode::MISDIRECTED_REQUEST, format!("{refusal}\n")).into_response());
        }
        let why = match services.coordinator.leader_http() {
            Some(leader) => match asked.forward(api, &leader, size, services.raft.timing(), end).await {
                Ok(response) => return Ok(room.with(response).await),
                Err(NoReply::Unknown(why)) => return Err(why),
                Err(NoReply::Again(why)) => format!("{why}: try again shortly"),
            },
            None => services.coordinator.not_leader().to_string(),
        };
        if Instant::now() + 2 * PAUSE >= end {
            return Err(why);
        }
        sleep(PAUSE).await;
    }
}

impl PassableRequest {
    /// Returns the answer of the master at `leader`.
    ///
    /// A leader may have another one after it once `election_max` is over, so a connection gets no longer, and a read, which
    /// another leader can answer as well, twice that: two round trips of a leader that lives, and one to its followers.
    async fn forward(
        &self,
        api: &Api,
        leader: &str,
        size: ReplySize,
        timing: RaftTiming,
        end: Instant,
    ) -> Result<Response, NoReply> {
        let mut request = http::Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().insert(FORWARDED, self.caller.to_header());
        // Held until the answer is here and its connection is closed.
        let Ok(_place) = timeout_at(end, api.reply_memory.pass_on()).await else {
            return Err(NoReply::Again(
                "this master passes on as many requests as it has connections for".into(),
            ));
        };
        let begun = Instant::now();
        let connect_by = end.min(begun + timing.election_max);
        let end = if self.reads() { end.min(begun + 2 * timing.election_max) } else { end };
        let mut answer =
            match timeout_at(end, exchange(api.network(), leader, connect_by, size.most(), request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error @ ExchangeError::Unsent { .. })) => {
                    return Err(NoReply::Again(error.to_string()));
                }
                Ok(Err(error @ ExchangeError::Unanswered { .. })) => {
                    return Err(self.unanswered(error.to_string()));
                }
                Err(_) => {
                    let waited = begun.elapsed().as_millis();
                    return Err(self.unanswered(format!("no answer from {leader} within {waited} ms")));
                }
            };
        if is_refusal(answer.status()) {
            return Err(NoReply::Again(format!("{leader} answers that it does not lead")));
        }
        let mut response = (answer.status(), std::mem::take(answer.body_mut())).into_response();
        response.headers_mut().remove(header::CONTENT_TYPE);
        for name in PASSED_ON {
            let value = answer.headers_mut().remove(&name);
            value.and_then(|value| response.headers_mut().insert(name, value));
        }
        Ok(response)
    }

    /// Returns the failure of a master that may have acted on the request.
    fn unanswered(&self, why: String) -> NoReply {
        match self.reads() {
            true => NoReply::Again(why),
            false => NoReply::Unknown(format!("{why}: the change may have been made or not")),
        }
    }

    fn reads(&self) -> bool {
        self.method == Method::GET
    }
}

/// Whether a master did nothing, because it does not lead. A build that redirects did nothing either.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::MISDIRECTED_REQUEST | StatusCode::TEMPORARY_REDIRECT)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use futures::FutureExt as _;
    use futures::future::{BoxFuture, pending};
    use mc_net::{ChannelOptions, Connection, Listener, Network, TcpNetwork};
    use mc_process::metrics::Registry;
    use mc_types::NodeId;
    use metrics::Counter;
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tonic::transport::{Channel, Error};

    use super::*;
    use crate::audit::AuditLogs;
    use crate::metrics::MasterMetrics;

    /// A leader that takes no connection, or takes one and answers nothing.
    #[derive(Debug, Default)]
    struct Silent {
        accepts: bool,
        accepted: Mutex<Vec<DuplexStream>>,
    }

    impl Network for Silent {
        fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
            pending().boxed()
        }

        fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
            if !self.accepts {
                return pending().boxed();
            }
            let (ours, theirs) = duplex(4 << 10);
            self.accepted.lock().unwrap().push(theirs);
            async { Ok(Connection::new(ours)) }.boxed()
        }

        fn channel(&self, address: &str, options: ChannelOptions) -> Result<Channel, Error> {
            TcpNetwork.channel(address, options)
        }
    }

    /// Passes a request on to such a leader. Returns the reason why there is no answer, whether the next leader may be asked,
    /// and how long that took.
    async fn passed_on(method: Method, timing: RaftTiming, leader: &Arc<Silent>) -> (String, bool, Duration) {
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let dir = tempfile::tempdir().unwrap();
        let audit = AuditLogs::open(dir.path(), true, Counter::noop()).unwrap();
        let api = Api::new(NodeId(1), leader.clone(), metrics, Arc::new(audit));
        let (uri, body) = (Uri::from_static("/metadata?key=a"), Bytes::from_static(b"value"));
        let caller = AuditedCaller::default();
        let asked = PassableRequest { method, body, caller, uri, forwarded: false };
        let begun = Instant::now();
        let answer = asked.forward(&api, "leader:9003", ReplySize::Small, timing, begun + WITHIN).await;
        let (why, again) = match answer {
            Err(NoReply::Again(why)) => (why, true),
            Err(NoReply::Unknown(why)) => (why, false),
            Ok(answer) => (answer.status().to_string(), false),
        };
        (why, again, begun.elapsed())
    }

    /// The clock of these tests stands still unless all wait for it, so a wait has its length exactly, to the timer's millisecond.
    fn is(waited: Duration, bound: Duration) -> bool {
        (bound..=bound + Duration::from_millis(1)).contains(&waited)
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_takes_no_connection_gets_an_election_and_then_the_next_one_is_asked() {
        for (method, timing) in [(Method::GET, RaftTiming::LAN), (Method::PUT, RaftTiming::WAN)] {
            let leader = Arc::new(Silent::default());
            let (why, again, waited) = passed_on(method.clone(), timing, &leader).await;
            assert!(again && why.contains("cannot connect to leader:9003"), "{method}: {why}");
            assert!(is(waited, timing.election_max), "{method}: {waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_of_a_silent_leader_is_repeated_and_a_change_is_not() {
        for (method, timing, bound) in [
            (Method::GET, RaftTiming::LAN, 2 * RaftTiming::LAN.election_max),
            (Method::GET, RaftTiming::WAN, 2 * RaftTiming::WAN.election_max),
            (Method::PUT, RaftTiming::LAN, WITHIN),
        ] {
            let leader = Arc::new(Silent { accepts: true, ..Silent::default() });
            let reads = method == Method::GET;
            let (why, again, waited) = passed_on(method.clone(), timing, &leader).await;
            assert!(why.contains("no answer from leader:9003"), "{method}: {why}");
            assert_eq!(
                (again, why.contains("may have been made or not")),
                (reads, !reads),
                "{method}: {why}"
            );
            assert!(is(waited, bound), "{method} {timing}: {waited:?}");
            let mut sent = String::new();
            let mut peer = leader.accepted.lock().unwrap().pop().unwrap();
            peer.read_to_string(&mut sent).await.unwrap();
            assert!(sent.starts_with(&format!("{method} /metadata?key=a HTTP/1.1\r\n")), "{sent}");
            assert!(sent.contains("mc-forwarded: 1;;\r\n") && sent.ends_with("\r\n\r\nvalue"), "{sent}");
        }
    }
}
