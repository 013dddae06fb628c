//! A version of an object that a get session reads.

use std::sync::Arc;

use bytes::Bytes;
use mc_proto::v1::GetResult;
use mc_types::{Code, PutId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Error;
use crate::core::{item_error, nonsense};
use crate::get::Located;
use crate::placement::{Described, Granted, described};

/// Name of the step in error texts.
pub(super) const READ: &str = "get session";

/// The version that a session reads, and where it lies.
///
/// Its bytes are right for as long as the session lives: an answer of the leader is used only if it names this version,
/// and only until its lease ends.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) key: Bytes,
    pub(crate) version: PutId,
    /// Size of the object in bytes.
    pub(crate) size: u64,
    /// From then on the lease is not renewed any more.
    renewed_until: Instant,
    state: Mutex<PinState>,
}

#[derive(Debug)]
enum PinState {
    Leased(Placement),
    /// The key has another version or none. This never changes again.
    Lost(Error),
}

/// Where the version lies, from the leader's latest answer.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) object: Described,
    pub(crate) granted: Arc<Vec<Option<Granted>>>,
    /// Until when the placement may be used.
    pub(crate) lease: Instant,
    /// When the lease is to be renewed: half of it has passed.
    pub(crate) renew_at: Instant,
}

impl Placement {
    fn new(object: Described, granted: &Arc<Vec<Option<Granted>>>, answer: &Located) -> Self {
        let &Located { sent_at, lease, .. } = answer;
        Self { object, granted: Arc::clone(granted), lease, renew_at: sent_at + (lease - sent_at) / 2 }
    }
}

impl Pinned {
    /// Pins the version that the leader's answer names; `None` is a miss, as for a get.
    pub(super) fn new(
        key: Bytes,
        result: &GetResult,
        granted: &Arc<Vec<Option<Granted>>>,
        answer: &Located,
        renewed_until: Instant,
    ) -> Result<Option<Self>, Error> {
        match Code::try_from(result.code) {
            Ok(Code::Ok) => {}
            Ok(Code::ObjectNotFound | Code::ReplicaIsNotReady) => return Ok(None),
            _ => return Err(item_error(READ, result.code)),
        }
        let object = described(result, granted).ok_or_else(|| nonsense(READ))?;
        let (version, size) = (object.version, object.size);
        let state = Mutex::new(PinState::Leased(Placement::new(object, granted, answer)));
        Ok(Some(Self { key, version, size, renewed_until, state }))
    }

    /// Returns the latest placement, whose lease may be over.
    pub(super) fn placement(&self) -> Result<Placement, Error> {
        match &*self.state.lock() {
            PinState::Leased(placement) => Ok(placement.clone()),
            PinState::Lost(error) => Err(error.clone()),
        }
    }

    /// Whether the placement can't be used at `now`, and the leader may have another one.
    pub(super) fn is_lapsed(&self, now: Instant) -> bool {
        matches!(&*self.state.lock(), PinState::Leased(placement) if placement.lease <= now)
    }

    /// Returns when the lease is to be renewed; `None` once the version is lost.
    pub(super) fn renew_at(&self) -> Option<Instant> {
        match &*self.state.lock() {
            PinState::Leased(placement) => Some(placement.renew_at),
            PinState::Lost(_) => None,
        }
    }

    /// Checks that the leader may still be asked to renew the lease.
    pub(super) fn check_renewable(&self, now: Instant) -> Result<(), Error> {
        if now >= self.renewed_until {
            let why = format!(
                "the session was opened more than {} minutes ago, and its lease is no longer renewed",
                super::RENEWED_FOR.as_secs() / 60
            );
            return Err(Error::definite(READ, Code::LeaseExpired, "this client", why));
        }
        Ok(())
    }

