//! The record that a process of a store leaves for the next one: the state of a directory of segments.

use mc_types::{ClusterId, SegmentEpoch, StoreId};
use serde::{Deserialize, Serialize};

use super::process::ProcessId;

/// State of the segments in a directory, and the process that serves them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The kernel's id of this run of the machine: files of a tmpfs don't outlive it.
    pub(super) boot: u128,
    pub(super) store: StoreId,
    /// Process that uses the directory, or was the last one to do so.
    pub(super) process: ProcessId,
    /// `None` while the segments hold nothing of worth: they are made, or an epoch has ended.
    pub(super) served: Option<Served>,
    /// Bytes that the process was asked to lend when it started. Segments may have come and gone since.
    pub(super) asked: u64,
    /// By segment number.
    pub(super) segments: Vec<KeptFile>,
}

/// The epoch that the segments hold objects of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) epoch: SegmentEpoch,
    /// Number of the process among those that have served the epoch.
    pub(super) incarnation: u64,
    /// Cluster to whose leader the epoch was announced.
    pub(super) cluster: Option<ClusterId>,
}

/// The file of a segment; one of 0 bytes was unmounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptFile {
    pub(super) bytes: u64,
    pub(super) device: u64,
    pub(super) inode: u64,
}
