use mc_types::{Code, PutId, SegmentEpoch, SegmentNumber, StoreId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Answer of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// No result (ticks, settings, cluster versions, blank and membership entries).
    Done,
    /// One answer per item of an `Op::PutStart`.
    PutStarted(Vec<PutStarted>),
    /// One answer per item of an `Op::PutEnd`.
    PutEnded(Vec<PutEnded>),
    /// One code per item.
    Codes(Vec<Code>),
    /// Number of objects that an `Op::RemoveAll` removed.
    Removed(u64),
    /// Whether objects are left to sweep.
    Swept {
        /// Whether objects are left, so that another sweep is needed.
        more: bool,
    },
    /// The stamp's term is not the entry's, so nothing was done. Ticks, settings, quotas, key-value entries and
    /// cluster versions never get this answer: no leader decides them from soft state.
    WrongTerm,
}

/// The answer to a put's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutStarted {
    /// `Ok`, `ObjectAlreadyExists`, `NoAvailableHandle`, `ObjectTooLarge`, `InvalidKey`, `InvalidParams`, `PutGone`,
    /// `TenantQuotaExceeded`, `TenantNotRegistered` or `GroupFull`.
    ///
    /// `InvalidParams` also means that the deadline has passed, or that this put id is in flight with another key or
    /// size. A put that has ended already gets `ObjectAlreadyExists`, or `PutGone` when all its replicas failed. That a
    /// put has ended is known while it is remembered (see [`PutEnded::code`]), and afterwards while the object is its
    /// own.
    pub code: Code,
    /// Replicas to write; empty unless the code is `Ok`.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

/// The answer to a put's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutEnded {
    /// `Ok`, `ObjectAlreadyExists` (a success: another put-if-absent of the key was first), `PutGone`, or
    /// `TransferFail` when every replica failed or its store was dropped meanwhile. With more than 4,096 items, each
    /// gets `InvalidParams`.
    ///
    /// A repeated end gets the same answer while the put is remembered, normally until its deadline. If more than 16
    /// ended puts of its shard are before their deadlines (with deadlines of 60 s, from about 2,000 puts a second on),
    /// those with the earliest deadlines are forgotten. The end of a forgotten put answers `Ok` while the object is the
    /// one that it made, else `PutGone`.
    pub code: Code,
    /// The visible version that the put replaced: an upsert's predecessor, or a version whose replicas were all on
    /// suspect stores. The answer to a repeated end of a forgotten put leaves it out.
    pub replaced: Option<PutId>,
}

/// The place of one replica, and the order of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedReplica {
    /// Id of the store.
    pub store: StoreId,
    /// Epoch of the store's memory.
    pub epoch: SegmentEpoch,
    /// Segment within the store.
    pub segment: SegmentNumber,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Order of the allocation, from the term and index of its entry (see [`crate::allocation_order`]).
    pub index: u64,
}