    /// Takes in the leader's answer to a renewal.
    ///
    /// # Errors
    /// The version is lost for good, or can't be read now.
    pub(super) fn renewed(
        &self,
        result: &GetResult,
        granted: &Arc<Vec<Option<Granted>>>,
        answer: &Located,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let placement = match &mut *state {
            PinState::Leased(placement) => placement,
            PinState::Lost(error) => return Err(error.clone()),
        };
        let lost = match Code::try_from(result.code) {
            Ok(Code::Ok) => {
                let object = described(result, granted).ok_or_else(|| nonsense(READ))?;
                if object.version == self.version {
                    // Answers to concurrent renewals may come in any order.
                    if answer.lease > placement.lease {
                        *placement = Placement::new(object, granted, answer);
                    }
                    return Ok(());
                }
                let why =
                    format!("the key has version {} now, the session reads {}", object.version, self.version);
                Error::definite(READ, Code::VersionChanged, "the leader", why)
            }
            Ok(Code::ObjectNotFound) => {
                let why = "the object was removed or evicted after the session was opened";
                Error::definite(READ, Code::ObjectNotFound, "the leader", why)
            }
            Ok(Code::ReplicaIsNotReady) => {
                let why = "every store that holds the object is suspect";
                return Err(Error::definite(READ, Code::ReplicaIsNotReady, "the leader", why));
            }
            _ => return Err(item_error(READ, result.code)),
        };
        *state = PinState::Lost(lost.clone());
        Err(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(sent_at: Instant) -> Located {
        Located {
            results: Vec::new(),
            granted: Vec::new(),
            sent_at,
            lease: sent_at + Duration::from_secs(10),
        }
    }

    fn found(version: u128) -> GetResult {
        let version = PutId(version).to_bytes().to_vec().into();
        GetResult { version, size: 5, ..GetResult::default() }
    }

    fn missing(code: Code) -> GetResult {
        GetResult { code: code as i32, ..GetResult::default() }
    }

    /// Returns version 1, pinned at `now`.
    fn pinned(now: Instant) -> Pinned {
        let until = now + Duration::from_secs(60);
        Pinned::new(Bytes::from_static(b"k"), &found(1), &Arc::default(), &answer(now), until)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_lease_is_renewed_after_half_of_it_and_never_shortened() {
        let now = Instant::now();
        let pinned = pinned(now);
        let second = Duration::from_secs(1);
        assert_eq!(pinned.renew_at(), Some(now + 5 * second));
        assert!(!pinned.is_lapsed(now + 9 * second) && pinned.is_lapsed(now + 10 * second));
        pinned.renewed(&found(1), &Arc::default(), &answer(now + 4 * second)).unwrap();
        pinned.renewed(&found(1), &Arc::default(), &answer(now + 2 * second)).unwrap();
        assert_eq!(pinned.placement().unwrap().lease, now + 14 * second, "an answer that was late");
        assert!(pinned.check_renewable(now + 59 * second).is_ok());
        assert_eq!(pinned.check_renewable(now + 60 * second).unwrap_err().code, Code::LeaseExpired);
    }

    #[test]
    fn a_version_that_is_gone_stays_lost_and_one_that_cannot_be_read_now_does_not() {
        let now = Instant::now();
        let renew = |pinned: &Pinned, result: &GetResult| {
            pinned.renewed(result, &Arc::default(), &answer(now)).map_err(|error| error.code)
        };
        for (result, code) in
            [(found(2), Code::VersionChanged), (missing(Code::ObjectNotFound), Code::ObjectNotFound)]
        {
            let pinned = pinned(now);
            assert_eq!(renew(&pinned, &missing(Code::ReplicaIsNotReady)), Err(Code::ReplicaIsNotReady));
            assert!(pinned.placement().is_ok(), "its store may come back");
            assert_eq!(renew(&pinned, &result), Err(code));
            assert_eq!(renew(&pinned, &found(1)), Err(code), "an answer from before");
            assert_eq!(pinned.placement().unwrap_err().code, code);
            assert_eq!(pinned.renew_at(), None);
        }
    }

    #[test]
    fn a_malformed_answer_changes_nothing() {
        let now = Instant::now();
        let pinned = pinned(now);
        let nonsense = GetResult::default();
        assert!(pinned.renewed(&nonsense, &Arc::default(), &answer(now + Duration::from_secs(1))).is_err());
        assert_eq!(pinned.placement().unwrap().lease, now + Duration::from_secs(10));
    }
}
