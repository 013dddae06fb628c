//! The Raft port: it checks each message, passes it to openraft, and answers.

pub(crate) mod receive_snapshot;
pub(crate) mod rpc_times;
pub(crate) mod served_node;
pub(crate) mod service;
pub(crate) mod status;
