//! The fence: decides which grants may still touch which bytes of a segment.
//!
//! The index of a grant orders the owners of the same bytes. The fence remembers, per range, the highest index that has
//! written it, and refuses every lower one. So a late writer does no harm and a late reader is refused, without a clock
//! or a message:
//!
//! - **Late writer, arriving.** A write registers the full range of its grant before its first byte. A lower index is
//!   then refused when it arrives.
//! - **Late writer, in mid-transfer.** Each write has a [`WritePass`]. It does each non-blocking receive into the
//!   segment, or with TLS each copy of decrypted bytes, under the pass's lock, after checking that the pass isn't superseded; a
//!   receive that fills several writes holds all their locks. A newer write marks every older pass that it overlaps, under that pass's lock, before it
//!   writes. So the older write has either finished its receive before the newer one's first byte, or sees the mark and
//!   receives no more.
//! - **Late reader.** Each read has a [`ReadPass`], as a write has: the server copies each piece into the socket, or with TLS
//!   into a buffer that is encrypted next, under the pass's lock, after checking that it isn't superseded. A newer write marks the passes of the reads that it overlaps,
//!   under their locks, before its first byte. So a reader gets no byte of a newer owner, and is told in the trailer that
//!   its own are not all good.
//! - **Late reader that nobody stops.** One that has copied bytes past the server, or that runs in this process, looks the index
//!   up after its last byte, as in a seqlock: a newer write registers before its first byte, so whoever copied such a byte
//!   finds the write registered.
//! - **Late reader of this host.** A reader that maps the segment looks at its [stamps](crate::memory::stamps), to which the server adds
//!   those of an admitted write before its first byte.
//! - **The same put, twice.** The connections of a striped put, and its retries, have one index and share one pass.
//!   They don't fence each other: an older connection may write over the bytes of a newer one. These are the same
//!   bytes, because each call draws its own put id and the index belongs to that put alone.
//! - **The same put, after its end.** A put seals its ranges with its last write, before it is ended and can be read. From
//!   then on writes of its own index are refused, and those under way end, as if a newer write had come. So the holder
//!   of a write grant can't change a value that others read.
//! - **A put that has not written.** Its ranges still hold the bytes of their former owners. So a range is sealed only once
//!   each of its bytes has landed, under its own index: the records say which have. A write lands as a whole, when its
//!   last byte is there.
//!
//! - **A device that moves the bytes.** A network card that fetches a write's bytes holds the write's pass for as long as it
//!   may touch the segment ([`DeviceHold`]), because no lock can stop it. A newer write, and a seal, take the range at once,
//!   mark the pass and tell the transfer to cut the card off. But nobody is let in, or told that the range is sealed, before
//!   the last such hold is gone, also when the record is forgotten meanwhile.
//!
//! **How long.** An entry may be forgotten once no grant of a lower index can be valid. Such a grant was made before
//! the newer write arrived, so it expires within one grant lifetime from then, in cluster time. An entry is stamped
//! with the time known here, which may lag by as long as a heartbeat takes; keeping it for twice the lifetime covers
//! that amply.
//!
//! An entry is forgotten only when a *master has said* a time past its end. The local clock would forget too soon: it
//! runs on while cluster time stands still and grants do not expire. A request that takes so long that entries to check
//! it against may be gone is refused. A write in flight is ended by a mark on its pass when its own entry goes.
//! Everything else is refused because its grant expired before the horizon, up to which entries have been forgotten.
//!
//! **How much.** Many writes a second make many entries in two minutes. An entry takes at most 64 bytes, and all
//! entries share a budget. A write that would exceed it is not admitted, so nothing is forgotten too soon. It waits
//! until a master's time lets older entries go. If that takes too long for its client, it is refused, and the client
//! tries again.

mod budget;
mod generations;
mod map;
mod reads;
mod records;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

use mc_types::ClusterTime;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::budget::Budget;
use self::budget::Held;
pub use self::budget::fence_limit;
use self::map::FenceMap;
use crate::authority::Times;

