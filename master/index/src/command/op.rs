//! Operations on the index, and the items of their batches.

use mc_types::{
    ClusterTime, GrantKey, PinAction, PutId, PutMode, Replication, STORE_INCARNATION, SegmentEpoch, StoreId,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::security::SecurityChange;
use super::settings::{Quota, Settings};
use crate::key::{GroupId, KeyHash};

/// Operations. Each is a batch where a batch makes sense; each item gets its own answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Advance the time; an idle leader logs one a second. Like every entry, it ends overdue puts, releases held bytes
    /// that are due, and forgets ended puts past their deadline in the next 16 of 16,384 shards.
    Tick,
    /// Allocate for puts. Answers `Response::PutStarted`.
    PutStart {
        /// Tenant of all items; empty is the default one.
        tenant: String,
        /// The puts.
        items: Vec<PutStartItem>,
    },
    /// Make puts visible. Answers `Response::PutEnded`.
    PutEnd {
        /// The puts.
        items: Vec<PutEndItem>,
    },
    /// Give puts up and free their bytes. Answers `Response::Codes`: `Ok` (also for an unknown id), or `InvalidWrite`
    /// for a put that has ended and is still remembered (see `PutEnded::code`).
    PutRevoke {
        /// The puts.
        puts: Vec<PutId>,
    },
    /// Remove objects. Answers `Response::Codes`: `Ok`, `ObjectNotFound`, `VersionChanged`.
    Remove {
        /// Tenant of all items.
        tenant: String,
        /// The objects.
        items: Vec<RemoveItem>,
    },
    /// Remove all objects of a tenant that are visible now. Answers `Response::Removed`. Puts in flight go on. The
    /// objects are invisible at once; [`Op::Sweep`] frees their bytes.
    RemoveAll {
        /// The tenant.
        tenant: String,
        /// Time from which the bytes may be reused.
        reuse_at: ClusterTime,
    },
    /// Drop the replicas of objects on one store; an object without another replica is removed. Answers
    /// `Response::Codes`: `Ok`, `ObjectNotFound` (also for an object without a replica there), `VersionChanged`.
    DropReplicas {
        /// Tenant of all items.
        tenant: String,
        /// The store.
        store: StoreId,
        /// The objects.
        items: Vec<RemoveItem>,
    },
    /// Evict objects to make room. Answers `Response::Codes`: `Ok`, `ObjectNotFound` when the key has another version
    /// by now or none, or `VersionChanged` when its group stays: a group is evicted only if the items name all of its
    /// members and no put is about to join it.
    Evict {
        /// The objects.
        items: Vec<EvictItem>,
        /// Time from which their bytes may be reused. Zero, which frees them at once, while no lease of this term or an
        /// earlier one can run on them.
        reuse_at: ClusterTime,
    },
    /// Note which objects were used again after the call that put them, for the eviction order of the next leader.
    /// Answers `Response::Done`. Keys without an object are passed over.
    NoteReuse {
        /// Hashes of the keys.
        keys: Vec<KeyHash>,
        /// Epoch of the use (see [`reuse_epoch`]).
        epoch: u32,
        /// Share of the once-seen queue in the leader's order, of 2^32.
        once_share: u32,
    },
    /// Mount a store's memory. Answers `Response::Codes` with one code: `Ok` (also when this epoch is mounted
    /// already), `StoreEpochDead`, `InvalidParams`. A new epoch of a known store replaces the old one, whose replicas
    /// become invisible at once.
    MountStore(MountStore),
    /// Drop a store whose memory is gone (unmounted or expired): its replicas are invisible from this entry on. Answers
    /// `Response::Codes` with one code: `Ok`, also when that epoch is not mounted.
    DropStore {
        /// The store.
        store: StoreId,
        /// The epoch to end; any other epoch stays mounted.
        epoch: SegmentEpoch,
    },
    /// Free a slice of what dropped stores held, then of the objects that [`Op::RemoveAll`] removed. Answers
    /// `Response::Swept`.
    Sweep {
        /// Maximum number of objects to visit.
        limit: u32,
    },
    /// Register a tenant with a quota, or unregister it. Answers `Response::Codes` with one code: `Ok`,
    /// `InvalidParams` for a name that is too long, `TenantNotRegistered`, or `TenantNotEmpty`.
    SetTenant {
        /// The tenant.
        tenant: String,
        /// Its quota; `None` to unregister it.
        quota: Option<Quota>,
    },
    /// Set or remove an entry of the key-value table. Answers `Response::Codes` with one code: `Ok`, `InvalidKey`,
    /// `InvalidParams` for a value that is too long, `ObjectNotFound` for an entry to remove, `NoAvailableHandle` when
    /// the table is full.
    SetKeyValue {
        /// Key of the entry.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// Its value; `None` to remove it.
        value: Option<serde_bytes::ByteBuf>,
    },
    /// Replace the replicated settings.
    SetSettings(Settings),
    /// Raise the cluster version; lower or equal ones do nothing.
    SetClusterVersion(u32),
    /// Make puts visible whose stores have proven that they wrote them: from cluster version 3 on, a leader ends no others.
    /// Answers `Response::PutEnded`.
    PutEndProven {
        /// The puts.
        items: Vec<ProvenEnd>,
    },
    /// Change the access settings. Answers `Response::Codes` with one code: `Ok`, `InvalidParams`, `ObjectNotFound` for a principal to
    /// remove that has no record, `NoAvailableHandle` when a table is full. From cluster version 3 on.
    SetSecurity(SecurityChange),
}

