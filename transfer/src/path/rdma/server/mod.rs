//! The store's end of RDMA.

mod end;
mod requests;
mod subnets;

pub(crate) use self::requests::{ConnectionPair, Pairs};