/// Number of chunks of records that one [`Fence::forget`] searches to make room for another: some 10 us.
const SWEPT_FOR_ROOM: usize = 32;

/// The fence of one segment.
pub(crate) struct Fence {
    map: Mutex<FenceMap<WritePass>>,
    budget: Arc<Budget>,
}

/// Reason why the fence refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fenced {
    /// A later allocation owns the bytes.
    #[error(
        "the grant is superseded: its range was allocated again as number {by}, the grant is of number {index}"
    )]
    Superseded { index: u64, by: u64 },
    /// A later allocation took the bytes while those of this write came in, or another connection of the same put sealed
    /// them.
    #[error(
        "the write of allocation {index} was superseded while its bytes came in: its range was allocated again, or \
         its put has written its last byte over another connection"
    )]
    Ended { index: u64 },
    /// Two different ranges of one allocation overlap: no master grants that.
    #[error("the range overlaps another one of the same allocation {index}")]
    Overlap { index: u64 },
    /// The request took so long that the records to check it against may be forgotten.
    #[error("the grant expired while its request was under way")]
    Forgotten,
    /// The put itself has written its last byte to the range.
    #[error("the range is sealed: the put of allocation {index} has written its last byte")]
    Sealed { index: u64 },
    /// The put has not written every byte of the range, and asks to seal it.
    #[error(
        "the range can't be sealed: the put of allocation {index} has not written {missing} bytes of it. Write them first"
    )]
    Incomplete { index: u64, missing: u64 },
    /// The put has written to the range in an order that leaves too many gaps.
    #[error(
        "the writes of allocation {index} leave more than 4,000 gaps in the range: write it in order, or in longer pieces"
    )]
    Parts { index: u64 },
    /// A network card still moves bytes of an earlier write or read of the range. It was told to stop.
    #[error("a network card still moves bytes of an earlier write or read of the range: try again")]
    InTransfer,
    /// There is no memory for another record until older ones may be forgotten.
    #[error(
        "this store has no memory left to remember another write, which it does for two minutes: try again"
    )]
    Full,
}

/// A claim to a range, of a write or a read, which a later write ends.
trait Supersede: Clone + Default {
    /// Ends the claim, and returns when everything done under it has stopped, but for devices.
    fn supersede(&self);

    /// Whether a device may still do something under the claim.
    fn has_device(&self) -> bool;

    /// Whether anything but the map holds the claim.
    fn is_in_use(&mut self) -> bool;
}

/// Permission to receive into a range, until a later index takes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WritePass(Arc<RwLock<Pass>>);

#[derive(Debug, Default)]
struct Pass {
    superseded: bool,
    /// Transfers whose device may touch the range.
    devices: SmallVec<[Arc<CutOff>; 1]>,
}

/// A hold on a pass, which keeps it from being superseded.
pub(crate) struct HeldPass<'a> {
    _lock: RwLockReadGuard<'a, Pass>,
}

impl<'a> HeldPass<'a> {
    fn unless_superseded(pass: RwLockReadGuard<'a, Pass>) -> Option<Self> {
        (!pass.superseded).then_some(Self { _lock: pass })
    }
}

/// A device's hold on a pass. A newer write may supersede the pass meanwhile, but it gets the range only after the hold
/// is dropped. So drop the hold only when the device can't touch the range any more.
pub(crate) struct DeviceHold {
    pass: WritePass,
    cut_off: Arc<CutOff>,
}

/// Signal to cut the device of a transfer off.
#[derive(Debug)]
pub(crate) struct CutOff {
    ordered: CancellationToken,
    /// Notified when a hold is dropped.
    ended: Arc<Notify>,
}

impl CutOff {
    /// Creates a signal that is not set. `ended` is notified when a hold that uses it is dropped.
    pub(crate) fn new(ended: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { ordered: CancellationToken::new(), ended })
    }

    /// Returns once the signal is set: the device must be cut off.
    pub(crate) async fn ordered(&self) {
        self.ordered.cancelled().await;
    }
}

