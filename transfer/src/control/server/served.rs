//! The memory that a store serves, and who is let at it: every path asks here before it touches a byte.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use mc_types::{Access, Grant, GrantedRange, ProofKey, Receipt, SealedGrant, SegmentNumber};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::check::{self, MemoryId, Refusal};
use super::counters::{Counters, RequestSeconds};
use super::keys::Keys;
use super::own_calls::OwnCalls;
use crate::authority::{Authority, Times};
use crate::control::wire::Op;
use crate::fence::{Budget, Fence, Fenced, WritePass};
use crate::memory::{Segment, Stamps};
use crate::transport::Peer;

/// Longest waits of the server for a peer.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Longest wait for a byte in the middle of a message, and of all such waits in it, beside the time for its bytes at 64 KiB
    /// a second. A longer time tolerates slower peers; a shorter one frees sooner the resources that dead peers hold.
    pub stall: Duration,
    /// Longest wait between two requests. The client notices that the connection was closed and makes a new one.
    pub idle: Duration,
    /// Longest wait of a write for memory to remember it. After it the store refuses the write and tells the client to
    /// try again. It must be well below the clients' stall timeout.
    pub room: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            room: Duration::from_millis(200),
        }
    }
}

/// The memory that a data server serves, and all that decides on its requests.
pub(crate) struct ServedMemory {
    pub(crate) identity: MemoryId,
    pub(crate) keys: ArcSwap<Keys>,
    /// Replaced as a whole when a segment comes or goes. An operation keeps the segment that it has found.
    pub(crate) lent: ArcSwap<Vec<Arc<Lent>>>,
    /// Notified when the list of segments was replaced.
    pub(crate) relent: watch::Sender<()>,
    pub(crate) grant_lifetime: Duration,
    pub(crate) fence_budget: Arc<Budget>,
    pub(crate) authority: Arc<Authority>,
    /// Notified when a network card has left a range to or from which it moved bytes.
    pub(crate) transfer_ended: Arc<Notify>,
    pub(crate) timeouts: Timeouts,
    pub(crate) counters: Counters,
    pub(crate) request_seconds: RequestSeconds,
    /// Order up to which writes are refused: see [`Refusal::BeforeRestart`]; 0 for none.
    pub(crate) refuses_up_to: AtomicU64,
    /// Lets this process's own calls at the memory.
    pub(crate) own_calls: OwnCalls,
}

/// A segment and its fence.
pub(crate) struct Lent {
    pub(crate) segment: Arc<Segment>,
    pub(crate) fence: Fence,
    /// Stamps of the writes that the fence admits, for readers on this host.
    pub(crate) stamps: Option<Arc<Stamps>>,
}

/// A write whose bytes are about to come in: their place, and the pass.
pub(crate) struct AdmittedWrite {
    pub(crate) lent: Arc<Lent>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) pass: WritePass,
    /// The granted range, with the log index of its allocation.
    pub(crate) range: GrantedRange,
    /// Time of its admission.
    pub(crate) times: Times,
}

/// Bytes of a sealing write that the fence has not noted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// All of its bytes.
    All,
    /// None: they were noted before, or by another write.
    None,
}

impl AdmittedWrite {
    /// Place of its bytes in the segment.
    fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// Notes that its bytes are there.
    pub(crate) fn land(&self) -> Result<(), Fenced> {
        let GrantedRange { offset, len, index, .. } = self.range;
        self.lent.fence.land(&(offset..offset + len), &self.bytes(), index, self.times)
    }

    /// Seals all of its granted range, if each of its bytes is there. The record keeps the time of its admission: each grant
    /// that the seal must refuse was made before that.
    fn seal(&self, grant: &Grant, landing: Landing) -> Result<(), Fenced> {
        let GrantedRange { offset, len, index, .. } = self.range;
        let landing = if landing == Landing::All { self.bytes() } else { 0..0 };
        self.lent.fence.seal(offset..offset + len, &landing, index, grant.expires, self.times)
    }
}

impl ServedMemory {
    /// Serves a further segment.
    pub(crate) fn lend(&self, segment: Arc<Segment>) {
        let stamps = segment.new_stamps();
        let fence = Fence::new(self.grant_lifetime, self.fence_budget.clone());
        let lent = Arc::new(Lent { segment, fence, stamps });
        self.lent.rcu(|all| all.iter().chain([&lent]).cloned().collect::<Vec<_>>());
        self.relent.send_replace(());
    }

