use super::link::{Broken, ConnectError};

/// Reason why an endpoint did not carry the work.
pub(crate) enum Failure {
    /// The deadline passed before a connection was free.
    Queued,
    /// The deadline passed while bytes were moving.
    Deadline,
    /// The store moves no byte.
    Stalled(String),
    Connect(ConnectError),
    /// The connection is unusable.
    Broken(String),
    /// The path beside the connection failed, or can't carry the work.
    Path(String),
    /// The bytes may not go by RDMA, and by nothing else either.
    RdmaOff,
    /// That path failed, and the store may still use the caller's memory: the work must not be repeated from that memory.
    Held(String),
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken.to_string())
    }
}
