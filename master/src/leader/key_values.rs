use std::sync::Arc;

use mc_index::Request;
use mc_types::Code;

use super::{Coordinator, Refusal};

/// Serves the key-value table.
pub(crate) struct KeyValues {
    coordinator: Arc<Coordinator>,
}

impl KeyValues {
    pub(super) fn new(coordinator: Arc<Coordinator>) -> Self {
        Self { coordinator }
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
}
