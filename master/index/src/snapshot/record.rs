use mc_types::{ClusterTime, GrantKey, PutId, PutMode, SegmentEpoch, SegmentNumber, StoreId, TlsLevel};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::command::{MountStore, Pin, PrincipalRecord, Quota, Settings};
use crate::key::{GroupId, KeyHash};
use crate::objects::Replica;
use crate::puts::{Ended, PutReplica};
use crate::tenants::RemovalMark;

/// Sections of a snapshot, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Header,
    Tenants,
    Stores,
    Segments,
    Runs,
    Objects,
    Puts,
    Ended,
    LostMembers,
    Held,
    KeyValues,
    Security,
    Trailer,
}

impl Section {
    pub(super) const COUNT: usize = 13;

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
        Self::Security,
        Self::Trailer,
    ];

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.number() == number)
    }

    pub(super) fn number(self) -> u8 {
        match self {
            // It was the last section before another one came.
            Self::Trailer => 12,
            Self::Security => 13,
            other => other as u8 + 1,
        }
    }

    /// Index in the trailer's counts.
    pub(super) fn place(self) -> usize {
        self as usize
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
            Self::Security => "principals and security settings",
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

/// A part of the access settings, whose head comes first, a grant key that was replaced, or the name in the last mount of a store.
#[derive(Serialize, Deserialize)]
pub(super) enum SecurityRecord<'a> {
    Head {
        revision: u64,
        level: Option<TlsLevel>,
    },
    Principal {
        name: &'a str,
        token_number: u64,
        principal: PrincipalRecord,
    },
    Revoked {
        token_number: u64,
        until: ClusterTime,
    },
    Calls {
        tenant: &'a str,
        per_second: u32,
    },
    EarlierKey {
        store: StoreId,
        key: GrantKey,
        until: ClusterTime,
    },
    SharedMemory {
        name: &'a str,
    },
    WithoutRdma {
        tenant: &'a str,
    },
    LastName {
        store: StoreId,
        name: &'a str,
        #[serde(borrow, with = "serde_bytes")]
        tenant: Option<&'a [u8]>,
    },
}

/// Number of records in each section; the trailer's own is zero.
#[derive(Serialize, Deserialize)]
pub(super) struct TrailerRecord {
    pub(super) counts: [u64; Section::COUNT],
}

/// The trailer of a snapshot of [`PLAIN_FORMAT`](super::PLAIN_FORMAT), which has no section about security.
#[derive(Serialize, Deserialize)]
pub(super) struct PlainTrailerRecord {
    counts: [u64; Section::COUNT - 1],
}

impl From<&TrailerRecord> for PlainTrailerRecord {
    fn from(trailer: &TrailerRecord) -> Self {
        let mut counts = [0; Section::COUNT - 1];
        counts[..Section::Security.place()].copy_from_slice(&trailer.counts[..Section::Security.place()]);
        Self { counts }
    }
}

impl From<PlainTrailerRecord> for TrailerRecord {
    fn from(plain: PlainTrailerRecord) -> Self {
        let mut counts = [0; Section::COUNT];
        let last = Section::Security.place();
        counts[..last].copy_from_slice(&plain.counts[..last]);
        counts[Section::Trailer.place()] = plain.counts[last];
        Self { counts }
    }
}
