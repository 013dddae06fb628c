use std::fmt;

/// A hash that identifies a value by its bytes; only equality counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

/// Protection of a value from eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// None.
    Off,
    /// It is evicted only when nothing without a pin can be.
    Soft,
    /// It is never evicted.
    Hard,
}

/// A client's request, or an eviction by the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put this value if the key is absent.
    PutIfAbsent(Digest),
    /// Put this value whatever is there. It gets the pin of the value that it replaces.
    Upsert(Digest),
    /// Put this value whatever is there, with a pin of its own.
    UpsertPinned(Digest, Pin),
    /// Read the value.
    Get,
    /// Ask whether there is a value.
    Exist,
    /// Remove the value.
    Remove,
    /// Evict this value. No client asks for it: the masters' log tells of it.
    Evict(Digest),
}

/// The answer to an [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A put: the value was stored and acknowledged.
    Stored,
    /// A put-if-absent: a value is already there and stays.
    Exists,
    /// A put without a leader in reach: the value stayed in the client's own cache, and nothing happened in the pool.
    /// It is no acknowledgement.
    LocalOnly,
    /// A get: this value.
    Value(Digest),
    /// A get without a leader in reach: this value, from the client's own cache. It says nothing of the pool. The value
    /// may have been replaced or removed since, but it must have been put under the key.
    LocalValue(Digest),
    /// A get: there is no value.
    Miss,
    /// A get: the masters know a value, and the client could read it from no store. It says nothing of what the pool holds.
    Unread,
    /// A get or an exist without a leader in reach: no value in the client's own cache. It says nothing of the pool.
    LocalMiss,
    /// An exist: there is a value.
    Present,
    /// An exist: there is none.
    Absent,
    /// A remove: a value was removed.
    Removed,
    /// A remove: there was none.
    NothingToRemove,
    /// A removal of many keys: nothing is there any more, and whether something was is not told.
    Cleared,
    /// An eviction: exactly that value was there, and was removed.
    Evicted,
    /// The operation certainly had no effect, and its answer tells nothing.
    Failed,
    /// A put that its client gave up before its end: it certainly had no effect.
    Aborted,
    /// The operation may have taken effect, may still do so, or never will.
    Unknown,
    /// The same, and it is no failure: the caller dropped the call, or its answer does not tell.
    Untold,
}

/// One operation of one client on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client.
    pub client: u32,
    /// The key.
    pub key: String,
    /// The client's request.
    pub action: Action,
    /// The answer.
    pub outcome: Outcome,
    /// Time of the call, in nanoseconds of one clock for the whole history.
    pub start: u64,
    /// Time of the answer. For an unknown outcome, the time at which the client gave up, which bounds nothing.
    pub end: u64,
}

impl Outcome {
    /// Returns whether the operation may take effect at any time after its start, or never.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Unknown | Self::Untold)
    }
}

impl Action {
    /// Returns the value that it may write.
    pub(crate) fn writes(self) -> Option<Digest> {
        match self {
            Self::PutIfAbsent(digest) | Self::Upsert(digest) | Self::UpsertPinned(digest, _) => Some(digest),
            Self::Get | Self::Exist | Self::Remove | Self::Evict(_) => None,
        }
    }
}

impl Operation {
    /// Makes the operation of an eviction of `value` that took effect between `start` and `end`.
    pub fn eviction(key: &str, value: Digest, start: u64, end: u64) -> Self {
        let (action, outcome) = (Action::Evict(value), Outcome::Evicted);
        Self { client: u32::MAX, key: key.to_owned(), action, outcome, start, end }
    }

    /// Makes the operation of the loss of `value` at any time from `start` on, or never: what held it was lost.
    pub fn loss(key: &str, value: Digest, start: u64) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::eviction(key, value, start, start) }
    }

    /// Returns whether it can change the key's value at all.
    pub(super) fn mutates(&self) -> bool {
        !matches!(self.action, Action::Get | Action::Exist)
    }

    /// Returns whether its answer tells nothing about the pool: it did nothing there and observed nothing.
    pub(super) fn is_no_news(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Failed
                | Outcome::Aborted
                | Outcome::LocalOnly
                | Outcome::LocalValue(_)
                | Outcome::LocalMiss
                | Outcome::Unread
        )
    }

    /// Returns whether its answer shows that it changed nothing.
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
        write!(f, "[{:.3} ms .. {end}] ", ms(self.start))?;
        match self.action {
            Action::Evict(_) => f.write_str("the pool: ")?,
            _ => write!(f, "client {}: ", self.client)?,
        }
        write!(f, "{:?} -> {:?}", self.action, self.outcome)
    }
}
