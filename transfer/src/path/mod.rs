//! The paths that bytes take between a client and a store. Each has an end at both, and knows the messages of [`crate::control`], not
//! the other paths.

pub(crate) mod rdma;
pub(crate) mod shm;
mod tcp;