    /// Refuses writes of puts that had begun at `order`, if that was not said before. Call it while no grant is taken.
    pub(crate) fn refuse_writes_up_to(&self, order: u64) {
        let _ = self.refuses_up_to.compare_exchange(0, order, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops serving a segment: later operations on it are refused, and those under way end as they would. Returns what is
    /// left of it, for the caller to drop.
    pub(crate) fn withdraw(&self, number: SegmentNumber) -> Option<Arc<Lent>> {
        let is_it = |lent: &Arc<Lent>| lent.segment.number() == number;
        let before = self.lent.rcu(|all| all.iter().filter(|lent| !is_it(lent)).cloned().collect::<Vec<_>>());
        self.relent.send_replace(());
        before.iter().find(|lent| is_it(lent)).cloned()
    }

    /// Whether it serves this memory.
    pub(crate) fn is_of(&self, peer: &Peer) -> bool {
        (self.identity.store, self.identity.epoch) == (peer.store, peer.epoch)
    }

    /// Opens a grant, and checks by `prove` that the caller holds it, and that it permits `access` to this store's memory now.
    pub(crate) fn open_grant(
        &self,
        sealed: &[u8],
        access: Access,
        prove: impl FnOnce(&Grant, &ProofKey) -> Result<(), Refusal>,
    ) -> Result<Grant, Refusal> {
        let now = || self.authority.times().map(|times| times.now);
        let (grant, key) = self.keys.load().open(sealed, now)?;
        prove(&grant, &key)?;
        self.check_holder(&grant)?;
        check::check_grant(self.identity, self.authority.times(), &grant, access)?;
        Ok(grant)
    }

    /// Refuses a grant whose holder was shut out since.
    fn check_holder(&self, grant: &Grant) -> Result<(), Refusal> {
        match grant.holder {
            Some(holder) if self.authority.has_shut_out(holder) => Err(Refusal::Revoked),
            _ => Ok(()),
        }
    }

    /// [`Self::open_grant`] for a call of this process, which shows the key itself.
    pub(crate) fn open_own_grant(&self, sealed: &SealedGrant, access: Access) -> Result<Grant, Refusal> {
        self.open_grant(&sealed.bytes, access, |grant, key| match sealed.proof_key {
            None if grant.needs_proof => Err(Refusal::NoProof),
            Some(held) if held != *key => Err(Refusal::WrongProof),
            _ => Ok(()),
        })
    }

    /// Finds the memory of `op`, and checks it against the grant and the segment, but not yet against the fence.
    ///
    /// The time is checked for each operation, because the ones before may have taken long: right before its bytes, or
    /// those of a few small ones before it, come in. The fence ends an operation that takes longer.
    pub(crate) fn locate(&self, grant: &Grant, op: Op) -> Result<(Arc<Lent>, GrantedRange, Times), Refusal> {
        let times = check::check_grant(self.identity, self.authority.times(), grant, grant.access)?;
        self.check_holder(grant)?;
        let range = check::check_op(grant, op)?;
        let here = |lent: &&Arc<Lent>| {
            lent.segment.number() == range.segment && lent.segment.contains(range.offset, range.len)
        };
        let GrantedRange { segment, offset, len, .. } = range;
        let all = self.lent.load();
        let lent = all.iter().find(here).ok_or(Refusal::OutsideMemory { segment, offset, len })?;
        Ok((lent.clone(), range, times))
    }

    /// Registers a write of all of `op`'s range, and returns the place of its bytes.
    pub(crate) fn admit_write(&self, grant: &Grant, op: Op) -> Result<AdmittedWrite, Refusal> {
        let (lent, range, times) = self.locate(grant, op)?;
        if range.index <= self.refuses_up_to.load(Ordering::Relaxed) {
            return Err(Refusal::BeforeRestart { index: range.index });
        }
        let granted = range.offset..range.offset + range.len;
        let pass = lent.fence.admit_write(granted, range.index, grant.expires, times)?;
        let offset = range.offset + op.offset;
        lent.segment.note_order(range.index);
        // Stamps the blocks of this operation only: a reader checks the stamps of the blocks that it has copied.
        if let Some(stamps) = &lent.stamps {
            stamps.stamp(&(offset..offset + op.len), range.index);
        }
        Ok(AdmittedWrite { lent, offset, len: op.len, pass, range, times })
    }

    /// [`Self::admit_write`] for a write that has to wait: for room, which comes only when a master says the time, or for a
    /// network card to leave the range. It waits until `until`, which the first wait of a request sets.
    pub(crate) async fn admit_later(
        &self,
        grant: &Grant,
        op: Op,
        until: &mut Option<Instant>,
    ) -> Result<AdmittedWrite, Refusal> {
        let until = *until.get_or_insert_with(|| Instant::now() + self.timeouts.room);
        let mut counted = false;
        loop {
            // Created before the attempt, so that nothing is missed in between.
            let (learned, ended) = (self.authority.learned(), self.transfer_ended.notified());
            let fenced = match self.admit_write(grant, op) {
                Err(Refusal::Fenced(fenced @ (Fenced::Full | Fenced::InTransfer))) => fenced,
                answer => return answer,
            };
            if fenced == Fenced::Full {
                if !std::mem::replace(&mut counted, true) {
                    Counters::add(&self.counters.waits, 1);
                }
                if self.forget() {
                    // Each turn searches other records, so this ends.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            tokio::select! {
                () = learned => {}
                () = ended => {}
                () = tokio::time::sleep_until(until) => return Err(fenced.into()),
            }
        }
    }

    /// Counts a write whose bytes are there in `bytes`.
    pub(crate) fn count_write(&self, write: &AdmittedWrite, bytes: &AtomicU64) {
        Counters::add(&self.counters.writes, 1);
        Counters::add(bytes, write.len);
    }

    /// Counts a write whose bytes are there in `bytes`, lands it, and seals its range if there is a grant for that: then it
    /// returns the receipt.
    pub(crate) async fn end_write(
        &self,
        write: &AdmittedWrite,
        sealing: Option<&Grant>,
        bytes: &AtomicU64,
        until: &mut Option<Instant>,
    ) -> Result<Option<Receipt>, Refusal> {
        self.count_write(write, bytes);
        match sealing {
            Some(grant) => Ok(Some(self.seal(write, grant, Landing::All, until).await?)),
            None => {
                write.land()?;
                Ok(None)
            }
        }
    }

    /// Seals the range of a write, and returns the receipt. Waits for a network card to leave it, which moves bytes of the
    /// same put that were asked for over another connection; until `until`, as above.
    pub(crate) async fn seal(
        &self,
        write: &AdmittedWrite,
        grant: &Grant,
        landing: Landing,
        until: &mut Option<Instant>,
    ) -> Result<Receipt, Fenced> {
        loop {
            // Created before the attempt, as above.
            let ended = self.transfer_ended.notified();
            match write.seal(grant, landing) {
                Err(Fenced::InTransfer) => {}
                sealed => return sealed.map(|()| self.receipt(grant, &write.range)),
            }
            let until = *until.get_or_insert_with(|| Instant::now() + self.timeouts.room);
            if tokio::time::timeout_at(until, ended).await.is_err() {
                return Err(Fenced::InTransfer);
            }
        }
    }

    /// Returns the receipt of a write that comes again, because its answer was lost, and finds its range sealed.
    pub(crate) fn sealed_before(&self, grant: &Grant, op: Op) -> Result<Receipt, Refusal> {
        let (lent, range, times) = self.locate(grant, op)?;
        let whole = range.offset..range.offset + range.len;
        lent.fence.seal(whole, &(0..0), range.index, grant.expires, times)?;
        Ok(self.receipt(grant, &range))
    }

    /// Computes the receipt of a range that is sealed.
    fn receipt(&self, grant: &Grant, range: &GrantedRange) -> Receipt {
        self.keys.load().receipts().receipt(grant.cluster, grant.store, grant.epoch, range)
    }

    /// Forgets some of the writes that may be forgotten; returns whether there are more.
    fn forget(&self) -> bool {
        let Some(times) = self.authority.times() else { return false };
        // One fence after the other: a waiting write comes back for the rest.
        self.lent.load().iter().any(|lent| lent.fence.forget(times))
    }
}
