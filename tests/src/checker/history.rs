use std::fmt;

/// Identifies a value by its bytes: CRC-64 would do, equality is all that counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put this value if the key is absent.
    PutIfAbsent(Digest),
    /// Put this value whatever is there.
    Upsert(Digest),
    /// Read the value.
    Get,
    /// Ask whether there is one.
    Exist,
    /// Remove it.
    Remove,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A put: the value was stored and acknowledged.
    Stored,
    /// A put-if-absent: a value is there already, and stays.
    Exists,
    /// A put without a leader in reach: it stayed in the client's own cache, and nothing happened in the pool. No
    /// acknowledgement.
    LocalOnly,
    /// A get: this value.
    Value(Digest),
    /// A get without a leader in reach: this value, out of the client's own cache. It says nothing of the pool, and may
    /// be one that was replaced or removed since; it has to be one that was put under the key.
    LocalValue(Digest),
    /// A get: nothing there.
    Miss,
    /// An exist: there is a value.
    Present,
    /// An exist: there is none.
    Absent,
    /// A remove: a value was removed.
    Removed,
    /// A remove: there was none.
    NothingToRemove,
    /// Definitely nothing happened, and nothing was learned.
    Failed,
    /// It may have happened, may happen yet, or never.
    Unknown,
}

/// One operation of one client on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who.
    pub client: u32,
    /// On which key.
    pub key: String,
    /// What.
    pub action: Action,
    /// The answer.
    pub outcome: Outcome,
    /// When it was called, in nanoseconds of one clock for the whole history.
    pub start: u64,
    /// When the answer came. Of an unknown outcome: when the client gave up, which bounds nothing.
    pub end: u64,
}

impl Action {
    /// The value that it may write.
    pub(super) fn writes(self) -> Option<Digest> {
        match self {
            Self::PutIfAbsent(digest) | Self::Upsert(digest) => Some(digest),
            Self::Get | Self::Exist | Self::Remove => None,
        }
    }
}

impl Operation {
    /// Whether it can change the register at all.
    pub(super) fn mutates(&self) -> bool {
        !matches!(self.action, Action::Get | Action::Exist)
    }

    /// Whether its answer says nothing of the pool: nothing happened there, and nothing was learned.
    pub(super) fn is_no_news(&self) -> bool {
        matches!(self.outcome, Outcome::Failed | Outcome::LocalOnly | Outcome::LocalValue(_))
    }

    /// Whether its answer says that it changed nothing, whatever was there.
    pub(super) fn only_looked(&self) -> bool {
        !self.mutates() || matches!(self.outcome, Outcome::Exists | Outcome::NothingToRemove)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        let end = match self.outcome {
            Outcome::Unknown => "open".to_owned(),
            _ => format!("{:.3} ms", ms(self.end)),
        };
        write!(f, "[{:.3} ms .. {end}] client {}: ", ms(self.start), self.client)?;
        write!(f, "{:?} -> {:?}", self.action, self.outcome)
    }
}
