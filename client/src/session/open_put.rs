//! An object that a put session writes.

use std::sync::Arc;

use bytes::Bytes;
use mc_proto::v1::Replica;
use mc_transfer::{Checksum, TransferError};
use mc_types::{Code, PutId, Receipt, StoreId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::coverage::Coverage;
use crate::call::RevokeOnDrop;
use crate::core::error_of_this_client;
use crate::placement::{Granted, Place, places};
use crate::put::{KEPT_FOR_THE_END, KEPT_FOR_THE_OTHERS, PendingPut, PutBatch, StartedPut, write_by};
use crate::{ByteRange, Error, Put, PutMode};

/// Name of the step in error texts.
pub(super) const WRITE: &str = "put session";

/// A started put whose object is written range by range, each to all replicas.
#[derive(Debug)]
pub(crate) struct OpenPut {
    pub(crate) id: PutId,
    pub(crate) key: Bytes,
    /// Size of the object in bytes.
    pub(crate) size: u64,
    pub(super) mode: PutMode,
    pub(super) granted: Arc<Vec<Option<Granted>>>,
    /// Replicas that this client can write, each with its number in the leader's answer.
    pub(super) replicas: Vec<(u32, Place)>,
    /// Number of replicas that the leader placed.
    placed: usize,
    /// The masters end the put a little later than this.
    pub(super) deadline: Instant,
    progress: Mutex<Progress>,
    /// Revokes the put when the session is dropped, unless it was ended.
    unended: Mutex<RevokeOnDrop>,
}

#[derive(Debug)]
struct Progress {
    coverage: Coverage,
    /// Replicas that lack a range. Nothing more is written to them.
    failed: Vec<(u32, StoreId)>,
    /// Why the latest of them failed.
    why: String,
    /// Replicas that are sealed, with the stores' receipts.
    sealed: Vec<(u32, Option<Receipt>)>,
    /// Number of calls that may have ended the put: those under way, and those without a definite answer.
    ends: usize,
}

/// Results of writing a range, each with the number of its replica.
pub(super) type WriteResults = Vec<(u32, Result<Checksum, TransferError>)>;

impl OpenPut {
    /// Takes over a put that the leader started with `replicas`.
    ///
    /// # Errors
    /// No replica can be written.
    pub(super) fn new(
        put: PendingPut<'_>,
        replicas: &[Replica],
        granted: &Arc<Vec<Option<Granted>>>,
        unended: RevokeOnDrop,
        batch: &PutBatch<'_>,
    ) -> Result<Self, Error> {
        let usable: Vec<_> = places(replicas, granted, put.size).collect();
        let (id, key, size) = (put.put, put.key.clone(), put.size);
        // Replicas that this client can't interpret count as failed.
        let StartedPut { failed, why, .. } = StartedPut::new(put, replicas.len(), &usable);
        let open = Self {
            id,
            key,
            size,
            mode: batch.options.mode,
            granted: Arc::clone(granted),
            replicas: usable,
            placed: replicas.len(),
            deadline: batch.deadline,
            progress: Mutex::new(Progress {
                coverage: Coverage::new(size),
                failed,
                why: why.into_owned(),
                sealed: Vec::new(),
                ends: 0,
            }),
            unended: Mutex::new(unended),
        };
        open.live(&open.progress.lock())?;
        Ok(open)
    }

    /// Notes that ranges, none of which is empty, are being written; returns the replicas to write them to.
    /// `sum` returns the checksum of a range's bytes, if this thread can read them.
    pub(super) fn begin(
        &self,
        ranges: &[ByteRange],
        sum: impl Fn(usize) -> Option<Checksum>,
        now: Instant,
    ) -> Result<Vec<(u32, Place)>, Error> {
        self.check_deadline(now)?;
        let mut progress = self.progress.lock();
        let live = self.live(&progress)?;
        match progress.coverage.begin(ranges, sum) {
            Ok(()) => Ok(live),
            Err(refused) => {
                Err(Error::definite(WRITE, Code::InvalidParams, "this client", refused.to_string()))
            }
        }
    }

    /// Notes that the write of a range was abandoned; `checksum` is that of its bytes.
    pub(super) fn abandoned(&self, range: ByteRange, checksum: Checksum) {
        self.progress.lock().coverage.abandoned(range.offset, checksum);
    }

    /// Records the outcome of the write of a range. The write succeeds if at least one replica has this range and all
    /// earlier ones. A replica that lacks the range is dropped from the put.
    pub(super) fn wrote(&self, range: ByteRange, mut answers: WriteResults) -> Result<(), Error> {
        let mut progress = self.progress.lock();
        let (mut written, mut here) = (None, None);
        for (number, place) in self.live(&progress)? {
            let answer = answers.iter().position(|(replica, _)| *replica == number);
            progress.why = match answer.map(|at| answers.swap_remove(at).1) {
                Some(Ok(checksum)) if written.is_none_or(|first| first == checksum) => {
                    written = Some(checksum);
                    continue;
                }
                Some(Ok(_)) => {
                    "its bytes differ from those of another one: the memory changed meanwhile".to_owned()
                }
                Some(Err(error)) => {
                    here = error_of_this_client(WRITE, &error).or(here);
                    error.to_string()
                }
                None => "it was not written".to_owned(),
            };
            progress.failed.push((number, place.store));
        }
        match written {
            Some(checksum) => {
                progress.coverage.done(range.offset, checksum);
                Ok(())
            }
            None => Err(here.unwrap_or_else(|| self.failure(&progress))),
        }
    }

    /// Returns the replicas that have the whole object and are not sealed yet; none while it is not complete.
    pub(super) fn unsealed_replicas(&self, now: Instant) -> Vec<(u32, Place)> {
        let progress = self.progress.lock();
        let mut whole = match progress.coverage.checksum() {
            Ok(_) if now < self.deadline => self.live(&progress).unwrap_or_default(),
            _ => Vec::new(),
        };
        whole.retain(|(number, _)| !progress.sealed.iter().any(|(sealed, _)| sealed == number));
        whole
    }

    /// Notes that a replica is sealed.
    pub(super) fn sealed(&self, number: u32, receipt: Option<Receipt>) {
        self.progress.lock().sealed.push((number, receipt));
    }

    /// Notes that the put is being ended; returns whether another call may have ended it. If the call is dropped, its outcome stays
    /// unknown.
    pub(super) fn ending(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.ends += 1;
        progress.ends > 1
    }

    /// Notes and returns the result of ending the put. Only a result that says that the put is over settles it; after
    /// any other result the session stays open. An error is definite only if no other call may have ended the put.
    pub(super) fn ended(&self, result: Result<Put, Error>) -> Result<Put, Error> {
        if result.is_ok() {
            self.unended.lock().disarm();
            return result;
        }
        result.map_err(|error| {
            self.refused(&error);
            let mut progress = self.progress.lock();
            if !error.is_unknown() {
                progress.ends = progress.ends.saturating_sub(1);
            }
            progress.judged(error)
        })
    }

    /// Notes why the put can't be ended; frees its space if it never can.
    pub(super) fn refused(&self, error: &Error) {
        if matches!(error.code, Code::PutGone | Code::TransferFail) {
            drop(std::mem::replace(&mut *self.unended.lock(), RevokeOnDrop::none()));
        }
    }

    /// Notes that the put was revoked.
    pub(crate) fn aborted(&self) {
        self.unended.lock().disarm();
    }

    /// Notes that a replica can't be used.
    pub(super) fn give_up(&self, number: u32, why: String) {
        let mut progress = self.progress.lock();
        if let Some((_, place)) = self.replicas.iter().find(|(replica, _)| *replica == number)
            && !progress.has_failed(number)
        {
            progress.failed.push((number, place.store));
            progress.why = why;
        }
    }

    /// Returns the put, number `at` of its batch, as one to be ended. Its object must be complete.
    pub(super) fn complete(&self, at: usize, now: Instant) -> Result<StartedPut<'static>, Error> {
        let progress = self.progress.lock();
        let checksum = self.checksum(&progress, now).map_err(|error| progress.judged(error))?;
        // The bytes are not kept, so the put can't be started again.
        let pending =
            PendingPut { put: self.id, again: true, ..PendingPut::sized(at, self.key.clone(), self.size)? };
        let written = StartedPut::new(pending, self.placed, &self.replicas);
        let mut written =
            StartedPut { checksum: Some(checksum.0), failed: progress.failed.clone(), ..written };
        for (number, receipt) in progress.sealed.iter().filter_map(|(number, it)| Some((*number, (*it)?))) {
            written.note_receipt(number, receipt);
        }
        Ok(written)
    }

    /// Returns the checksum of the object if the put can be ended.
    fn checksum(&self, progress: &Progress, now: Instant) -> Result<Checksum, Error> {
        self.check_deadline(now)?;
        self.live(progress)?;
        progress.coverage.checksum().map_err(|incomplete| {
            let why = format!("the object of {} bytes is not complete: {incomplete}", self.size);
            Error::definite(WRITE, Code::InvalidParams, "this client", why)
        })
    }

    /// Returns the deadline of writes that begin at `now`.
    pub(super) fn write_by(&self, now: Instant) -> Instant {
        let kept = if self.replicas.len() == 1 { KEPT_FOR_THE_END } else { KEPT_FOR_THE_OTHERS };
        write_by(now, self.deadline, kept)
    }

    fn check_deadline(&self, now: Instant) -> Result<(), Error> {
        if now >= self.deadline {
            let why = "the put's deadline has passed";
            return Err(Error::definite(WRITE, Code::PutGone, "this client", why));
        }
        Ok(())
    }

    /// Returns the replicas that have every range that was written.
    fn live(&self, progress: &Progress) -> Result<Vec<(u32, Place)>, Error> {
        let live = self.replicas.iter().filter(|(number, _)| !progress.has_failed(*number));
        let live: Vec<_> = live.copied().collect();
        if live.is_empty() { Err(self.failure(progress)) } else { Ok(live) }
    }

    fn failure(&self, progress: &Progress) -> Error {
        let why = format!("none of {} replicas has every range: {}", self.placed, progress.why);
        Error::definite(WRITE, Code::TransferFail, "the stores", why)
    }
}

