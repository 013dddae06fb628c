//! Replicated commands, and the answers of applying them.
//!
//! The encoding is one format byte, then postcard. It is strict: unknown variants, missing fields and trailing bytes
//! are errors, so that a replica can never skip what it does not understand. Golden files in `testdata/` hold every
//! variant; a change of encoding is a new format byte.

use bytes::Bytes;
use mc_types::{ClusterTime, Code, GrantKey, PutId, SegmentEpoch, SegmentNumber, StoreId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::key::KeyHash;
use super::settings::Settings;

const COMMAND_FORMAT: u8 = 3;

/// One log entry: what the leader stamped and what is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Facts that are not in the state.
    pub stamp: Stamp,
    /// The operation.
    pub op: Op,
}

/// Facts from outside the state, stamped by the leader so that every replica sees the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Cluster time as the leader counts it; `apply` takes the maximum of this and its own.
    pub now: ClusterTime,
    /// Term of the leader whose soft state (leases, store liveness) this was decided from. An entry of another term
    /// does nothing: what was decided from soft state dies with it.
    pub term: u64,
    /// Random bits for placement.
    pub seed: u64,
    /// Stores that are suspect: not placed on, and their replicas not counted as present.
    pub suspects: Vec<StoreId>,
}

/// Operations. Each is a batch where a batch makes sense; each item gets its own answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Nothing but time: an idle leader logs one a second. Like every entry that is applied it frees what ended puts
    /// past their deadline take up, in the next 16 of their 16,384 shards.
    Tick,
    /// Allocate for puts. Answers [`Response::PutStarted`].
    PutStart {
        /// Tenant of all items; empty is the default one.
        tenant: String,
        /// The puts.
        items: Vec<PutStartItem>,
    },
    /// Make puts visible. Answers [`Response::PutEnded`].
    PutEnd {
        /// The puts.
        items: Vec<PutEndItem>,
    },
    /// Give puts up and free their bytes. Answers [`Response::Codes`]: `Ok` (also for an unknown id), `InvalidWrite`
    /// for one that has ended and is remembered (see [`PutEnded::code`]).
    PutRevoke {
        /// The puts.
        puts: Vec<PutId>,
    },
    /// Remove objects. Answers [`Response::Codes`]: `Ok`, `ObjectNotFound`, `VersionChanged`.
    Remove {
        /// Tenant of all items.
        tenant: String,
        /// The objects.
        items: Vec<RemoveItem>,
    },
    /// A store lends memory. Answers [`Response::Codes`] with one code: `Ok` (also when this epoch is mounted
    /// already), `StoreEpochDead`, `InvalidParams`. A new epoch of a known store replaces the old one, whose replicas
    /// become invisible at once.
    MountStore(MountStore),
    /// A store's memory is gone (unmounted or expired): its replicas are invisible from this entry on. Answers
    /// [`Response::Codes`] with one code: `Ok`, also when that epoch is not mounted.
    DropStore {
        /// The store.
        store: StoreId,
        /// The epoch that ends; another one is left alone.
        epoch: SegmentEpoch,
    },
    /// Free a slice of what dropped stores held. Answers [`Response::Swept`].
    Sweep {
        /// Most objects to visit.
        limit: u32,
    },
    /// Replace the replicated settings.
    SetSettings(Settings),
    /// Raise the cluster version; lower or equal ones do nothing.
    SetClusterVersion(u32),
}

/// A key of a put that starts. In place, where it is not long: a batch of a hundred would else be a hundred allocations
/// each time that it is decoded, spread over a heap that the index fills.
pub type StartKey = SmallVec<[u8; 128]>;

/// One object of a put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutStartItem {
    /// The put, which becomes the object's version.
    #[serde(with = "id_bytes")]
    pub put: PutId,
    /// 1 B to 4 KiB.
    #[serde(with = "key_bytes")]
    pub key: StartKey,
    /// Bytes, at least 1.
    pub size: u64,
    /// Behaviour when the key exists.
    pub mode: PutMode,
    /// How many replicas, at least 1. Fewer are placed when fewer stores have room.
    pub replicas: u8,
    /// The put is ended at this time if it has not ended itself; capped by the settings.
    pub deadline: ClusterTime,
    /// Stores to try first, in this order.
    pub preferred: SmallVec<[StoreId; 2]>,
    /// Stores that failed the caller just now.
    pub avoid: SmallVec<[StoreId; 2]>,
}

/// Behaviour of a put whose key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PutMode {
    /// The object stays; the put answers `ObjectAlreadyExists`.
    IfAbsent,
    /// The put's version replaces the object when it ends; the old bytes are held until `reuse_at` of the end.
    Upsert,
}

/// The end of one object's put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutEndItem {
    /// The put.
    #[serde(with = "id_bytes")]
    pub put: PutId,
    /// Its key, by which a repeated end finds the object that it made. A hash will do, since that object knows the put:
    /// the key itself would be logged, sent and read once more.
    pub key: KeyHash,
    /// CRC-64/NVME of the value.
    #[serde(with = "postcard::fixint::be")]
    pub checksum: u64,
    /// Replicas, by their place in the start's answer, that were not written: they are freed.
    pub failed: SmallVec<[u8; 2]>,
    /// End of the last lease on the version that is there: its bytes are held until then if this put replaces it (an
    /// upsert, or a put-if-absent over a version on suspect stores only).
    pub reuse_at: ClusterTime,
}

/// One object to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveItem {
    /// The object's key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// The version that the leader saw; another one is left alone.
    #[serde(with = "id_bytes")]
    pub version: PutId,
    /// End of the last lease granted on it: its bytes are held until then.
    pub reuse_at: ClusterTime,
}

