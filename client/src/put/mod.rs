//! Puts: start at the leader, write to the stores, end at the leader.

mod calls;
mod engine;
mod publish;
mod round;

pub use calls::PutFrom;

pub(crate) use engine::{
    CacheUse, KEPT_FOR_THE_END, KEPT_FOR_THE_OTHERS, PutBatch, STRAGGLE, check_options, note_results,
    write_by,
};
pub(crate) use publish::publish;
#[cfg(feature = "testing")]
pub(crate) use round::StartRefusal;
pub(crate) use round::{PendingPut, PutItem, PutStep, StartedPut};
