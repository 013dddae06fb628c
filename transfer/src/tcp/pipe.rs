//! A connection that small calls share: each sends its request without waiting for the answers to those before.
//!
//! As long as a connection is free, a call has one for itself, without copies and without another task. When all are taken, by
//! large transfers or by many calls, a small call hands its request over to the task here. The requests go out in their order,
//! many with one system call, and the answers come back in the same order. A call that is dropped takes nothing along: its request
//! may still be carried out, as one that was sent otherwise, and nobody waits for the answer.
//!
//! Whatever goes wrong on the connection ends it, and the calls on it get no answer. They repeat their request over connections of
//! their own, as every request can be repeated, and learn there what is wrong with the store.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::health::Health;
use super::link::{Broken, ConnectError, Link, Receiver, Refused, Sender};
use crate::wire::{Hello, KINDS_SINCE};

/// Maximum number of requests that wait to be sent, and of those whose answers are awaited.
const WAITING: usize = 128;
/// Bytes that are sent with one system call, or received.
const TOGETHER: usize = 64 << 10;
/// Longer than anybody waits: calls have deadlines of their own.
const EVER: Duration = Duration::from_secs(1 << 30);

/// The way to the task of a connection. The task ends with this value, or when the connection breaks.
pub(super) struct Pipe {
    pub(super) hello: Hello,
    calls: mpsc::Sender<Call>,
}

/// A request, and who waits for the answer.
type Call = (Asked, oneshot::Sender<Answer>);

/// Room for a request.
pub(super) type Room = mpsc::OwnedPermit<Call>;

/// A request.
pub(super) struct Asked {
    /// All of it, with any number for its first 8 bytes, which are the id.
    pub(super) request: Vec<u8>,
    /// Lengths of its operations.
    pub(super) lens: Vec<u64>,
    /// Whether the store sends the bytes of the operations.
    pub(super) reads: bool,
}

/// The store's answer.
pub(super) struct Answer {
    /// To each operation.
    pub(super) verdicts: Vec<Result<(), Refused>>,
    /// The bytes of all operations, if it was a read; unspecified for those that were refused.
    pub(super) payload: Vec<u8>,
}

/// A request that was sent.
struct Awaited {
    id: u64,
    lens: Vec<u64>,
    reads: bool,
    to: oneshot::Sender<Answer>,
}

/// Requests that were sent, and have no answer yet.
#[derive(Default)]
struct InFlight {
    requests: Mutex<VecDeque<Awaited>>,
    /// Told when there are fewer.
    fewer: Notify,
}

impl Pipe {
    /// Starts the task.
    pub(super) fn new(health: Arc<Health>, hello: Hello) -> Self {
        let (calls, asked) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            let ended = health.given_up.run_until_cancelled(serve(&health, hello, asked)).await;
            if let Some(Err(why)) = ended {
                tracing::debug!(address = health.address, why, "no connection for small calls any more");
            }
        });
        Self { hello, calls }
    }

    /// Whether the task has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.calls.is_closed()
    }

    /// Waits for room for a request. There is none if the connection breaks.
    pub(super) fn room(&self) -> impl Future<Output = Option<Room>> + use<> {
        let calls = self.calls.clone();
        async move { calls.reserve_owned().await.ok() }
    }
}

/// Hands a request over. There is no answer if the connection breaks.
pub(super) fn ask(room: Room, asked: Asked) -> oneshot::Receiver<Answer> {
    let (to, answer) = oneshot::channel();
    room.send((asked, to));
    answer
}

/// Carries the requests, over one connection as long as it is good.
async fn serve(health: &Health, hello: Hello, mut asked: mpsc::Receiver<Call>) -> Result<(), String> {
    let (mut link, mut next_id) = (None, 1);
    while let Some(first) = asked.recv().await {
        let usable = link.take().filter(Link::is_fresh);
        let mut open = match usable {
            Some(open) => open,
            None => connect(health, hello).await?,
        };
        let watch = open.watch();
        let Link { sender, receiver, .. } = &mut open;
        tokio::select! {
            biased;
            carried = carry(sender, receiver, &mut next_id, first, &mut asked) => {
                carried.map_err(|broken| broken.to_string())?;
            }
            _silent = health.look(watch, Instant::now() + EVER) => return Err("no byte moved".to_owned()),
        }
        link = Some(open);
    }
    Ok(())
}