impl Drop for DeviceHold {
    fn drop(&mut self) {
        let mut pass = self.pass.0.write();
        if let Some(at) = pass.devices.iter().position(|cut_off| Arc::ptr_eq(cut_off, &self.cut_off)) {
            pass.devices.swap_remove(at);
        }
        drop(pass);
        self.cut_off.ended.notify_waiters();
    }
}

impl WritePass {
    /// Keeps the pass from being superseded until the returned hold is dropped; `None` when it is superseded already.
    /// Meanwhile the caller may do one non-blocking receive. Writers of the same put share the pass and don't exclude
    /// each other.
    pub(crate) fn hold(&self) -> Option<HeldPass<'_>> {
        HeldPass::unless_superseded(self.0.read())
    }

    /// [`Self::hold`] for a caller that holds a pass already: `None` also when it would have to wait, because that
    /// could deadlock. If this is the same pass (two operations of one put), a newer write may wait for the first hold,
    /// and the second hold behind it. Two callers that hold one pass each and wait for the other's could also be stuck.
    pub(crate) fn try_hold(&self) -> Option<HeldPass<'_>> {
        HeldPass::unless_superseded(self.0.try_read()?)
    }

    /// Keeps the range for a device that is about to touch it; `None` when the pass is superseded already. `cut_off` is
    /// signalled when another write or a seal needs the range.
    pub(crate) fn hold_for_device(&self, cut_off: &Arc<CutOff>) -> Option<DeviceHold> {
        let mut pass = self.0.write();
        if pass.superseded {
            return None;
        }
        pass.devices.push(cut_off.clone());
        Some(DeviceHold { pass: self.clone(), cut_off: cut_off.clone() })
    }
}

impl Supersede for WritePass {
    fn supersede(&self) {
        let mut pass = self.0.write();
        // No hold can be taken from here on. Signal the existing ones to end.
        pass.superseded = true;
        pass.devices.iter().for_each(|cut_off| cut_off.ordered.cancel());
    }

    fn has_device(&self) -> bool {
        !self.0.read().devices.is_empty()
    }

    fn is_in_use(&mut self) -> bool {
        // When it returns false, everything done under the other clones is over and visible here.
        Arc::get_mut(&mut self.0).is_none()
    }
}

/// Permission to send bytes of a range, until a later index takes it. The read ends when this is dropped.
pub(crate) struct ReadPass<'f> {
    fence: &'f Fence,
    range: Range<u64>,
    index: u64,
    expires: ClusterTime,
    number: u64,
    pass: WritePass,
}

impl ReadPass<'_> {
    /// [`WritePass::hold`]: meanwhile the caller may do one non-blocking send of the bytes.
    pub(crate) fn hold(&self) -> Option<HeldPass<'_>> {
        self.pass.hold()
    }

    /// [`WritePass::hold_for_device`].
    pub(crate) fn hold_for_device(&self, cut_off: &Arc<CutOff>) -> Option<DeviceHold> {
        self.pass.hold_for_device(cut_off)
    }

    /// Checks that all bytes that were sent are those of the read's index.
    pub(crate) fn check(&self) -> Result<(), Fenced> {
        self.fence.check_read(self.range.clone(), self.index, self.expires)
    }
}

impl Drop for ReadPass<'_> {
    fn drop(&mut self) {
        self.fence.map.lock().end_read(&self.range, self.number);
    }
}

impl Fence {
    pub(crate) fn new(grant_lifetime: Duration, budget: Arc<Budget>) -> Self {
        Self { map: Mutex::new(FenceMap::new(grant_lifetime.saturating_mul(2))), budget }
    }

