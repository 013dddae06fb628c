//! A connection that small calls share: each sends its request without waiting for the answers to those before.
//!
//! As long as a connection is free, a call has one for itself, without copies and without another task. When all are taken, by
//! large transfers or by many calls, a small call hands its request over to the task here. The requests go out in their order,
//! many with one system call, and the answers come back in the same order.
//!
//! Any error on the connection ends it, and the calls on it get no answer. They repeat their requests over connections
//! of their own; every request can be repeated. The calls themselves watch whether bytes move on the connection, as
//! they do on their own.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_types::{Nonce, Receipt, SealedGrant};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::health::Health;
use super::link::{Broken, ConnectError, Link, Receiver, Refused, Sender, put_request};
use super::progress::Watch;
use crate::control::wire::{Hello, KINDS_SINCE, Op, RequestKind, TcpRequest};

/// Maximum number of requests that wait to be sent or for their answer.
const PLACES: usize = 128;
/// Bytes that are sent, or received, with one system call.
const TOGETHER: usize = 64 << 10;
/// Time before a connection is tried again that could not be made.
const AGAIN: Duration = Duration::from_secs(5);

/// Handle of the task that runs a shared connection. The task ends when this value and every place that it gave out are
/// dropped, or when the connection breaks.
pub(crate) struct Pipe {
    hello: Hello,
    begun: Instant,
    calls: mpsc::UnboundedSender<PendingRequest>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Free places. It has none until the connection is made.
    places: Arc<Semaphore>,
    /// Watch on the connection, set when it is made.
    watch: OnceLock<Watch>,
}

/// Place for a request on a connection.
pub(crate) struct Place {
    calls: mpsc::UnboundedSender<PendingRequest>,
    shared: Arc<Shared>,
    permit: OwnedSemaphorePermit,
}

/// A request of a small call.
pub(crate) struct PipedRequest {
    pub(crate) kind: RequestKind,
    pub(crate) grant: SealedGrant,
    pub(crate) ops: Vec<Op>,
    /// The bytes of a write.
    pub(crate) payload: Vec<u8>,
}

/// Answer of the store to one request.
pub(crate) struct PipedReply {
    /// Verdicts, one for each operation, with the receipts of the ranges that it has sealed.
    pub(crate) verdicts: Vec<Result<Option<Receipt>, Refused>>,
    /// The bytes of all operations, if it was a read; unspecified for those that were refused.
    pub(crate) payload: Vec<u8>,
}

/// A request, and the call that waits for its answer.
struct PendingRequest {
    asked: PipedRequest,
    to: oneshot::Sender<PipedReply>,
    _permit: OwnedSemaphorePermit,
}

/// Requests that were sent, with their ids.
#[derive(Default)]
struct InFlight {
    calls: Mutex<VecDeque<(u64, PendingRequest)>>,
    /// Notified when a request is added.
    more: Notify,
}

impl Pipe {
    /// Starts the task of a connection.
    fn new(health: Arc<Health>, hello: Hello) -> Self {
        let (calls, asked) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { places: Arc::new(Semaphore::new(0)), watch: OnceLock::new() });
        let of_task = shared.clone();
        tokio::spawn(async move {
            let served = serve(&health, hello, asked, &of_task);
            if let Some(why) = health.given_up.run_until_cancelled(served).await {
                tracing::debug!(address = health.address, why, "the shared connection has ended");
            }
            of_task.places.close();
        });
        Self { hello, begun: Instant::now(), calls, shared }
    }

    /// Returns the pipe in `kept` for the memory that `hello` names, or a new one. Returns none while `kept` is for
    /// other memory, and for a while after a connect failed.
    pub(crate) fn get<'a>(
        kept: &'a mut Option<Self>,
        health: &Arc<Health>,
        hello: Hello,
    ) -> Option<&'a Self> {
        let ended = |pipe: &mut Self| {
            let is_open = pipe.shared.watch.get().is_some();
            pipe.calls.is_closed() && (is_open || pipe.begun.elapsed() >= AGAIN)
        };
        kept.take_if(ended);
        Some(&*kept.get_or_insert_with(|| Self::new(health.clone(), hello)))
            .filter(|pipe| pipe.hello == hello && !pipe.calls.is_closed())
    }

    /// Waits for a place on the connection, also while it is being made; `None` if it breaks.
    pub(crate) fn place(&self) -> impl Future<Output = Option<Place>> + use<> {
        let (calls, shared) = (self.calls.clone(), self.shared.clone());
        async move {
            let permit = shared.places.clone().acquire_owned().await.ok()?;
            Some(Place { calls, shared, permit })
        }
    }
}

