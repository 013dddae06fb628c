use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use mc_index::Request;
use mc_types::Code;
use tokio::sync::Mutex;

use crate::leader::term::{Coordinator, Refusal};

/// Number of locks that keys share.
const LOCKS: usize = 256;

/// Serves the key-value table.
pub(crate) struct KeyValues {
    coordinator: Arc<Coordinator>,
    /// One is held from the look to the entry of [`Self::set_first`]; keys choose theirs by `hasher`.
    first: [Mutex<()>; LOCKS],
    hasher: RandomState,
}

/// Outcome of [`KeyValues::set_first`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetFirst {
    /// There was no entry, and setting it had this result.
    Set(Code),
    /// The entry has this value.
    Same,
    /// The entry has another value.
    Other,
}

impl KeyValues {
    pub(crate) fn new(coordinator: Arc<Coordinator>) -> Self {
        Self { coordinator, first: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    /// Returns the value of an entry; `None` if there is none.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        self.coordinator.lead().await?;
        Ok(self.coordinator.read(|applied| applied.state.key_value(key).map(<[u8]>::to_vec)))
    }

    /// Sets an entry, or removes it without a value. Answers as [`mc_index::Op::SetKeyValue`] does.
    pub(crate) async fn set(&self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<Code, Refusal> {
        let leading = self.coordinator.lead().await?;
        self.coordinator.propose(&leading, &Request::set_key_value(key, value)).await
    }

    /// Sets an entry unless there is one.
    ///
    /// Among concurrent calls in one term, exactly one gets [`SetFirst::Set`]: no other call runs between its check and
    /// its entry. There is no promise beyond that. The entry of a cancelled call, or of a call in an earlier term of
    /// this leader, may be applied later and replace a value that was already reported to a caller.
    pub(crate) async fn set_first(&self, key: Vec<u8>, value: Vec<u8>) -> Result<SetFirst, Refusal> {
        // The remainder is below the number of locks.
        let _first = self.first[(self.hasher.hash_one(&key) % LOCKS as u64) as usize].lock().await;
        Ok(match self.get(&key).await? {
            Some(known) if known == value => SetFirst::Same,
            Some(_) => SetFirst::Other,
            None => SetFirst::Set(self.set(key, Some(value)).await?),
        })
    }
}