/// Length of an epoch of reuse: the precision with which the index knows the last use of an object.
const REUSE_EPOCH_MS: u64 = 5 * 60 * 1000;

/// Returns the number of the epoch of reuse at a time, from 1 on. An object with epoch 0 was not noted as reused.
#[must_use]
pub fn reuse_epoch(time: ClusterTime) -> u32 {
    u32::try_from(time.0 / REUSE_EPOCH_MS + 1).unwrap_or(u32::MAX)
}

/// Key of a put that starts. Keys of up to 128 bytes are stored inline: otherwise decoding a batch of a hundred would
/// make a hundred allocations, spread over a heap that the index fills.
pub type StartKey = SmallVec<[u8; 128]>;

/// One object of a put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutStartItem {
    /// The put, which becomes the object's version.
    #[serde(with = "id_bytes")]
    pub put: PutId,
    /// Key, 1 B to 4 KiB.
    #[serde(with = "key_bytes")]
    pub key: StartKey,
    /// Bytes, at least 1.
    pub size: u64,
    /// Behaviour when the key exists. An upsert holds the old bytes until `reuse_at` of its end.
    pub mode: PutMode,
    /// Number of replicas, at least 1.
    pub replicas: u8,
    /// Time at which a put that has not ended is given up; capped by the settings.
    pub deadline: ClusterTime,
    /// Stores to try first, in this order.
    pub preferred: SmallVec<[StoreId; 2]>,
    /// Stores that have just failed the caller; no replica is placed on them.
    pub avoid: SmallVec<[StoreId; 2]>,
    /// Pin of the object that the put makes, decided when it starts.
    pub pin: PinAction<ClusterTime>,
    /// Whether fewer replicas than asked for will do.
    pub replication: Replication,
    /// Tag of the object, which the index keeps and does not interpret.
    pub data_type: u8,
    /// Group that the object joins.
    pub group: Option<GroupId>,
}

impl PutStartItem {
    /// A put of one replica if the key is absent, with defaults otherwise.
    #[must_use]
    pub fn new(put: PutId, key: &[u8], size: u64, deadline: ClusterTime) -> Self {
        Self {
            put,
            key: key.into(),
            size,
            mode: PutMode::IfAbsent,
            replicas: 1,
            deadline,
            preferred: SmallVec::new(),
            avoid: SmallVec::new(),
            pin: PinAction::default(),
            replication: Replication::default(),
            data_type: 0,
            group: None,
        }
    }
}

