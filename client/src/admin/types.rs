//! Types of the masters' reports, as [`Admin`](super::Admin) returns them.

use std::time::Duration;

use mc_discovery::Leader;
use mc_proto::v1;
use mc_transfer::PeerEndpoint;
use mc_types::{ByteSize, ClientId, ClusterId, NodeId, SegmentEpoch, StoreId};

use crate::placement::endpoint;

/// One master's report of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterStatus {
    /// Id of its cluster; `None` until one has formed.
    pub cluster: Option<ClusterId>,
    /// Its node id.
    pub node: NodeId,
    /// Name and version of its software.
    pub software: String,
    /// `leader`, `follower`, `learner`, `candidate`, `stopped` or `forming`.
    pub role: String,
    /// Its term.
    pub term: u64,
    /// The leader, if it knows one.
    pub leader: Option<Leader>,
    /// Index of the last log entry that it knows to be committed.
    pub committed: u64,
    /// Index of the last log entry that it has applied.
    pub applied: u64,
    /// Objects in its index.
    pub keys: u64,
    /// Cluster time, in ms since the cluster formed.
    pub cluster_time_ms: u64,
    /// The members of its cluster.
    pub members: Vec<Member>,
    /// The stores of its cluster.
    pub stores: Vec<StoreStatus>,
    /// Puts that were started and have not ended.
    pub puts_in_flight: u64,
    /// The cluster version in effect.
    pub cluster_version: u32,
    /// Highest cluster version that its build supports.
    pub cluster_version_max: u32,
    /// Its process id.
    pub pid: u32,
    /// Reason why there is no cluster or no leader, in words; empty when all is well.
    pub waiting_for: String,
    /// Reason why a leader starts no puts, in words; empty when it does.
    pub no_puts: String,
    /// `lan`, `wan`, or other heartbeats and election timeouts in words; empty until it takes part in Raft.
    pub raft_timing: String,
    /// Clients of older builds that started a put within the last minute, and stores of older builds, the latest first, 256 at
    /// most. Only the leader reports them.
    pub outdated: Vec<OutdatedCaller>,
}

/// A client or store whose newest protocol version is older than its leader's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutdatedCaller {
    /// Its client id; a store's is its store id.
    pub client: ClientId,
    /// Name of the store; empty for a client.
    pub store: String,
    /// IP address from which it called; empty if that is not known.
    pub host: String,
    /// Newest protocol version that it speaks.
    pub version_max: u32,
    /// Time since its latest put or heartbeat.
    pub silent: Duration,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its node id.
    pub node: NodeId,
    /// host:port of its Raft service.
    pub raft_address: String,
    /// host:port of its client API.
    pub client_address: String,
    /// host:port of its HTTP server.
    pub http_address: String,
    /// Whether it is a voter. A learner copies the index before it gets its vote.
    pub voter: bool,
    /// Number of entries of the leader's log that the member is not known to have. Only the leader reports it.
    pub lag_entries: Option<u64>,
    /// Time since the leader sent the latest message that the member has answered. Only the leader reports it, and only
    /// for members that have answered in its term.
    pub silent: Option<Duration>,
}

/// The members of the cluster, as its leader reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Members {
    /// All members of the cluster.
    pub members: Vec<Member>,
    /// Leader, if the answering master knows one.
    pub leader: Option<Leader>,
}

/// State of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreState {
    /// The leader receives its heartbeats.
    Alive,
    /// The leader does not receive its heartbeats, and offers none of its replicas.
    Suspect,
    /// The reporting master is not the leader and cannot tell.
    #[default]
    Unknown,
}

/// A mounted store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatus {
    /// Its id.
    pub store: StoreId,
    /// Its name, for people.
    pub name: String,
    /// Epoch of its memory.
    pub epoch: SegmentEpoch,
    /// Addresses of its memory.
    pub endpoints: Vec<PeerEndpoint>,
    /// State of the store.
    pub state: StoreState,
    /// Memory that the store lends.
    pub capacity: ByteSize,
    /// Memory that is allocated.
    pub used: ByteSize,
    /// Number of replicas on it.
    pub objects: u64,
    /// host:port of its HTTP server.
    pub http_address: String,
    /// Its segments, by number.
    pub segments: Vec<SegmentStatus>,
    /// Its transports, offered or not; empty if the asked master does not lead, or has not heard of them yet.
    pub transports: Vec<TransportStatus>,
}

