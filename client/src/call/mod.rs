//! Calls to the leader, with retries, redirects and deadlines.

mod joined;
mod lane;
mod revokes;
mod rpc;

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{Backoff, Leader};
use mc_proto::{PreparedRequest, detail_of, v1::ErrorDetail};
use mc_types::{Code, MAX_COMMAND_BYTES};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tonic::{Request, Response, Status};

#[cfg(feature = "testing")]
pub(crate) use joined::Joined;
pub(crate) use lane::Lane;
pub(crate) use revokes::{RevokeOnDrop, Revokes, id_bytes};
pub(crate) use rpc::Rpc;

use crate::Error;
use crate::masters::Masters;
use crate::metrics::Counters;
use crate::mode::{ClientMode, ModeSwitch};

/// Waiting time after which a call makes the client ask the leader and the other masters whether it still leads.
const DOUBT_AFTER: Duration = Duration::from_millis(300);
/// Time limit of the first try of a call. A longer try is abandoned and repeated over a new connection even if the
/// leader answers hellos, because its answer may be lost. The limit doubles with every try, so that repetitions do not
/// overload a slow leader.
const FIRST_TRY: Duration = Duration::from_secs(1);
/// Extra time that a call that must not be repeated waits for a replaced leader. A leader that handed over in good
/// order answers at once that it did nothing, and only that answer makes the outcome definite.
const LAST_WORD: Duration = Duration::from_millis(300);
/// Maximum number of redirects in a row that are followed without a pause.
const MAX_HOPS: u32 = 3;
/// Shortest and longest pause between tries with the same leader.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Maximum encoded bytes of the items of one request. Each request is one log entry, which is slightly larger.
pub(crate) const MAX_REQUEST_BYTES: usize = MAX_COMMAND_BYTES / 8 * 7;

/// Whether a call may be repeated when a try got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Repeat freely: reads, and changes named by a put id, have the same effect however often they are made.
    Freely,
    /// Repeat only after tries that certainly did nothing: a repetition could change another client's object.
    IfUnsent,
}

/// The leader's answer.
#[derive(Debug)]
pub(crate) struct LeaderReply<T> {
    pub(crate) reply: T,
    /// When the answered try was sent. Leases count from here.
    pub(crate) sent_at: Instant,
    /// Whether an earlier try got no answer and so may have been applied before this one.
    pub(crate) repeated: bool,
}

/// Reason why a call got no answer.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// No leader is in reach.
    LocalOnly {
        /// Whether a try was sent without an answer, so that it may have been applied.
        sent: bool,
    },
    /// The call failed.
    Failed(Error),
}

impl CallError {
    /// Returns whether the call may have taken effect.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            Self::LocalOnly { sent } => *sent,
            Self::Failed(error) => error.is_unknown(),
        }
    }

    /// Converts to the error of a call that has no local-only answer.
    pub(crate) fn into_error(self, what: &'static str) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::LocalOnly { sent } => {
                let error = Error::definite(what, Code::NoLeader, "this client", "no leader is in reach");
                if sent { error.unknown() } else { error }
            }
        }
    }
}

/// Kind of a failed try.
pub(crate) enum Failure {
    /// The master did nothing, because another master or none leads.
    NotLeader(ErrorDetail),
    /// The leader did nothing, and may accept the same call after so much time.
    Busy(Code, Duration),
    /// The master did nothing, because it is not the one that was meant.
    Stranger(ErrorDetail),
    /// The try was not sent: there is no connection.
    Unsent,
    /// The try was not sent: it waited for its turn on a connection that was closed, and the next one is made.
    NotTaken,
    /// The try may have been applied.
    Lost,
    /// The master answered with an error.
    Refused(Code, String),
}

enum Tried<T> {
    Answered(Result<Response<T>, Status>),
    /// The master that was asked no longer leads.
    Superseded,
    TooLong,
}

/// Sends requests to the leader, whichever master that is.
#[derive(Debug)]
pub(crate) struct LeaderClient {
    pub(crate) masters: Arc<Masters>,
    pub(crate) mode: Arc<ModeSwitch>,
    pub(crate) counters: Arc<Counters>,
    /// Runs requests that outlive a call.
    pub(crate) runtime: Handle,
}