    /// Registers a write of `range` (the full granted range) and ends every older write that overlaps it.
    pub(crate) fn admit_write(
        &self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
        times: Times,
    ) -> Result<WritePass, Fenced> {
        let pass = self.change(|map| {
            map.admit_write(range, index, expires, (times.now, times.heard), self.budget.room())
        })?;
        // Pairs with the fence in `check_read`: a reader that sees a byte written after this sees the registration.
        atomic::fence(Ordering::SeqCst);
        Ok(pass)
    }

    /// Notes that `bytes` have landed, of a `range` that `index` was admitted to write. The caller has written all of them
    /// under its pass.
    pub(crate) fn land(
        &self,
        range: &Range<u64>,
        bytes: &Range<u64>,
        index: u64,
        times: Times,
    ) -> Result<(), Fenced> {
        self.change(|map| map.land(range, bytes, index, times.now, self.budget.room()))
    }

    /// Seals `range` for `index`, which was admitted to write it, if all of its bytes have landed. Those of `landing` have,
    /// as for [`Self::land`].
    pub(crate) fn seal(
        &self,
        range: Range<u64>,
        landing: &Range<u64>,
        index: u64,
        expires: ClusterTime,
        times: Times,
    ) -> Result<(), Fenced> {
        self.change(|map| map.seal(range, landing, index, (expires, times.now), self.budget.room()))
    }

    /// Drops some of the records that may be forgotten; returns whether there are more.
    pub(crate) fn forget(&self, times: Times) -> bool {
        self.change(|map| map.forget(times.heard, SWEPT_FOR_ROOM))
    }

    fn change<T>(&self, change: impl FnOnce(&mut FenceMap<WritePass>) -> T) -> T {
        let mut map = self.map.lock();
        let before = held(&map);
        let changed = change(&mut map);
        self.budget.changed(before, held(&map));
        changed
    }

    /// Admits a read of bytes of `index`.
    pub(crate) fn admit_read(
        &self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
    ) -> Result<ReadPass<'_>, Fenced> {
        let (number, pass) = self.map.lock().admit_read(range.clone(), index, expires)?;
        Ok(ReadPass { fence: self, range, index, expires, number, pass })
    }

    /// Checks that bytes of `range` that were read *before* this call are those of `index`.
    pub(crate) fn check_read(
        &self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
    ) -> Result<(), Fenced> {
        // Orders the reads before the check, on every processor.
        atomic::fence(Ordering::SeqCst);
        self.map.lock().check_read(range, index, expires)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.budget.changed(held(self.map.get_mut()), Held::default());
    }
}