impl Progress {
    /// Makes an error of ending the put unknown if a call may have ended it.
    fn judged(&self, error: Error) -> Error {
        if self.ends > 0 { error.unknown() } else { error }
    }

    fn has_failed(&self, number: u32) -> bool {
        self.failed.iter().any(|(failed, _)| *failed == number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a put whose object is complete.
    fn complete(deadline: Instant) -> OpenPut {
        let mut coverage = Coverage::new(5);
        coverage.begin(&[ByteRange { offset: 0, len: 5 }], |_| Some(Checksum(1))).unwrap();
        coverage.done(0, Checksum(1));
        let place = Place { store: StoreId(1), grant: 0, range: 0, segment: 0, offset: 0 };
        OpenPut {
            id: PutId(1),
            key: Bytes::from_static(b"k"),
            size: 5,
            mode: PutMode::IfAbsent,
            granted: Arc::default(),
            replicas: vec![(0, place)],
            placed: 1,
            deadline,
            progress: Mutex::new(Progress {
                coverage,
                failed: Vec::new(),
                why: String::new(),
                sealed: Vec::new(),
                ends: 0,
            }),
            unended: Mutex::new(RevokeOnDrop::none()),
        }
    }

    fn refused() -> Error {
        Error::definite(WRITE, Code::NoLeader, "this client", "no leader is in reach")
    }

    #[test]
    fn an_end_without_an_answer_leaves_the_outcome_of_all_later_ones_unknown() {
        let now = Instant::now();
        let put = complete(now + Duration::from_secs(60));
        assert!(!put.ending());
        assert!(!put.ended(Err(refused())).unwrap_err().is_unknown(), "nothing was sent");
        assert!(!put.ending());
        assert!(put.ended(Err(refused().unknown())).unwrap_err().is_unknown());
        for _ in 0..2 {
            assert!(put.complete(0, now).is_ok() && put.ending());
            assert!(put.ended(Err(refused())).unwrap_err().is_unknown());
        }
    }

    #[test]
    fn a_finish_after_the_deadline_fails_with_an_unknown_outcome_if_an_earlier_end_may_have_been_committed() {
        let now = Instant::now();
        let put = complete(now);
        let gone = put.complete(0, now).err().unwrap();
        assert!(gone.code == Code::PutGone && !gone.is_unknown());
        // A call that is dropped.
        put.ending();
        let gone = put.complete(0, now).err().unwrap();
        assert!(gone.code == Code::PutGone && gone.is_unknown());
    }
}
