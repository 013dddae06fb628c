//! The log's writer: the queue between the log's handles and the disk, with the state in memory that is ahead of the
//! disk, and the one writer that works the queue off.

pub(crate) mod observe;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod sizes;
pub(crate) mod tail;
pub(crate) mod vote_timing;
pub(crate) mod writer;