impl LeaderClient {
    /// Calls the leader, following changes of the leader, until one answers or the deadline passes. `request` has no caller: each
    /// try names this client and the master that is asked.
    pub(crate) async fn call<R: Rpc>(
        &self,
        request: &R,
        deadline: Instant,
        repeat: Repeat,
    ) -> Result<LeaderReply<R::Reply>, CallError> {
        // Encoded for the first try: there may be no leader.
        let mut prepared = None;
        let mut sent = false;
        let mut last = LastTry::new("the masters", "no leader is known");
        let mut asked: Option<Arc<Leader>> = None;
        let mut hops = 0;
        let mut pace = Backoff::new(RETRY.0, RETRY.1);
        let mut longest = FIRST_TRY;
        let mut rest = Duration::ZERO;
        loop {
            let leader = self.leader(R::NAME, deadline, sent, &last).await?;
            if let Some(before) = &asked {
                self.counters.retries.one();
                // Ask a new leader at once, but give the one that just failed a moment.
                if before.same_term(&leader) || hops > MAX_HOPS {
                    hops = 0;
                    let pause = pace.wait().max(rest);
                    sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
                }
            }
            asked = Some(Arc::clone(&leader));
            rest = Duration::ZERO;
            let sent_at = Instant::now();
            let Ok(mut channel) = self.masters.channel(&leader.address) else {
                last = LastTry::new(&leader.address, "it is not an address");
                self.masters.lost(&leader, sent_at);
                continue;
            };
            let caller = self.masters.caller(Some(leader.node));
            let prepared = prepared.get_or_insert_with(|| PreparedRequest::new(request));
            let mut message = Request::new(prepared.with_caller(caller));
            message.set_timeout(deadline.saturating_duration_since(sent_at));
            let until = match repeat {
                Repeat::Freely => deadline.min(sent_at + longest),
                Repeat::IfUnsent => deadline,
            };
            let mut is_doubtful = true;
            let call = Box::pin(mc_proto::call(&mut channel.grpc, R::PATH, message));
            let tried = self.attempt(call, &leader, until, repeat).await;
            let failure = match tried {
                Tried::Answered(Ok(reply)) => {
                    self.masters.heard(&leader);
                    return Ok(LeaderReply { reply: reply.into_inner(), sent_at, repeated: sent });
                }
                Tried::Answered(Err(status)) => {
                    last = LastTry::new(&leader.address, status.message());
                    let failure = failure_of(&status);
                    // Another master at its address is no sign of life.
                    if detail_of(&status).is_some() && !matches!(failure, Failure::Stranger(_)) {
                        self.masters.heard(&leader);
                    }
                    failure
                }
                Tried::Superseded => {
                    last = LastTry::new(&leader.address, "it stopped answering");
                    Failure::Lost
                }
                Tried::TooLong => {
                    last = LastTry::new(&leader.address, "no answer in time");
                    // The leader may be slow with this call alone. Another connection helps only if this one is dead.
                    is_doubtful = !self.masters.has_heard(&leader, sent_at);
                    if is_doubtful {
                        self.masters.replace_channel(&leader.address, &channel);
                        self.masters.doubt(&leader, sent_at);
                    }
                    longest *= 2;
                    Failure::Lost
                }
            };
            match failure {
                Failure::NotLeader(detail) => {
                    hops += 1;
                    self.masters.redirected(&leader, Leader::read(detail.leader.as_ref()));
                }
                Failure::Busy(code, again) => {
                    (last.code, rest) = (code, again);
                    if again > deadline.saturating_duration_since(Instant::now()) {
                        return Err(CallError::Failed(last.error(R::NAME, code, sent)));
                    }
                }
                Failure::Stranger(detail) => {
                    if detail.code == Code::WrongCluster as i32 {
                        self.masters.foreign(&leader, &detail.ours, sent_at);
                    } else {
                        self.masters.lost(&leader, sent_at);
                    }
                }
                Failure::Unsent => {
                    self.masters.replace_channel(&leader.address, &channel);
                    self.masters.lost(&leader, sent_at);
                }
                Failure::NotTaken => {}
                Failure::Lost => {
                    sent = true;
                    if !matches!(self.mode.get(), ClientMode::Leader(now) if !now.same_term(&leader))
                        && is_doubtful
                    {
                        self.masters.doubt(&leader, sent_at);
                    }
                    if repeat == Repeat::IfUnsent {
                        return Err(CallError::Failed(last.error(R::NAME, Code::OutcomeUnknown, true)));
                    }
                }
                Failure::Refused(code, why) => {
                    last.why = why;
                    let error = last.error(R::NAME, code, sent);
                    // A master can't say what to do about a call or a version that it does not know.
                    let is_skew = code == Code::VersionSkew;
                    return Err(CallError::Failed(if is_skew { error } else { error.advised() }));
                }
            }
        }
    }

