use mc_types::{ClusterTime, PutId, PutMode};
use smallvec::SmallVec;

use crate::command::PlacedReplica;
use crate::key::KeyHash;
use crate::state::State;

/// A put in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutView<'a> {
    /// Name of the tenant, in bytes.
    pub tenant: &'a [u8],
    /// Key.
    pub key: &'a [u8],
    /// Size of the value in bytes.
    pub size: u64,
    /// Behaviour when the key exists.
    pub mode: PutMode,
    /// Time at which the put is ended if it has not ended by itself.
    pub deadline: ClusterTime,
    /// Replicas, as the answer of its start lists them.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

impl State {
    /// Returns a put in flight.
    #[must_use]
    pub fn put(&self, put: PutId) -> Option<PutView<'_>> {
        let put = self.puts.in_flight(put)?;
        let (&tenant_len, rest) = put.key.bytes().split_first()?;
        let (tenant, key) = rest.split_at_checked(usize::from(tenant_len))?;
        Some(PutView {
            tenant,
            key,
            size: put.size,
            mode: put.mode,
            deadline: put.deadline,
            replicas: put.replicas.iter().map(|replica| replica.placed).collect(),
        })
    }

    /// Whether a put of this key of a tenant is in flight: it was started, and nothing has ended it yet.
    ///
    /// A put whose deadline has passed stays in flight until a log entry ends it. Each entry does so for 1,024 puts or
    /// more, and a leader makes one every second. Keys are told apart by their hashes of 64 bits alone.
    #[must_use]
    pub fn is_being_written(&self, tenant: &str, key: &[u8]) -> bool {
        self.puts.is_being_written(KeyHash::of(tenant, key))
    }

    /// Bytes of the replicas of puts in flight, each rounded up to the alignment.
    #[must_use]
    pub fn in_flight_bytes(&self) -> u64 {
        self.puts.bytes_in_flight()
    }

    /// Number of puts in flight.
    #[must_use]
    pub fn puts_in_flight(&self) -> u64 {
        self.puts.len_in_flight() as u64
    }
}
