use mc_types::{ClusterTime, PutId, PutMode, SegmentEpoch, SegmentNumber, StoreId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::command::{MountStore, Pin, Quota, Settings};
use crate::key::{GroupId, KeyHash};
use crate::objects::Replica;
use crate::puts::{Ended, PutReplica};
use crate::tenants::RemovalMark;

/// Sections of a snapshot, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Section {
    Header = 1,
    Tenants = 2,
    Stores = 3,
    Segments = 4,
    Runs = 5,
    Objects = 6,
    Puts = 7,
    Ended = 8,
    LostMembers = 9,
    Held = 10,
    KeyValues = 11,
    Trailer = 12,
}

impl Section {
    pub(super) const COUNT: usize = 12;

    const ALL: [Self; Self::COUNT] = [
        Self::Header,
        Self::Tenants,
        Self::Stores,
        Self::Segments,
        Self::Runs,
        Self::Objects,
        Self::Puts,
        Self::Ended,
        Self::LostMembers,
        Self::Held,
        Self::KeyValues,
        Self::Trailer,
    ];

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.number() == number)
    }

    pub(super) fn number(self) -> u8 {
        self as u8
    }

    /// Index in the trailer's counts.
    pub(super) fn place(self) -> usize {
        usize::from(self.number() - 1)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Tenants => "tenants",
            Self::Stores => "stores",
            Self::Segments => "segments",
            Self::Runs => "runs",
            Self::Objects => "objects",
            Self::LostMembers => "lost members of groups",
            Self::Puts => "puts",
            Self::Ended => "ended puts",
            Self::Held => "held bytes",
            Self::KeyValues => "key-value table",
            Self::Trailer => "trailer",
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct HeaderRecord {
    pub(super) time: ClusterTime,
    pub(super) cluster_version: u32,
    pub(super) settings: Settings,
    pub(super) next_segment: u32,
    pub(super) once_share: u32,
    pub(super) sweep_from: u64,
}

/// A tenant that is registered, or that has objects which a `remove_all` has removed. What it uses is counted again.
#[derive(Serialize, Deserialize)]
pub(super) struct TenantRecord<'a> {
    #[serde(with = "serde_bytes")]
    pub(super) name: &'a [u8],
    pub(super) quota: Option<Quota>,
    pub(super) removed: Option<RemovalMark>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoreRecord {
    pub(super) store: StoreId,
    pub(super) mounted: Option<MountedRecord>,
    pub(super) dead: Vec<SegmentEpoch>,
    pub(super) dropped_at: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct MountedRecord {
    pub(super) mount: MountStore,
    pub(super) numbers: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SegmentRecord {
    pub(super) segment: u32,
    pub(super) store: StoreId,
    pub(super) epoch: SegmentEpoch,
    pub(super) number: SegmentNumber,
    pub(super) bytes: u64,
    pub(super) live: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) segment: u32,
    pub(super) slot: u64,
    pub(super) offset: u64,
    pub(super) slots: u8,
    pub(super) parent: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ObjectRecord<'a> {
    #[serde(with = "serde_bytes")]
    pub(super) key: &'a [u8],
    pub(super) version: PutId,
    pub(super) size: u64,
    pub(super) checksum: u64,
    pub(super) reused: u32,
    pub(super) pin: Pin,
    pub(super) data_type: u8,
    pub(super) group: Option<GroupId>,
    pub(super) replicas: SmallVec<[Replica; 1]>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LostMemberRecord {
    pub(super) group: GroupId,
    pub(super) key: KeyHash,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PutRecord<'a> {
    pub(super) put: PutId,
    #[serde(with = "serde_bytes")]
    pub(super) key: &'a [u8],
    pub(super) size: u64,
    pub(super) mode: PutMode,
    pub(super) deadline: ClusterTime,
    pub(super) pin: Pin,
    pub(super) data_type: u8,
    pub(super) group: Option<GroupId>,
    pub(super) replicas: SmallVec<[PutReplica; 1]>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct EndedRecord {
    pub(super) put: PutId,
    pub(super) ended: Ended,
}

#[derive(Serialize, Deserialize)]
pub(super) struct HeldRecord {
    pub(super) segment: u32,
    pub(super) reuse_at: ClusterTime,
    pub(super) offset: u64,
    pub(super) len: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct KeyValueRecord<'a> {
    #[serde(with = "serde_bytes")]
    pub(super) key: &'a [u8],
    #[serde(with = "serde_bytes")]
    pub(super) value: &'a [u8],
}

#[derive(Serialize, Deserialize)]
pub(super) struct TrailerRecord {
    /// Number of records in each section; the trailer's own is zero.
    pub(super) counts: [u64; Section::COUNT],
}
