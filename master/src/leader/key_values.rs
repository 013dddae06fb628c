use std::sync::Arc;

use mc_index::Request;
use mc_types::Code;
use tokio::sync::Mutex;

use super::{Coordinator, Refusal};

/// Serves the key-value table.
pub(crate) struct KeyValues {
    coordinator: Arc<Coordinator>,
    /// Held from the look to the entry of [`Self::set_first`].
    first: Mutex<()>,
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
    pub(super) fn new(coordinator: Arc<Coordinator>) -> Self {
        Self { coordinator, first: Mutex::default() }
    }

    /// Returns the value of an entry; `None` if there is none.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        self.coordinator.lead().await?;
        Ok(self.coordinator.index.read(|applied| applied.state.key_value(key).map(<[u8]>::to_vec)))
    }

    /// Sets an entry, or removes it without a value. Answers as [`mc_index::Op::SetKeyValue`] does.
    pub(crate) async fn set(&self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<Code, Refusal> {
        let leading = self.coordinator.lead().await?;
        self.coordinator.propose(&leading, Request::set_key_value(key, value)).await
    }

    /// Sets an entry unless there is one.
    ///
    /// A value that was acknowledged is never replaced: only the leader of a term looks, it has applied the entries of earlier
    /// terms, and no other call of this kind comes between its look and its entry. A call that is given up may leave an entry
    /// behind in the log, which a later call does not see and replaces: nobody was told of it.
    pub(crate) async fn set_first(&self, key: Vec<u8>, value: Vec<u8>) -> Result<SetFirst, Refusal> {
        let _first = self.first.lock().await;
        Ok(match self.get(&key).await? {
            Some(known) if known == value => SetFirst::Same,
            Some(_) => SetFirst::Other,
            None => SetFirst::Set(self.set(key, Some(value)).await?),
        })
    }
}
