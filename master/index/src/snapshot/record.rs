use mc_types::{ClusterTime, PutId, SegmentEpoch, SegmentNumber, StoreId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::command::{MountStore, PutMode};
use crate::objects::Replica;
use crate::pin::Pin;
use crate::puts::{Ended, PutReplica};
use crate::settings::Settings;

/// Sections of a snapshot, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Section {
    Header = 1,
    Stores = 2,
    Segments = 3,
    Runs = 4,
    Objects = 5,
    Puts = 6,
    Ended = 7,
    Held = 8,
    Trailer = 9,
}

impl Section {
    pub(super) const COUNT: usize = 9;

    const ALL: [Self; Self::COUNT] = [
        Self::Header,
        Self::Stores,
        Self::Segments,
        Self::Runs,
        Self::Objects,
        Self::Puts,
        Self::Ended,
        Self::Held,
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
            Self::Stores => "stores",
            Self::Segments => "segments",
            Self::Runs => "runs",
            Self::Objects => "objects",
            Self::Puts => "puts",
            Self::Ended => "ended puts",
            Self::Held => "held bytes",
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
    pub(super) first_segment: u32,
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
    pub(super) replicas: SmallVec<[Replica; 1]>,
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
pub(super) struct TrailerRecord {
    /// Number of records in each section; the trailer's own is zero.
    pub(super) counts: [u64; Section::COUNT],
}
