use mc_types::Code;

use super::{Command, Op, PutEnded, Response};
use crate::key::KeyHash;

/// Change of the visible objects by one entry, for an eviction order that follows the log.
///
/// Objects that a dropped store takes with it are left out: an order finds out when it looks them up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Keys whose objects were made or replaced, in the order of the call that put them.
    Put(Vec<KeyHash>),
    /// Keys whose objects were removed.
    Gone(Vec<KeyHash>),
}

impl Change {
    /// Returns the change that a command made, judging by its response.
    #[must_use]
    pub fn of(command: &Command, response: &Response) -> Option<Self> {
        match (&command.op, response) {
            (Op::PutEnd { items }, Response::PutEnded(answers)) => {
                Some(Self::stored(items.iter().map(|item| item.key), answers))
            }
            (Op::PutEndProven { items }, Response::PutEnded(answers)) => {
                Some(Self::stored(items.iter().map(|item| item.end.key), answers))
            }
            (Op::Remove { tenant, items }, Response::Codes(codes)) => {
                let removed = items.iter().zip(codes).filter(|(_, code)| **code == Code::Ok);
                Some(Self::Gone(removed.map(|(item, _)| KeyHash::of(tenant, &item.key)).collect()))
            }
            _ => None,
        }
    }

    fn stored(keys: impl Iterator<Item = KeyHash>, answers: &[PutEnded]) -> Self {
        let stored = keys.zip(answers).filter(|(_, answer)| answer.code == Code::Ok);
        Self::Put(stored.map(|(key, _)| key).collect())
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        let (Self::Put(keys) | Self::Gone(keys)) = self;
        keys.len()
    }

    /// Whether no key has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
