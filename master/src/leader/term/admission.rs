use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Refusal;

/// Limit on proposals in flight. At 128 keys each, this is far more than a disk commits while a client waits; more
/// would only queue (reference figure: 256 x 64 entries queued gave a median of 104 ms).
const MAX_PROPOSALS: usize = 1024;

/// Limit on the bytes of proposals in flight. Each proposal is held for the log, for each follower and for the state
/// machine, and a flood of large ones must not fill a master's memory.
const MAX_PROPOSAL_BYTES: usize = 64 << 20;

/// Limit on log bytes that wait for this master's own disk. The other masters commit without it, so proposals complete
/// while their entries stay in memory for as long as the disk hangs.
const MAX_UNWRITTEN_BYTES: u64 = 64 << 20;

/// Returns the number of log bytes that this master's disk has not taken yet.
pub(crate) type Unwritten = Box<dyn Fn() -> u64 + Send + Sync>;

/// Limits the proposals of a leader.
pub(super) struct Admission {
    proposals: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    unwritten: Unwritten,
}

/// One proposal in flight, which ends when this is dropped.
pub(super) struct InFlight {
    _room: [OwnedSemaphorePermit; 2],
}

impl Admission {
    pub(super) fn new(unwritten: Unwritten) -> Self {
        let (proposals, bytes) = (Semaphore::new(MAX_PROPOSALS), Semaphore::new(MAX_PROPOSAL_BYTES));
        Self { proposals: Arc::new(proposals), bytes: Arc::new(bytes), unwritten }
    }

    /// Counts a proposal of `bytes` bytes as in flight until the result is dropped.
    ///
    /// # Errors
    /// A definite refusal when a bound is reached: nothing was proposed.
    pub(super) fn admit(&self, bytes: usize) -> Result<InFlight, Refusal> {
        let unwritten = (self.unwritten)();
        if unwritten > MAX_UNWRITTEN_BYTES {
            return Err(Refusal::DiskBehind { unwritten, most: MAX_UNWRITTEN_BYTES });
        }
        let room = || {
            let bytes = self.bytes.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()?;
            Some([self.proposals.clone().try_acquire_owned().ok()?, bytes])
        };
        let exhausted = Refusal::Exhausted { proposals: MAX_PROPOSALS, bytes: MAX_PROPOSAL_BYTES };
        room().map(|room| InFlight { _room: room }).ok_or(exhausted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn admission() -> (Admission, Arc<AtomicU64>) {
        let unwritten = Arc::new(AtomicU64::new(0));
        let read = unwritten.clone();
        (Admission::new(Box::new(move || read.load(Ordering::Relaxed))), unwritten)
    }

    #[test]
    fn a_leader_whose_disk_hangs_takes_no_more_than_the_bound() {
        let (admission, unwritten) = admission();
        let mut taken = 0;
        // The others commit each proposal, so none is in flight for long.
        while let Ok(in_flight) = admission.admit(1 << 20) {
            drop(in_flight);
            taken = unwritten.fetch_add(1 << 20, Ordering::Relaxed) + (1 << 20);
            assert!(taken <= MAX_UNWRITTEN_BYTES + (1 << 20), "the log grows without a bound");
        }
        let why = admission.admit(1).map(drop).unwrap_err();
        assert_eq!(why, Refusal::DiskBehind { unwritten: taken, most: MAX_UNWRITTEN_BYTES });
        unwritten.store(0, Ordering::Relaxed);
        assert!(admission.admit(1).is_ok(), "the disk has caught up");
    }

    #[test]
    fn proposals_in_flight_are_bounded_by_number_and_by_bytes() {
        let (admission, _) = admission();
        let held: Vec<_> = (0..MAX_PROPOSALS).map(|_| admission.admit(1).map_err(drop)).collect();
        assert!(held.iter().all(Result::is_ok));
        assert!(admission.admit(1).is_err());
        drop(held);
        let large = admission.admit(MAX_PROPOSAL_BYTES);
        assert!(large.is_ok() && admission.admit(1).is_err());
        drop(large);
        assert!(admission.admit(1).is_ok());
    }
}