/// A transport of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportStatus {
    /// Its name: tcp, shm or rdma.
    pub name: String,
    /// Whether the store offers it.
    pub offered: bool,
    /// How the store offers the transport, or the reason why it does not.
    pub how: String,
    /// Bytes that clients read by it since the store started.
    pub read: ByteSize,
    /// Bytes that clients wrote by it since the store started.
    pub written: ByteSize,
}

/// A segment of a mounted store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentStatus {
    /// Number within its store.
    pub number: u32,
    /// Memory of the segment.
    pub capacity: ByteSize,
    /// Memory that is allocated.
    pub used: ByteSize,
    /// Number of replicas in it.
    pub objects: u64,
}

/// A replicated setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its current value, as text.
    pub value: String,
    /// Its value in a cluster whose masters configure no other.
    pub default_value: String,
    /// Its effect in one line.
    pub help: String,
    /// Whether it is fixed while the cluster runs.
    pub fixed: bool,
}

/// The replicated settings and the cluster version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// All settings.
    pub settings: Vec<Setting>,
    /// The cluster version in effect.
    pub cluster_version: u32,
}

impl MasterStatus {
    /// Reads a reply; `None` when an id in it is malformed.
    pub(super) fn read(reply: v1::StatusReply) -> Option<Self> {
        Some(Self {
            cluster: ClusterId::from_bytes(&reply.cluster_id),
            node: NodeId::from_bytes(&reply.node_id)?,
            leader: Leader::read(reply.leader.as_ref()),
            members: reply.masters.into_iter().map(Member::read).collect::<Option<_>>()?,
            stores: reply.stores.into_iter().map(StoreStatus::read).collect::<Option<_>>()?,
            software: reply.software,
            role: reply.role,
            term: reply.term,
            committed: reply.committed,
            applied: reply.applied,
            keys: reply.keys,
            cluster_time_ms: reply.cluster_time_ms,
            puts_in_flight: reply.puts_in_flight,
            cluster_version: reply.cluster_version,
            cluster_version_max: reply.cluster_version_max,
            pid: reply.pid,
            waiting_for: reply.waiting_for,
            no_puts: reply.no_puts,
            raft_timing: reply.raft_timing,
            outdated: reply.outdated.into_iter().map(OutdatedCaller::read).collect::<Option<_>>()?,
        })
    }
}

impl OutdatedCaller {
    /// Reads a caller; `None` when its id is malformed.
    fn read(caller: v1::OutdatedCaller) -> Option<Self> {
        Some(Self {
            client: ClientId::from_bytes(&caller.client_id)?,
            store: caller.store,
            host: caller.host,
            version_max: caller.version_max,
            silent: Duration::from_millis(caller.silent_ms),
        })
    }
}

impl Member {
    /// Reads a member's status; `None` when its id is malformed.
    pub(super) fn read(member: v1::MemberStatus) -> Option<Self> {
        Some(Self {
            node: NodeId::from_bytes(&member.node_id)?,
            raft_address: member.raft_address,
            client_address: member.client_address,
            http_address: member.http_address,
            voter: member.voter,
            lag_entries: member.lag_entries,
            silent: member.silent_ms.map(Duration::from_millis),
        })
    }
}

impl Members {
    /// Reads a reply; `None` when an id in it is malformed.
    pub(super) fn read(reply: v1::ListMembersReply) -> Option<Self> {
        let members = reply.members.into_iter().map(Member::read).collect::<Option<_>>()?;
        Some(Self { members, leader: Leader::read(reply.leader.as_ref()) })
    }
}

impl SegmentStatus {
    fn read(segment: v1::SegmentStatus) -> Self {
        Self {
            number: segment.number,
            capacity: ByteSize(segment.capacity_bytes),
            used: ByteSize(segment.used_bytes),
            objects: segment.objects,
        }
    }
}

