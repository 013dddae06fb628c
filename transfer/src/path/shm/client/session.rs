//! The connection to a store that shares its memory, and the memory that both ends may use while it lasts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_types::{Grant, GrantedRange, SealedGrant, SegmentNumber};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, timeout, timeout_at};

use crate::memory::{Area, Mapping};
use crate::path::shm::files;
use crate::path::shm::record::Message;
use crate::transport::ReadOp;

/// Time between two messages about reads, and looks for areas that are gone.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the store's answer, and for it to take a message. After it, the session ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Memory that a store and this process share while their connection lasts.
pub(crate) struct Session {
    /// Address of the store's memory over TCP.
    pub(crate) address: String,
    segments: HashMap<SegmentNumber, SharedSegment>,
    /// `None` with a store of an earlier version, which takes no messages.
    messages: Option<Messages>,
    /// Bytes that went through it and were found good.
    moved: AtomicU64,
}

pub(crate) struct SharedSegment {
    pub(crate) bytes: Mapping,
    /// `None` if the store shares none.
    pub(crate) stamps: Option<Mapping>,
}

/// A read of the caller, and where its bytes are.
pub(crate) struct LocatedRead<'a, 'b> {
    pub(crate) segment: &'a SharedSegment,
    pub(crate) bytes: Range<u64>,
    /// Index of their allocation.
    pub(crate) index: u64,
    pub(crate) op: &'a mut ReadOp<'b>,
}

struct Messages {
    offers: mpsc::UnboundedSender<Offer>,
    gone: Arc<Notify>,
    /// The areas that were offered, by our number.
    areas: Mutex<HashMap<u64, Offered>>,
    /// Reads that were not reported to the store yet.
    reads: AtomicU64,
    bytes_read: AtomicU64,
}

struct Offer {
    area: Arc<Area>,
    answer: oneshot::Sender<Option<u64>>,
}

struct Offered {
    area: Weak<Area>,
    /// Number that the store gave the area; `None` until it answers, or if it refuses the area.
    number: Option<u64>,
}

/// The other end of [`Messages::offers`].
pub(crate) struct Offers(mpsc::UnboundedReceiver<Offer>);

impl Session {
    /// Creates a session. With `sharing` the caller must run [`Session::serve`] to keep the connection. `gone` is
    /// notified when an area of this process is dropped.
    pub(crate) fn new(
        address: String,
        segments: HashMap<SegmentNumber, SharedSegment>,
        sharing: bool,
        gone: Arc<Notify>,
    ) -> (Self, Offers) {
        let (offers, received) = mpsc::unbounded_channel();
        let messages = sharing.then(|| Messages {
            offers,
            gone,
            areas: Mutex::default(),
            reads: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
        });
        (Self { address, segments, messages, moved: AtomicU64::new(0) }, Offers(received))
    }

    /// Whether every segment has stamps.
    pub(crate) fn is_stamped(&self) -> bool {
        self.segments.values().all(|segment| segment.stamps.is_some())
    }

    /// Whether the store takes areas.
    pub(crate) fn takes_areas(&self) -> bool {
        self.messages.is_some()
    }

    /// Finds the bytes of reads under a grant; `None` if some are not here.
    pub(crate) fn find<'a, 'b>(
        &'a self,
        grant: &SealedGrant,
        ops: &'a mut [ReadOp<'b>],
    ) -> Option<Vec<LocatedRead<'a, 'b>>> {
        let ranges = Grant::peek(&grant.bytes).ok()?.ranges;
        let find = |op: &'a mut ReadOp<'b>| {
            let GrantedRange { segment, offset, len, index } =
                *ranges.get(usize::try_from(op.range).ok()?)?;
            let segment = self.segments.get(&segment)?;
            let (start, wanted) = (offset.checked_add(op.offset)?, op.len());
            let inside = op.offset.checked_add(wanted)? <= len && segment.bytes.contains(start, wanted);
            inside.then_some(LocatedRead { segment, bytes: start..start + wanted, index, op })
        };
        ops.iter_mut().map(find).collect()
    }

    /// Counts bytes that went through it.
    pub(crate) fn note_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Notes reads that were found good without the store, for its metrics.
    pub(crate) fn note_reads(&self, reads: u64, bytes: u64) {
        if let Some(messages) = &self.messages {
            messages.reads.fetch_add(reads, Ordering::Relaxed);
            messages.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the store's number of an area; `None` while it has none. The first call offers the area, and waits until `until`
    /// for the answer.
    pub(crate) async fn number_of(&self, area: &Arc<Area>, until: Instant) -> Option<u64> {
        let messages = self.messages.as_ref()?;
        match messages.areas.lock().entry(area.number) {
            Entry::Occupied(offered) => return offered.get().number,
            Entry::Vacant(new) => drop(new.insert(Offered { area: Arc::downgrade(area), number: None })),
        }
        let (answer, answered) = oneshot::channel();
        messages.offers.send(Offer { area: area.clone(), answer }).ok()?;
        timeout_at(until, answered).await.ok()?.ok()?
    }

    /// Keeps the connection until the store ends it, after which nothing of the session must be used.
    pub(crate) async fn serve(&self, mut stream: UnixStream, offers: Offers) {
        let ended = match &self.messages {
            Some(messages) => messages.serve(&mut stream, offers).await,
            // A store of an earlier version sends nothing more.
            None => stream.read(&mut [0]).await.map(drop),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a store does not share its memory any more");
        }
    }
}

impl Messages {
    async fn serve(&self, stream: &mut UnixStream, Offers(mut offers): Offers) -> io::Result<()> {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // The store has closed it, or breaks the protocol.
                _ = stream.readable() => match stream.try_read(&mut [0]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    ended => return ended.map(drop),
                },
                Some(Offer { area, answer }) = offers.recv() => {
                    let number = timeout(ANSWER_WITHIN, offer(stream, &area)).await??;
                    if let Some(offered) = self.areas.lock().get_mut(&area.number) {
                        offered.number = number;
                    }
                    // The call that asked may have ended.
                    let _ = answer.send(number);
                }
                _ = tick.tick() => timeout(ANSWER_WITHIN, self.tell(stream)).await??,
                // A notification that is missed is handled at the next tick.
                () = self.gone.notified() => timeout(ANSWER_WITHIN, self.tell(stream)).await??,
            }
        }
    }

    async fn tell(&self, stream: &UnixStream) -> io::Result<()> {
        let (reads, bytes) =
            (self.reads.swap(0, Ordering::Relaxed), self.bytes_read.swap(0, Ordering::Relaxed));
        if (reads, bytes) != (0, 0) {
            files::send(stream, &Message::Read { reads, bytes }.encode(), &[]).await?;
        }
        let gone: Vec<u64> = {
            let is_gone = |_: &u64, offered: &mut Offered| offered.area.strong_count() == 0;
            self.areas.lock().extract_if(is_gone).filter_map(|(_, offered)| offered.number).collect()
        };
        for number in gone {
            files::send(stream, &Message::AreaEnd { number }.encode(), &[]).await?;
        }
        Ok(())
    }
}

/// Offers an area to the store, and returns its number there; `None` if it does not take it.
async fn offer(stream: &mut UnixStream, area: &Area) -> io::Result<Option<u64>> {
    let Some(file) = area.file() else { return Ok(None) };
    files::send(stream, &Message::Area { len: area.len() as u64 }.encode(), &[file]).await?;
    let mut number = [0; 8];
    stream.read_exact(&mut number).await?;
    Ok(Some(u64::from_be_bytes(number)).filter(|number| *number != 0))
}