    /// Waits until a leader is known, and returns it.
    async fn leader(
        &self,
        what: &'static str,
        deadline: Instant,
        sent: bool,
        last: &LastTry,
    ) -> Result<Arc<Leader>, CallError> {
        if Instant::now() >= deadline {
            return Err(CallError::Failed(last.error(what, last.code, sent)));
        }
        let mut mode = self.mode.subscribe();
        let mode = tokio::select! {
            biased;
            found = mode.wait_for(|mode| !matches!(mode, ClientMode::Searching)) => {
                found.map_or(ClientMode::Closed, |mode| mode.clone())
            }
            () = sleep_until(deadline) => ClientMode::Searching,
        };
        if !matches!(mode, ClientMode::Leader(_)) {
            // Such a call waits for nothing else. Without this yield, a thousand callers in a loop would starve the
            // task that looks for the leader, and never get one.
            tokio::task::yield_now().await;
        }
        match mode {
            ClientMode::Leader(leader) => Ok(leader),
            ClientMode::LocalOnly => Err(CallError::LocalOnly { sent }),
            ClientMode::Searching => Err(CallError::Failed(last.error(what, last.code, sent))),
            ClientMode::Refused(refusal) => {
                let error = refusal.error(what);
                Err(CallError::Failed(if sent { error.unknown() } else { error }))
            }
            ClientMode::Closed => {
                let closed = LastTry::new("this client", "it was closed");
                Err(CallError::Failed(closed.error(what, Code::UnavailableInCurrentStatus, sent)))
            }
        }
    }

    /// Makes one try, and abandons it as soon as it is futile.
    async fn attempt<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
        leader: &Arc<Leader>,
        until: Instant,
        repeat: Repeat,
    ) -> Tried<T> {
        let sent_at = Instant::now();
        let mut mode = self.mode.subscribe();
        let superseded = async {
            // The sender belongs to `self`, so waiting cannot fail.
            let _ = mode.wait_for(|mode| is_superseded(mode, leader, repeat)).await;
        };
        let (mut looked_at, mut doubt_at) = (sent_at, sent_at + DOUBT_AFTER);
        tokio::pin!(call, superseded);
        loop {
            // One timer for both times: setting a timer costs a system call, and nearly every call ends before either.
            let look_at = until.min(doubt_at);
            tokio::select! {
                biased;
                answer = &mut call => return Tried::Answered(answer),
                () = &mut superseded => {
                    if repeat == Repeat::Freely {
                        return Tried::Superseded;
                    }
                    let answer = timeout_at(until.min(Instant::now() + LAST_WORD), call).await;
                    return answer.map_or(Tried::Superseded, Tried::Answered);
                }
                () = sleep_until(look_at) => {
                    if look_at == until {
                        return Tried::TooLong;
                    }
                    // A leader that answers other calls leads: this one only takes long.
                    if !self.masters.has_heard(leader, looked_at) {
                        self.masters.doubt(leader, sent_at);
                    }
                    looked_at = Instant::now();
                    doubt_at = looked_at + DOUBT_AFTER;
                }
            }
        }
    }
}

/// Returns whether it is futile to wait for this leader's answer.
fn is_superseded(mode: &ClientMode, leader: &Leader, repeat: Repeat) -> bool {
    match mode {
        ClientMode::Leader(now) => !now.same_term(leader),
        // Perhaps only another call's connection broke. A call that can be repeated need not wait to find out.
        ClientMode::Searching => repeat == Repeat::Freely,
        ClientMode::LocalOnly | ClientMode::Refused(_) | ClientMode::Closed => true,
    }
}