impl Place {
    /// Returns a watch on the connection; `None` before it is made.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.shared.watch.get().map(Watch::again)
    }

    /// Sends a request, and waits for the answer; `None` if the connection breaks.
    pub(crate) async fn ask(self, asked: PipedRequest) -> Option<PipedReply> {
        let Self { calls, permit, .. } = self;
        let (to, answer) = oneshot::channel();
        calls.send(PendingRequest { asked, to, _permit: permit }).ok()?;
        tokio::select! {
            biased;
            answer = answer => answer.ok(),
            // Also ends a call that was handed over just after the task had ended.
            () = calls.closed() => None,
        }
    }
}

/// Connects, and carries requests until the connection breaks or every handle is dropped; returns why.
async fn serve(
    health: &Health,
    hello: Hello,
    mut asked: mpsc::UnboundedReceiver<PendingRequest>,
    shared: &Shared,
) -> String {
    let made = Link::connect(&health.address, hello, &health.options, &health.moved);
    let mut link = match made.await {
        Ok(link) => link,
        Err(ConnectError::Failed(why) | ConnectError::TooLong(why)) => return why,
        Err(ConnectError::Refused(refused)) => return refused.reason,
    };
    if link.version() < KINDS_SINCE {
        return format!("the store speaks version {} of the transfer protocol", link.version());
    }
    link.receiver.read_ahead(TOGETHER);
    // Set only here, so this succeeds.
    let _ = shared.watch.set(link.watch());
    shared.places.add_permits(PLACES);
    let in_flight = InFlight::default();
    tokio::select! {
        ended = send_all(&mut link.sender, link.nonce, &mut asked, &in_flight) => match ended {
            Ok(()) => "nobody uses it".to_owned(),
            Err(broken) => broken.to_string(),
        },
        broken = receive_all(&mut link.receiver, &in_flight) => broken.to_string(),
    }
}

/// Sends requests until every handle is dropped.
async fn send_all(
    sender: &mut Sender,
    nonce: Option<Nonce>,
    asked: &mut mpsc::UnboundedReceiver<PendingRequest>,
    in_flight: &InFlight,
) -> Result<(), Broken> {
    let (mut out, mut next_id) = (Vec::new(), 1_u64);
    while let Some(first) = asked.recv().await {
        let mut next = Some(first);
        while let Some(mut call) = next.take() {
            // A call that is over asks for nothing.
            if !call.to.is_closed() {
                let PipedRequest { kind, grant, ops, payload } = &mut call.asked;
                put_request(&mut out, (next_id, *kind, ops.len() as u16), grant, nonce, |out| {
                    ops.iter().for_each(|op| op.encode(out));
                });
                out.append(payload);
                // Before its first byte is sent, because the answer is expected from then on.
                in_flight.calls.lock().push_back((next_id, call));
                next_id += 1;
            }
            next = if out.len() < TOGETHER { asked.try_recv().ok() } else { None };
        }
        in_flight.more.notify_one();
        sender.send(&out).await?;
        out.clear();
    }
    Ok(())
}

/// Receives answers until the connection breaks.
async fn receive_all(receiver: &mut Receiver, in_flight: &InFlight) -> Broken {
    loop {
        let next = in_flight.calls.lock().pop_front();
        let Some((id, call)) = next else {
            tokio::select! {
                biased;
                () = in_flight.more.notified() => continue,
                // No answer is expected.
                () = receiver.unexpected() => return Broken::Closed,
            }
        };
        let PendingRequest { asked, to, .. } = call;
        match receive(receiver, id, &asked).await {
            // The call may have ended.
            Ok(answer) => drop(to.send(answer)),
            Err(broken) => return broken,
        }
    }
}

async fn receive(receiver: &mut Receiver, id: u64, asked: &PipedRequest) -> Result<PipedReply, Broken> {
    let (ops, reads) = (&asked.ops, asked.kind == RequestKind::Tcp(TcpRequest::Read));
    let whole = receiver.reply(id).await?;
    let bytes = if reads && whole.is_ok() { ops.iter().map(|op| op.len).sum::<u64>() as usize } else { 0 };
    let (mut verdicts, mut payload, mut at) = (Vec::with_capacity(ops.len()), vec![0; bytes], 0);
    for Op { len, .. } in ops {
        let mut verdict = whole.clone().map(|()| None);
        if verdict.is_ok() {
            verdict = receiver.verdict().await?;
        }
        if reads && verdict.is_ok() {
            receiver.read_exact(&mut payload[at..at + *len as usize]).await?;
            verdict = receiver.verdict().await?;
        }
        at += *len as usize;
        verdicts.push(verdict);
    }
    Ok(PipedReply { verdicts, payload })
}