fn held(map: &FenceMap<WritePass>) -> Held {
    Held { records: map.records(), bytes: map.bytes() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use mc_types::ClusterId;

    use super::*;

    fn at(ms: u64) -> Times {
        Times { cluster: ClusterId(1), heard: ClusterTime(ms), now: ClusterTime(ms) }
    }

    const LATER: ClusterTime = ClusterTime(10_000);

    fn fence() -> Fence {
        Fence::new(Duration::from_secs(10), Arc::new(Budget::of(1 << 20)))
    }

    /// Seals a range with its last write, which has brought all of its bytes.
    fn seal(fence: &Fence, range: Range<u64>, index: u64) -> Result<(), Fenced> {
        fence.seal(range.clone(), &range, index, LATER, at(0))
    }

    #[test]
    fn a_later_write_ends_an_earlier_one_in_mid_transfer() {
        let fence = fence();
        let old = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        assert!(old.hold().is_some() && old.try_hold().is_some());
        let new = fence.admit_write(50..150, 6, LATER, at(0)).unwrap();
        assert!(old.hold().is_none(), "superseded, also where the ranges don't overlap");
        assert!(old.try_hold().is_none());
        assert!(new.hold().is_some());
        assert_eq!(
            fence.admit_write(0..100, 5, LATER, at(0)).unwrap_err(),
            Fenced::Superseded { index: 5, by: 6 },
            "and it does not come back"
        );
    }

    #[test]
    fn writers_of_one_put_do_not_fence_each_other() {
        let fence = fence();
        let first = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        let second = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        // Neither excludes the other while it receives.
        let held = first.hold();
        assert!(held.is_some() && second.hold().is_some());
    }

    #[test]
    fn one_that_holds_a_pass_does_not_wait_for_it_again() {
        let fence = fence();
        let (first, second) = [(); 2].map(|()| fence.admit_write(0..100, 5, LATER, at(0)).unwrap()).into();
        let held = first.hold();
        thread::scope(|scope| {
            let newer = scope.spawn(|| fence.admit_write(0..100, 6, LATER, at(0)).map(drop));
            // The newer write waits for the hold; a second hold would wait behind it.
            while second.try_hold().is_some() && !newer.is_finished() {
                thread::yield_now();
            }
            drop(held);
            newer.join().unwrap().unwrap();
        });
        assert!(first.hold().is_none());
    }

    #[test]
    fn a_sealed_range_is_final_for_its_own_put_too() {
        let fence = fence();
        let passes =
            [0..100, 100..200, 200..300].map(|range| fence.admit_write(range, 5, LATER, at(0)).unwrap());
        seal(&fence, 100..200, 5).unwrap();
        assert!(passes[0].hold().is_some() && passes[2].hold().is_some(), "others of its batch go on");
        assert!(passes[1].hold().is_none(), "a second connection of the same put");
        let sealed = Fenced::Sealed { index: 5 };
        assert_eq!(fence.admit_write(100..200, 5, LATER, at(0)).unwrap_err(), sealed);
        assert!(fence.admit_write(200..300, 5, LATER, at(0)).is_ok());
        seal(&fence, 100..200, 5).expect("again");
        seal(&fence, 0..100, 5).unwrap();
        assert_eq!(fence.admit_write(0..100, 5, LATER, at(0)).unwrap_err(), sealed);
        assert!(fence.check_read(0..200, 5, LATER).is_ok());
        fence.admit_write(150..160, 6, LATER, at(0)).expect("the next owner");
        assert_eq!(seal(&fence, 100..200, 5).unwrap_err(), Fenced::Superseded { index: 5, by: 6 });
        assert_eq!(seal(&fence, 500..600, 7).unwrap_err(), Fenced::Forgotten, "never written");
    }

    #[test]
    fn a_range_is_sealed_only_once_every_byte_has_landed() {
        let fence = fence();
        let no_bytes = 0..0;
        let try_seal = |landing: &Range<u64>| fence.seal(0..100, landing, 5, LATER, at(0));
        let missing = |missing| Err(Fenced::Incomplete { index: 5, missing });
        fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        assert_eq!(try_seal(&no_bytes), missing(100), "nothing was written");
        fence.land(&(0..100), &(0..40), 5, at(0)).unwrap();
        fence.land(&(0..100), &(30..40), 5, at(0)).unwrap();
        assert_eq!(try_seal(&no_bytes), missing(60), "bytes that are written twice count once");
        assert_eq!(try_seal(&(60..100)), missing(20));
        fence.admit_write(0..100, 5, LATER, at(0)).expect("a seal that is refused seals nothing");
        assert_eq!(try_seal(&(39..60)), Ok(()), "the rest, over another connection");
        assert_eq!(try_seal(&no_bytes), Ok(()), "again");
    }

    #[test]
    fn bytes_that_a_newer_put_took_have_not_landed() {
        let fence = fence();
        fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        fence.land(&(0..100), &(0..100), 5, at(0)).unwrap();
        fence.admit_write(40..60, 6, LATER, at(0)).unwrap();
        // Its writer still believes that it has the range.
        fence.land(&(0..100), &(0..100), 5, at(0)).unwrap();
        let (lost, open) =
            (Fenced::Superseded { index: 5, by: 6 }, Fenced::Incomplete { index: 6, missing: 20 });
        assert_eq!(seal(&fence, 0..100, 5), Err(lost));
        assert_eq!(fence.seal(40..60, &(0..0), 6, LATER, at(0)), Err(open), "by what its predecessor wrote");
    }

    /// Without `check_drained` the newer write is admitted while the card still writes.
    #[test]
    fn a_range_is_given_away_only_when_no_device_touches_it() {
        let fence = fence();
        let old = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        let cut_off = CutOff::new(Arc::default());
        let held = old.hold_for_device(&cut_off).unwrap();
        assert!(!cut_off.ordered.is_cancelled());
        let newer = || fence.admit_write(50..150, 6, LATER, at(0)).map(drop);
        assert_eq!(newer(), Err(Fenced::InTransfer));
        assert!(cut_off.ordered.is_cancelled(), "it is told to stop");
        assert!(old.hold_for_device(&cut_off).is_none(), "and does not come back");
        assert_eq!(newer(), Err(Fenced::InTransfer), "again");
        let by_newer = Fenced::Superseded { index: 5, by: 6 };
        assert_eq!(seal(&fence, 0..100, 5), Err(by_newer), "a torn write is not sealed");
        assert_eq!(
            fence.admit_write(0..100, 5, LATER, at(0)).map(drop),
            Err(by_newer),
            "nor does it come back"
        );
        drop(held);
        newer().unwrap();
    }

    #[test]
    fn a_range_is_sealed_only_when_no_device_touches_it() {
        let fence = fence();
        let first = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        let held = first.hold_for_device(&CutOff::new(Arc::default())).unwrap();
        // The same put over another connection.
        let sealed = || seal(&fence, 0..100, 5);
        let again = || fence.admit_write(0..100, 5, LATER, at(0)).map(drop);
        assert_eq!(sealed(), Err(Fenced::InTransfer));
        assert_eq!(again(), Err(Fenced::InTransfer), "not told that it is sealed either");
        assert_eq!(sealed(), Err(Fenced::InTransfer));
        drop(held);
        assert_eq!(again(), Err(Fenced::Sealed { index: 5 }));
        sealed().unwrap();
    }

    #[test]
    fn a_forgotten_range_is_not_given_away_either() {
        let fence = fence();
        let old = fence.admit_write(0..100, 5, LATER, at(0)).unwrap();
        let held = old.hold_for_device(&CutOff::new(Arc::default())).unwrap();
        drop(old);
        fence.admit_write(500..600, 6, ClusterTime(90_000), at(60_000)).unwrap();
        while fence.forget(at(60_000)) {}
        let newer = |index| fence.admit_write(0..100, index, ClusterTime(90_000), at(60_000)).map(drop);
        assert_eq!(newer(7), Err(Fenced::InTransfer));
        drop(held);
        newer(7).unwrap();
    }

    /// Stress test of a late writer in mid-transfer (see the module): once the newer write is admitted, no receive of
    /// the older one runs. Without the lock around check and receive this fails.
    #[test]
    fn no_receive_of_an_older_write_runs_once_a_newer_one_is_admitted() {
        for round in 0..200 {
            let fence = fence();
            let old = fence.admit_write(0..64, 1, LATER, at(0)).unwrap();
            let (owner, stop) = (AtomicU64::new(1), AtomicBool::new(false));
            thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    let mut received = 0u64;
                    // Alternates between both ways to hold the pass.
                    while let Some(held) =
                        if received.is_multiple_of(2) { old.hold() } else { old.try_hold() }
                    {
                        // A receive that takes a while, like one of 256 KiB.
                        for _ in 0..2_000 {
                            std::hint::spin_loop();
                        }
                        assert_eq!(
                            owner.load(Ordering::SeqCst),
                            1,
                            "wrote over a newer put in round {round}"
                        );
                        drop(held);
                        received += 1;
                        stop.store(true, Ordering::SeqCst);
                    }
                    received
                });
                while !stop.load(Ordering::SeqCst) && !writing.is_finished() {
                    thread::yield_now();
                }
                let newer = fence.admit_write(0..64, 2, LATER, at(0)).map(drop);
                // Also where it was refused, so that the older writer ends.
                owner.store(2, Ordering::SeqCst);
                newer.unwrap();
                assert!(writing.join().unwrap() > 0);
            });
        }
    }

    #[test]
    fn a_newer_write_ends_the_reads_of_its_range_and_waits_for_their_devices() {
        let fence = fence();
        fence.admit_write(0..300, 5, LATER, at(0)).unwrap();
        let read = |range| fence.admit_read(range, 5, LATER).unwrap();
        let (first, second, whole) = (read(0..100), read(100..200), read(0..300));
        let held = second.hold_for_device(&CutOff::new(Arc::default())).unwrap();
        let newer = || fence.admit_write(150..250, 6, LATER, at(0)).map(drop);
        assert_eq!(newer(), Err(Fenced::InTransfer));
        assert!(first.hold().is_some() && second.hold().is_none() && whole.hold().is_none());
        drop(held);
        newer().unwrap();
        let lost = Err(Fenced::Superseded { index: 5, by: 6 });
        assert_eq!([first.check(), second.check(), whole.check()], [Ok(()), lost, lost]);
        let of_newer = fence.admit_read(150..250, 6, LATER).unwrap();
        assert!(newer().is_ok() && of_newer.hold().is_some(), "a writer and a reader of one put");
        drop((first, second, whole, of_newer));
        assert!(fence.map.lock().reads_under_way() == 0);
    }

    /// Stress test of a read in the middle (see the module): once the newer write is admitted, no send of the read runs. Without
    /// the lock around check and send this fails.
    #[test]
    fn no_send_of_a_read_runs_once_a_newer_write_is_admitted() {
        for round in 0..200 {
            let fence = fence();
            fence.admit_write(0..64, 1, LATER, at(0)).unwrap();
            let (owner, sent) = (AtomicU64::new(1), AtomicBool::new(false));
            thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let pass = fence.admit_read(0..64, 1, LATER).unwrap();
                    while let Some(held) = pass.hold() {
                        // A send that takes a while.
                        for _ in 0..2_000 {
                            std::hint::spin_loop();
                        }
                        assert_eq!(owner.load(Ordering::SeqCst), 1, "sent a newer byte in round {round}");
                        drop(held);
                        sent.store(true, Ordering::SeqCst);
                    }
                    assert!(pass.check().is_err());
                });
                while !sent.load(Ordering::SeqCst) && !reading.is_finished() {
                    thread::yield_now();
                }
                let newer = fence.admit_write(0..64, 2, LATER, at(0)).map(drop);
                // Also where it was refused, so that the reader ends.
                owner.store(2, Ordering::SeqCst);
                newer.unwrap();
                reading.join().unwrap();
            });
        }
    }

    /// Stress test of a late reader (see the module): a reader that saw a byte of a newer write is refused.
    #[test]
    fn a_reader_that_saw_a_newer_byte_is_refused() {
        for _ in 0..200 {
            let (fence, byte, admitted) = (fence(), AtomicU64::new(0), AtomicBool::new(false));
            fence.admit_write(0..8, 1, LATER, at(0)).unwrap();
            thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    loop {
                        let is_last = admitted.load(Ordering::SeqCst);
                        let seen = byte.load(Ordering::Relaxed);
                        let verdict = fence.check_read(0..8, 1, LATER);
                        assert!(seen == 0 || verdict.is_err(), "read a newer byte and was not told");
                        assert!(!is_last || verdict.is_err(), "a newer write was admitted before it asked");
                        if verdict.is_err() {
                            break;
                        }
                    }
                });
                let newer = fence.admit_write(0..8, 2, LATER, at(0)).map(drop);
                byte.store(1, Ordering::Relaxed);
                // Also where the newer write was refused, so that the reader ends.
                admitted.store(true, Ordering::SeqCst);
                newer.unwrap();
                reading.join().unwrap();
            });
        }
    }
}
