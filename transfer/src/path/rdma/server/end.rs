//! The store's end of a pair.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_verbs::{Capacity, Op, QueuePair, Sge, Work};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::subnets::Masks;
use crate::control::wire::{End, PROBE_LEN};
use crate::fence::CutOff;
use crate::memory::{BLANK_LEN, Devices, NoRdma, Segment};
use crate::path::rdma::completions::Completions;
use crate::path::rdma::ends::{end_of, link};

// A probe is answered out of these.
const _: () = assert!(PROBE_LEN <= BLANK_LEN);

/// Maximum number of requests posted with one doorbell. Only the last of them completes with an entry.
const WINDOW: usize = 16;
/// Maximum bytes of the requests posted with one doorbell. Some drivers move them before the doorbell returns.
const WINDOW_BYTES: u64 = 2 << 20;
/// Number of windows under way: while one completes the next one is there already.
const WINDOWS: usize = 2;
/// Maximum bytes of one request.
const REQUEST: u64 = 1 << 20;
/// Maximum number of reads under way at once.
const READS_AT_ONCE: u8 = 16;
/// Time between two reports of progress: some in the patience of a client.
const REPORT_EVERY: Duration = Duration::from_millis(75);

/// Direction in which the store's card moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client's memory.
    FromClient,
    /// To the client's memory. Once all bytes are there, the client gets this number as a message.
    ToClient(u32),
}

/// Why a transfer did not end well.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The store cut its card off, because a newer write or a seal took a range.
    CutOff,
    /// The client closed the connection.
    Gone,
    /// The card, the network or the client's card failed.
    Device(String),
}

/// The store's end of a pair.
pub(crate) struct StoreEnd {
    pair: Arc<QueuePair>,
    completions: Completions,
    devices: Arc<Devices>,
    device: usize,
    /// The device and its peer, for errors.
    name: String,
}

/// A part of a segment, and its place in the client's memory.
pub(crate) struct Part {
    local: SmallVec<[Sge; 2]>,
    address: u64,
    key: u32,
}

/// Memory and holds of the requests under way. If these have not all ended, the queue pair is destroyed before the memory
/// and the holds are let go.
struct Flight<'a, K> {
    pair: &'a Arc<QueuePair>,
    kept: Option<K>,
}

impl<K> Drop for Flight<'_, K> {
    fn drop(&mut self) {
        if self.kept.is_none() {
            return;
        }
        if let Err(error) = self.pair.destroy() {
            // The card may overwrite newer objects, now or under the next epoch. Only the end of the process stops it.
            tracing::error!(
                "{error}: this store ends, because its memory can't be kept from being overwritten"
            );
            std::process::abort();
        }
    }
}

/// How much of the segments a device of a store reaches, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reachability {
    Nothing,
    /// Some segments: registering the others failed.
    Part,
    /// All segments, or all that were tried so far.
    All,
}

impl Reachability {
    fn of(segments: &[Arc<Segment>], device: usize) -> Self {
        let at: Vec<_> = segments.iter().filter_map(|segment| segment.registered()?.at(device)).collect();
        match (at.contains(&true), at.contains(&false)) {
            (false, _) => Self::Nothing,
            (true, true) => Self::Part,
            (true, false) => Self::All,
        }
    }
}