/// The last try of a call, for its error text.
struct LastTry {
    at: String,
    why: String,
    /// Code of the error if the deadline passes now.
    code: Code,
}

impl LastTry {
    fn new(at: impl Into<String>, why: impl Into<String>) -> Self {
        Self { at: at.into(), why: why.into(), code: Code::RpcTimeout }
    }

    fn error(&self, what: &'static str, code: Code, sent: bool) -> Error {
        let error = Error::definite(what, code, self.at.as_str(), self.why.as_str());
        if sent { error.unknown() } else { error }
    }
}

pub(crate) fn failure_of(status: &Status) -> Failure {
    let Some(detail) = detail_of(status) else {
        return failure_without_detail(status);
    };
    match Code::try_from(detail.code).unwrap_or(Code::InternalError) {
        Code::NotLeader => Failure::NotLeader(detail),
        code @ (Code::NoLeader | Code::UnavailableInCurrentStatus | Code::ResourceExhausted) => {
            Failure::Busy(code, Duration::from_millis(detail.retry_after_ms.into()))
        }
        Code::WrongCluster | Code::WrongNode => Failure::Stranger(detail),
        Code::OutcomeUnknown | Code::RpcTimeout | Code::RpcFail | Code::InternalError => Failure::Lost,
        Code::VersionSkew => {
            let why =
                format!("{} (it speaks {}, this client {})", detail.message, detail.ours, detail.theirs);
            Failure::Refused(Code::VersionSkew, why)
        }
        code => Failure::Refused(code, detail.message),
    }
}

/// Classifies a status that no master made: it comes from a broken connection, a proxy, or the gRPC library.
fn failure_without_detail(status: &Status) -> Failure {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return Failure::Unsent;
        }
        // A master lets old connections go; hyper cancels the calls that it has not sent over them.
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return Failure::NotTaken;
        }
        cause = error.source();
    }
    match status.code() {
        tonic::Code::Unimplemented => {
            let why = format!("the master does not know this call: {}", status.message());
            Failure::Refused(Code::VersionSkew, why)
        }
        tonic::Code::OutOfRange | tonic::Code::InvalidArgument => {
            Failure::Refused(Code::InvalidParams, status.message().to_owned())
        }
        _ => Failure::Lost,
    }
}

#[cfg(test)]
mod tests {
    use mc_proto::status_of;

    use super::*;
    use crate::masters;

    /// Returns the caller of a client that no master has answered yet.
    pub(super) fn unmet(runtime: Handle) -> Arc<LeaderClient> {
        let counters = Arc::new(Counters::new());
        let mode = Arc::new(ModeSwitch::new(Duration::from_secs(1), counters.clone()));
        let masters = masters::tests::unmet(runtime.clone());
        Arc::new(LeaderClient { masters, mode, counters, runtime })
    }

    #[test]
    fn only_an_error_after_sending_leaves_the_outcome_open() {
        let detail = |code: Code| status_of(&ErrorDetail { code: code as i32, ..ErrorDetail::default() });
        assert!(matches!(failure_of(&detail(Code::NotLeader)), Failure::NotLeader(_)));
        assert!(matches!(
            failure_of(&detail(Code::ResourceExhausted)),
            Failure::Busy(Code::ResourceExhausted, Duration::ZERO)
        ));
        assert!(matches!(failure_of(&detail(Code::WrongNode)), Failure::Stranger(_)));
        assert!(matches!(failure_of(&detail(Code::OutcomeUnknown)), Failure::Lost));
        assert!(matches!(failure_of(&detail(Code::InvalidKey)), Failure::Refused(Code::InvalidKey, _)));
        assert!(matches!(failure_of(&Status::unavailable("connection reset")), Failure::Lost));
        let refused = tonic::ConnectError(Box::new(std::io::Error::other("refused")));
        assert!(matches!(failure_of(&Status::from_error(Box::new(refused))), Failure::Unsent));
    }
}