impl StoreStatus {
    fn read(store: v1::StoreStatus) -> Option<Self> {
        Some(Self {
            store: StoreId::from_bytes(&store.store_id)?,
            name: store.name,
            epoch: SegmentEpoch::from_bytes(&store.epoch)?,
            endpoints: store.endpoints.into_iter().map(endpoint).collect(),
            state: match store.state.as_str() {
                "alive" => StoreState::Alive,
                "suspect" => StoreState::Suspect,
                _ => StoreState::Unknown,
            },
            capacity: ByteSize(store.capacity_bytes),
            used: ByteSize(store.used_bytes),
            objects: store.objects,
            http_address: store.http_address,
            segments: store.segments.into_iter().map(SegmentStatus::read).collect(),
            transports: store.transports.into_iter().map(TransportStatus::read).collect(),
        })
    }
}

impl TransportStatus {
    fn read(transport: v1::TransportStatus) -> Self {
        let v1::TransportStatus { name, offered, how, read_bytes, written_bytes } = transport;
        Self { name, offered, how, read: ByteSize(read_bytes), written: ByteSize(written_bytes) }
    }
}

/// Limits of what a tenant may have in the pool, puts in flight included. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// Bytes of all replicas; 0 for no limit.
    pub bytes: ByteSize,
    /// Objects; 0 for no limit.
    pub objects: u64,
}

impl Quota {
    /// Sets the limit on [bytes](Self::bytes).
    #[must_use]
    pub fn with_bytes(mut self, bytes: ByteSize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the limit on [objects](Self::objects).
    #[must_use]
    pub fn with_objects(mut self, objects: u64) -> Self {
        self.objects = objects;
        self
    }
}

/// A tenant with its quota and its use of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenant {
    /// Its name; empty for the default tenant.
    pub name: String,
    /// Whether it has a quota of its own, rather than the default one.
    pub registered: bool,
    /// Quota that binds it.
    pub quota: Quota,
    /// Number of its objects.
    pub objects: u64,
    /// Bytes of their replicas.
    pub bytes: ByteSize,
    /// Number of its puts in flight.
    pub puts_in_flight: u64,
    /// Bytes of their replicas.
    pub bytes_in_flight: ByteSize,
    /// Part of all these bytes that is hard-pinned.
    pub hard_pinned_bytes: ByteSize,
    /// Most calls of its users in a second; 0 for no limit.
    pub calls_per_s: u32,
    /// Whether its bytes may not go by RDMA, which does not encrypt them.
    pub avoids_rdma: bool,
}

/// Rules for a tenant besides its quota. A rule that is not set does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantRules {
    pub(super) calls_per_s: Option<u32>,
    pub(super) rdma: Option<bool>,
}

impl TenantRules {
    /// Sets the most calls of its users in a second; 0 for no limit.
    #[must_use]
    pub fn with_calls_per_s(self, calls: u32) -> Self {
        Self { calls_per_s: Some(calls), ..self }
    }

    /// Sets whether its bytes may go by RDMA, which does not encrypt them.
    #[must_use]
    pub fn with_rdma(self, allowed: bool) -> Self {
        Self { rdma: Some(allowed), ..self }
    }
}

impl Tenant {
    pub(super) fn read(tenant: v1::Tenant) -> Self {
        let v1::Quota { bytes, objects } = tenant.quota.unwrap_or_default();
        Self {
            name: tenant.name,
            registered: tenant.registered,
            quota: Quota { bytes: ByteSize(bytes), objects },
            objects: tenant.objects,
            bytes: ByteSize(tenant.bytes),
            puts_in_flight: tenant.puts_in_flight,
            bytes_in_flight: ByteSize(tenant.bytes_in_flight),
            hard_pinned_bytes: ByteSize(tenant.hard_pinned_bytes),
            calls_per_s: tenant.calls_per_s,
            avoids_rdma: tenant.avoids_rdma,
        }
    }
}

impl Setting {
    pub(super) fn read(setting: v1::Setting) -> Self {
        let v1::Setting { name, value, default_value, help, fixed } = setting;
        Self { name, value, default_value, help, fixed }
    }
}