impl StoreEnd {
    /// Creates the end for a client's end, connected with it, on a device that reaches the segments.
    pub(crate) fn new(
        devices: &Arc<Devices>,
        segments: &[Arc<Segment>],
        theirs: &End,
    ) -> Result<(Self, End), NoRdma> {
        let count = devices.opened.len();
        let reach: Vec<Reachability> = (0..count).map(|device| Reachability::of(segments, device)).collect();
        let best = reach.iter().copied().max().filter(|best| *best > Reachability::Nothing);
        let best = best.ok_or_else(|| {
            let lacks = segments.iter().find_map(|segment| segment.lacks_registration());
            let why = lacks.map_or("not yet".to_owned(), |why| why.to_string());
            NoRdma(format!("the store's memory is registered with no RDMA device: {why}"))
        })?;
        // The wished one of those in the client's subnet, or else of those on the same kind of network.
        let paths: Vec<_> = devices.opened.iter().map(|device| device.path().ok()).collect();
        let is_on_network = |device: &usize| paths[*device].is_some_and(|path| link(path) == theirs.link);
        let on_network = (0..count).filter(|device| is_on_network(device) && reach[*device] == best);
        let on_network: Vec<usize> = on_network.collect();
        let masks = Masks::of_this_host();
        let is_near =
            |device: &usize| paths[*device].is_some_and(|path| masks.are_near(path.gid.bytes, theirs.gid));
        let near: Vec<usize> = on_network.iter().copied().filter(is_near).collect();
        let choice = if near.is_empty() { &on_network } else { &near };
        let device = choice.get(usize::from(theirs.device) % choice.len().max(1)).copied();
        let device = device.ok_or_else(|| {
            let why = "no RDMA device of the store is up on the same kind of network as the client's";
            NoRdma(devices.why_down().map_or_else(|| why.to_owned(), |down| down.to_string()))
        })?;
        let there = &devices.opened[device];
        let completions =
            Completions::new(there.domain.device(), (WINDOWS * WINDOW + 1) as u32).map_err(NoRdma)?;
        let reads_at_once = there.limits.reads_at_once.min(READS_AT_ONCE).min(theirs.reads_at_once).max(1);
        let capacity = Capacity {
            requests: (WINDOWS * WINDOW) as u32,
            pieces: 2,
            messages: 1,
            reads_at_once,
            remote: false,
        };
        let failed = |error: mc_verbs::VerbsError| NoRdma(error.to_string());
        let pair =
            QueuePair::new(&there.domain, completions.queue(), there.path()?, capacity, rand::random());
        let pair = pair.map_err(failed)?;
        pair.connect(&theirs.into(), devices.timing()).map_err(failed)?;
        let end = end_of(&pair, reads_at_once, u16::try_from(count).unwrap_or(u16::MAX));
        let peer = std::net::Ipv6Addr::from(theirs.gid);
        let name = format!("RDMA device {}, client's queue pair {} at {peer}", there.name(), theirs.pair);
        let pair = Arc::new(pair);
        Ok((Self { pair, completions, devices: devices.clone(), device, name }, end))
    }

    /// Adds a range of a segment, which must lie inside, to the parts for [`Self::carry`].
    pub(crate) fn add_parts(
        &self,
        segment: &Segment,
        (offset, len): (u64, u64),
        (address, key): (u64, u32),
        into: &mut Vec<Part>,
    ) -> Result<(), NoRdma> {
        let missing = || {
            let why = segment.lacks_registration().map_or("not yet".to_owned(), |why| why.to_string());
            NoRdma(format!("segment {} is not registered: {why}", segment.number()))
        };
        let registered = segment.registered().ok_or_else(missing)?;
        let mut at = 0;
        while at < len {
            let part = REQUEST.min(len - at);
            let start = offset + at;
            let local =
                registered.pieces(&self.devices, self.device, start..start + part).ok_or_else(missing)?;
            into.push(Part { local, address: address.wrapping_add(at), key });
            at += part;
        }
        Ok(())
    }

    /// Returns a part of bytes that belong to no object, [`PROBE_LEN`] at most.
    pub(crate) fn probe_part(&self, len: u64, (address, key): (u64, u32)) -> Part {
        let blank = &self.devices.opened[self.device].blank;
        let len = len.min(PROBE_LEN) as u32;
        Part { local: smallvec![Sge { address: blank.address(), len, key: blank.local_key() }], address, key }
    }

