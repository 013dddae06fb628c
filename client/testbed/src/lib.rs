//! A testbed: a pool of child processes, a workload whose every byte can be checked, and the end of the leader under it.
//!
//! The playground and the benches use it. A program that starts children calls [`role_of_this_process`] first in its `main`: its
//! children are itself, run as a master or a store.

mod children;
mod failover;
mod workload;

pub use children::{
    ChildrenError, Cluster, Master, Process, Security, Shape, Store, died_of, role_of_this_process,
    segment_bytes,
};
pub use failover::{Ending, Failover, end_leader};
pub use workload::{
    Attempt, Block, Capacity, Counted, Driver, Generator, Keyspace, Ledger, Miss, Object, Request, Requests,
    TraceError, Verdict, baseline, put_until_decided, read_trace, value, verify,
};