/// A store and the memory it lends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStore {
    /// The store.
    pub store: StoreId,
    /// This allocation of its memory.
    pub epoch: SegmentEpoch,
    /// For people.
    pub name: String,
    /// Key of its grants.
    pub grant_key: GrantKey,
    /// Where its bytes are served, in order of preference.
    pub endpoints: Vec<Endpoint>,
    /// Bytes of each segment; the place in the list is the [`SegmentNumber`].
    pub segments: Vec<u64>,
    /// host:port of its HTTP.
    pub http: String,
}

/// One way to reach a store's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `tcp`.
    pub transport: String,
    /// host:port.
    pub address: String,
    /// Further data for the transport.
    pub attributes: Vec<(String, String)>,
}

/// Answer of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Nothing to say (ticks, settings, cluster versions, blank and membership entries).
    Done,
    /// One per item of a [`Op::PutStart`].
    PutStarted(Vec<PutStarted>),
    /// One per item of a [`Op::PutEnd`].
    PutEnded(Vec<PutEnded>),
    /// One per item.
    Codes(Vec<Code>),
    /// Whether objects of dropped stores are left to sweep.
    Swept {
        /// More slices are needed.
        more: bool,
    },
    /// The stamp's term is not the entry's: nothing was done, for any operation but ticks, settings and cluster
    /// versions, which no leader decides from its soft state.
    WrongTerm,
}

/// The answer to a put's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutStarted {
    /// `Ok`, `ObjectAlreadyExists` (also when this very put has ended well), `NoAvailableHandle`, `ObjectTooLarge`,
    /// `InvalidKey`, `InvalidParams` (also for a deadline that has passed, and for a put id in flight with another key
    /// or size), `PutGone` when this very put has ended with every replica failed. That a put has ended is known while
    /// it is remembered (see [`PutEnded::code`]), and afterwards while the object is the one that it made.
    pub code: Code,
    /// Where to write; empty unless `Ok`.
    pub replicas: SmallVec<[PlacedReplica; 1]>,
}

/// The answer to a put's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutEnded {
    /// `Ok`, `ObjectAlreadyExists` (a success: another put-if-absent of the key was first), `PutGone`,
    /// `TransferFail` when every replica failed or its store was dropped meanwhile. More than 4,096 items:
    /// `InvalidParams` for each.
    ///
    /// A repeated end gets the same answer while the put is remembered: until its deadline, unless more than 16 puts of
    /// its shard have ended whose deadlines are still to come (with deadlines of 60 s, from about 2,000 puts a second
    /// on); then those with the earliest deadlines are forgotten. The end of a forgotten put answers `Ok` while the
    /// object is the one that it made, else `PutGone`.
    pub code: Code,
    /// The visible version that it replaced: an upsert's, or one whose replicas were all on suspect stores. A repeat
    /// of a put that is forgotten no longer names it.
    pub replaced: Option<PutId>,
}

/// One replica's place and the order of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedReplica {
    /// Store.
    pub store: StoreId,
    /// Its memory.
    pub epoch: SegmentEpoch,
    /// Segment within the store.
    pub segment: SegmentNumber,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Order of the allocation, from term and index of the entry that made it.
    pub index: u64,
}

/// Ids, hashes and checksums are random: as numbers of variable length they would be longer than their bytes, and slower
/// to read. (Only the list of a revoke, which is rare, has them so.)
mod id_bytes {
    use mc_types::PutId;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(put: &PutId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&put.to_bytes())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PutId, D::Error> {
        let bytes: &[u8] = serde_bytes::deserialize(from)?;
        PutId::from_bytes(bytes)
            .ok_or_else(|| D::Error::invalid_length(bytes.len(), &"the 16 bytes of a put id"))
    }
}

mod key_bytes {
    use serde::{Deserializer, Serializer};

    use super::StartKey;

    pub(super) fn serialize<S: Serializer>(key: &StartKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(key)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StartKey, D::Error> {
        serde_bytes::deserialize(from).map(StartKey::from_slice)
    }
}

/// Why bytes are not a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by another build.
    #[error(
        "command format {} is {} than this build's {COMMAND_FORMAT}: start the build of mc-master that wrote it",
        .0, than_ours(*.0)
    )]
    Format(u8),
    /// Not decodable to the last byte.
    #[error("command is malformed: {0}")]
    Malformed(String),
}

fn than_ours(format: u8) -> &'static str {
    if format > COMMAND_FORMAT { "newer" } else { "older" }
}

impl Command {
    /// Encodes the command for the log.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.room());
        out.push(COMMAND_FORMAT);
        postcard::to_extend(self, out).expect("a command of plain values always encodes").into()
    }

    /// About what the encoding takes, mostly more: growing would copy a large batch a dozen times.
    fn room(&self) -> usize {
        let keys: usize = match &self.op {
            Op::PutStart { items, .. } => {
                let stores = |item: &PutStartItem| item.preferred.len() + item.avoid.len();
                items.iter().map(|item| item.key.len() + 40 + 10 * stores(item)).sum()
            }
            Op::PutEnd { items } => items.len() * 56,
            Op::Remove { items, .. } => items.iter().map(|item| item.key.len() + 32).sum(),
            Op::PutRevoke { puts } => puts.len() * 20,
            _ => 0,
        };
        keys + 256
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] for another format, an unknown variant or trailing bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.split_first() {
            Some((&COMMAND_FORMAT, body)) => match postcard::take_from_bytes(body) {
                Ok((command, [])) => Ok(command),
                Ok((_, rest)) => Err(DecodeError::Malformed(format!("{} bytes too many", rest.len()))),
                Err(err) => Err(DecodeError::Malformed(err.to_string())),
            },
            Some((&format, _)) => Err(DecodeError::Format(format)),
            None => Err(DecodeError::Malformed("empty".into())),
        }
    }
}