/// The end of one object's put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutEndItem {
    /// The put.
    #[serde(with = "id_bytes")]
    pub put: PutId,
    /// Hash of its key, by which a repeated end finds the object that the put made. The key itself would have to be
    /// logged, sent and read once more, and is not needed: the object names its put.
    pub key: KeyHash,
    /// CRC-64/NVME of the value.
    #[serde(with = "postcard::fixint::be")]
    pub checksum: u64,
    /// Replicas that were not written, by their position in the start's answer. They are freed.
    pub failed: SmallVec<[u8; 2]>,
    /// End of the last lease on the visible version. If this put replaces that version (an upsert, or a put-if-absent
    /// over a version on suspect stores only), its bytes are held until then.
    pub reuse_at: ClusterTime,
}

impl PutEndItem {
    /// The end of a put that has written all of its replicas and replaces no leased version.
    #[must_use]
    pub fn new(put: PutId, key: KeyHash, checksum: u64) -> Self {
        Self { put, key, checksum, failed: SmallVec::new(), reuse_at: ClusterTime(0) }
    }
}

/// The end of one object's put, with what the leader has seen proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenEnd {
    /// The end.
    pub end: PutEndItem,
    /// Log index of the allocation whose replicas are proven to be written, but for the failed ones. A put can time out
    /// and be started again under the same id after the leader's check; `apply` then finds another index and refuses the end.
    pub index: u64,
}

/// One object to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveItem {
    /// The object's key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Version that the leader saw; any other version is left alone.
    #[serde(with = "id_bytes")]
    pub version: PutId,
    /// End of the last lease granted on the object. Its bytes are held until then.
    pub reuse_at: ClusterTime,
}

/// One object to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictItem {
    /// Hash of its key. The eviction order is kept by hash, which is shorter than the key.
    pub key: KeyHash,
    /// Version that the leader saw; any other version is left alone.
    #[serde(with = "id_bytes")]
    pub version: PutId,
}

/// A store and the memory it lends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStore {
    /// The store.
    pub store: StoreId,
    /// Epoch: this allocation of the store's memory.
    pub epoch: SegmentEpoch,
    /// Human-readable name.
    pub name: String,
    /// Key that seals its grants.
    pub grant_key: GrantKey,
    /// Endpoints that serve its bytes, in order of preference.
    pub endpoints: Vec<Endpoint>,
    /// Bytes of each segment; the index in this list is the [segment number](mc_types::SegmentNumber). A segment that was unmounted has 0 bytes
    /// and keeps its place. In a later mount of the same epoch, segments may be added at the end and become 0.
    pub segments: Vec<u64>,
    /// host:port of its HTTP server.
    pub http: String,
}

impl MountStore {
    /// Returns the number of the store's process among those that have served this epoch one after the other, counted from 1, which a
    /// mount that names none is of. 0 if what it names is no number.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        let mut attributes = self.endpoints.iter().flat_map(|endpoint| &endpoint.attributes);
        attributes
            .find(|(name, _)| name == STORE_INCARNATION)
            .map_or(1, |(_, number)| number.parse().unwrap_or(0))
    }
}

/// One way to reach a store's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of the transport: `tcp`.
    pub transport: String,
    /// host:port.
    pub address: String,
    /// Further data for the transport: names and values.
    pub attributes: Vec<(String, String)>,
}

/// Encodes put ids as bytes.
///
/// Ids, hashes and checksums are random: as numbers of variable length they would be longer, and slower to read. Only
/// the list of a revoke, which is rare, has ids as numbers.
mod id_bytes {
    use mc_types::PutId;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(put: &PutId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&put.to_bytes())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PutId, D::Error> {
        let bytes: &[u8] = serde_bytes::deserialize(from)?;
        PutId::from_bytes(bytes)
            .ok_or_else(|| D::Error::invalid_length(bytes.len(), &"the 16 bytes of a put id"))
    }
}

mod key_bytes {
    use serde::{Deserializer, Serializer};

    use super::StartKey;

    pub(crate) fn serialize<S: Serializer>(key: &StartKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(key)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StartKey, D::Error> {
        serde_bytes::deserialize(from).map(StartKey::from_slice)
    }
}