async fn connect(health: &Health, hello: Hello) -> Result<Link, String> {
    let options = health.options;
    let made = Link::connect(&health.address, hello, options.connect_timeout, &health.moved, options.sums);
    let mut link = made.await.map_err(|error| match error {
        ConnectError::Failed(why) | ConnectError::TooLong(why) => why,
        ConnectError::Refused(refused) => refused.reason,
    })?;
    if link.version() < KINDS_SINCE {
        return Err(format!("the store speaks version {} of the transfer protocol", link.version()));
    }
    link.receiver.read_ahead(TOGETHER);
    Ok(link)
}

/// Carries `first` and all requests that come before it and those after it are answered.
async fn carry(
    sender: &mut Sender,
    receiver: &mut Receiver,
    next_id: &mut u64,
    first: Call,
    asked: &mut mpsc::Receiver<Call>,
) -> Result<(), Broken> {
    let in_flight = InFlight::default();
    tokio::select! {
        // First, so that there is something to wait for.
        biased;
        broken = send_all(sender, next_id, first, asked, &in_flight) => Err(broken),
        received = receive_all(receiver, &in_flight) => received,
    }
}

/// Sends requests until the connection breaks.
///
/// A request is in flight before its first byte is sent. So when nothing is in flight, this waits for a request, and can be
/// dropped.
async fn send_all(
    sender: &mut Sender,
    next_id: &mut u64,
    first: Call,
    asked: &mut mpsc::Receiver<Call>,
    in_flight: &InFlight,
) -> Broken {
    let (mut out, mut next) = (Vec::new(), Some(first));
    loop {
        let Some((mut asked_now, to)) = next.take() else {
            next = asked.recv().await;
            match next {
                Some(_) => continue,
                // The pool is gone. Those in flight are still answered.
                None => std::future::pending().await,
            }
        };
        let id = *next_id;
        *next_id += 1;
        asked_now.request[..8].copy_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&asked_now.request);
        let Asked { lens, reads, .. } = asked_now;
        let count = {
            let mut requests = in_flight.requests.lock();
            requests.push_back(Awaited { id, lens, reads, to });
            requests.len()
        };
        next = if out.len() < TOGETHER && count < WAITING { asked.try_recv().ok() } else { None };
        if next.is_none() {
            if let Err(broken) = sender.send(&mut [IoSlice::new(&out)]).await {
                return broken;
            }
            out.clear();
            while in_flight.requests.lock().len() >= WAITING {
                in_flight.fewer.notified().await;
            }
        }
    }
}

/// Receives answers until nothing is in flight.
async fn receive_all(receiver: &mut Receiver, in_flight: &InFlight) -> Result<(), Broken> {
    loop {
        // It stays in flight until it is answered.
        let Some((id, lens, reads)) = in_flight
            .requests
            .lock()
            .front_mut()
            .map(|next| (next.id, std::mem::take(&mut next.lens), next.reads))
        else {
            return Ok(());
        };
        let answer = receive(receiver, id, &lens, reads).await?;
        let awaited = in_flight.requests.lock().pop_front();
        in_flight.fewer.notify_one();
        if let Some(awaited) = awaited {
            // The call may be gone.
            let _ = awaited.to.send(answer);
        }
    }
}

async fn receive(receiver: &mut Receiver, id: u64, lens: &[u64], reads: bool) -> Result<Answer, Broken> {
    let whole = receiver.reply(id).await?;
    let bytes = if reads && whole.is_ok() { lens.iter().sum::<u64>() as usize } else { 0 };
    let (mut verdicts, mut payload, mut at) = (Vec::with_capacity(lens.len()), vec![0; bytes], 0);
    for len in lens {
        let mut verdict = whole.clone();
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
    Ok(Answer { verdicts, payload })
}