    /// Moves all parts, and returns when the card touches neither the segments nor the client's memory any more.
    ///
    /// `kept` holds the segments of the parts, and the holds on their passes. It is dropped after that. `report` is called now and then
    /// if the card completes requests, also those of others: then the card is only busy.
    ///
    /// # Errors
    /// [`Failed`]: also when nothing completes for `stall`. The end is unusable then.
    pub(crate) async fn carry<K>(
        &mut self,
        direction: Direction,
        parts: &[Part],
        kept: K,
        cut_off: &CutOff,
        gone: impl Future<Output = ()>,
        (stall, report): (Duration, impl Fn()),
    ) -> Result<(), Failed> {
        let Self { pair, completions, name, devices, device } = self;
        let completed_there = &devices.opened[*device].completed;
        let op = match direction {
            Direction::FromClient => Op::Read,
            Direction::ToClient(_) => Op::Write,
        };
        let work = |op, local, remote, key| Work { id: 0, op, local, remote, key, signaled: false };
        let mut works: Vec<Work<'_>> =
            parts.iter().map(|part| work(op, &part.local[..], part.address, part.key)).collect();
        if let Direction::ToClient(number) = direction {
            // It has no bytes, so its address and key don't matter.
            works.push(work(Op::WriteAndTell(number), &[], 0, 0));
        }
        let failed = |error: &dyn std::fmt::Display| Failed::Device(format!("{name}: {error}"));
        let mut gone = std::pin::pin!(gone);
        let mut flight = Flight { pair, kept: Some(kept) };
        let moved = async {
            let (mut rest, mut under_way) = (works.as_mut_slice(), 0);
            let (mut reported, mut report_at) =
                (completed_there.load(Ordering::Relaxed), Instant::now() + REPORT_EVERY);
            let mut stalled_at = Instant::now() + stall;
            loop {
                // Some drivers finish the work before this task waits even once.
                tokio::task::consume_budget().await;
                while under_way < WINDOWS && !rest.is_empty() {
                    let mut bytes = 0;
                    let fits = rest.iter().take(WINDOW).take_while(|work| {
                        bytes += work.local.iter().map(|piece| u64::from(piece.len)).sum::<u64>();
                        bytes <= WINDOW_BYTES
                    });
                    let count = fits.count().max(1);
                    let (window, later) = std::mem::take(&mut rest).split_at_mut(count);
                    if let Some(last) = window.last_mut() {
                        last.signaled = true;
                    }
                    // SAFETY: `flight` keeps the memory registered until all requests have completed or the queue pair was
                    // destroyed. The passes and the fence decide what else accesses it.
                    unsafe { pair.post(window) }.map_err(|error| failed(&error))?;
                    under_way += 1;
                    rest = later;
                }
                if under_way == 0 {
                    // Every request has completed.
                    return Ok(());
                }
                let completed = tokio::select! {
                    biased;
                    // Checked first, so that a driver that moves the bytes while they are posted does not keep them
                    // from being noticed.
                    () = cut_off.ordered() => return Err(Failed::CutOff),
                    completed = completions.next() => completed.map_err(|error| failed(&error))?,
                    () = tokio::time::sleep_until(report_at) => {
                        let seen = completed_there.load(Ordering::Relaxed);
                        if seen != reported {
                            report();
                        }
                        (reported, report_at) = (seen, Instant::now() + REPORT_EVERY);
                        continue;
                    }
                    () = &mut gone => return Err(Failed::Gone),
                    () = tokio::time::sleep_until(stalled_at) => {
                        return Err(failed(&format!("nothing completed for {stall:?}")));
                    }
                };
                stalled_at = Instant::now() + stall;
                for completion in completed {
                    completed_there.fetch_add(1, Ordering::Relaxed);
                    completion.result.map_err(|failure| failed(&failure))?;
                    under_way -= 1;
                }
            }
        };
        let moved: Result<(), Failed> = moved.await;
        if moved.is_ok() {
            drop(flight.kept.take());
        } else {
            // Destroying the pair may take long, so it runs on a thread for blocking work. The flight keeps the memory
            // until then, and destroys the pair itself if this fails or the caller stops waiting.
            let pair = flight.pair.clone();
            let _ = tokio::task::spawn_blocking(move || pair.destroy()).await;
        }
        moved
    }
}
