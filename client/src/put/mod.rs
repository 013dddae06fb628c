//! Puts: start at the leader, write to the stores, end at the leader.

mod calls;
mod engine;
mod publish;
mod round;

pub use calls::PutFrom;

pub(crate) use engine::{
    Call, Fill, KEPT_FOR_THE_END, KEPT_FOR_THE_OTHERS, STRAGGLE, check_options, write_by,
};
pub(crate) use publish::publish;
#[cfg(feature = "testing")]
pub(crate) use round::Refused;
pub(crate) use round::{Pending, PutItem, Round, Written};
