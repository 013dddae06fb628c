use bytes::Bytes;
use mc_base::{ByteSize, NodeId, PutId, SegmentEpoch, SegmentNumber, StoreId};
use mc_proto::v1::{Leader, ListMembersReply, StatusReply};
use mc_transfer::PeerEndpoint;

use crate::{Client, ConnectError, Error};

/// Asks the masters about themselves; what `mcctl` calls.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// What one master says of itself, or why it said nothing.
#[derive(Clone, Debug)]
pub struct MasterReport {
    /// The address that was asked.
    pub address: String,
    /// Its answer.
    pub status: Result<StatusReply, Error>,
}

/// What all masters say, and whom to believe: the leader of the newest term where it answers.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Every master of the list and every one that those name, in the order of their addresses.
    pub masters: Vec<MasterReport>,
    /// Place in `masters` of the one whose view of keys, members and stores counts: the leader of the newest term,
    /// else the one that has applied most. `None` when none answers.
    pub authority: Option<usize>,
    /// The leader of the newest term that any master names, and that itself says it leads.
    pub leader: Option<Leader>,
}

/// Where an object lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The put that wrote it.
    pub version: PutId,
    /// Its bytes.
    pub size: ByteSize,
    /// CRC-64/NVME that its writer recorded.
    pub checksum: u64,
    /// Its replicas on stores that are not suspect.
    pub replicas: Vec<PlacedReplica>,
}

/// Where one replica lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedReplica {
    /// The store.
    pub store: StoreId,
    /// The allocation of its memory.
    pub epoch: SegmentEpoch,
    /// Segment within the store.
    pub segment: SegmentNumber,
    /// First byte within the segment.
    pub offset: u64,
    /// Bytes.
    pub length: ByteSize,
    /// How to reach the store.
    pub endpoints: Vec<PeerEndpoint>,
}

impl Admin {
    /// Finds the masters of the list (see [`Builder::masters`](crate::Builder::masters)). Works without a leader.
    ///
    /// # Errors
    /// [`ConnectError`] as for [`Builder::connect`](crate::Builder::connect).
    pub async fn connect(masters: &str) -> Result<Self, ConnectError> {
        Ok(Client::builder().masters(masters).local_cache(ByteSize(0)).connect().await?.admin())
    }

    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Status of one master, from what it knows itself.
    ///
    /// # Errors
    /// When it does not answer within the call timeout.
    pub async fn status_of(&self, address: &str) -> Result<StatusReply, Error> {
        let _ = (&self.client, address);
        todo!()
    }

    /// Status of all masters, asked at the same time.
    pub async fn status(&self) -> ClusterStatus {
        todo!()
    }

    /// The cluster's members, as the leader knows them.
    ///
    /// # Errors
    /// When no leader answers within the call timeout.
    pub async fn list_members(&self) -> Result<ListMembersReply, Error> {
        todo!()
    }

    /// Hands leadership to `to`, or to the most advanced voter, and returns the new leader.
    ///
    /// # Errors
    /// When no leader answers in time, or the hand-over failed.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<Leader, Error> {
        let _ = to;
        todo!()
    }

    /// Where the object with this key lies; `None` when there is none that can be read now.
    ///
    /// # Errors
    /// When no leader answers in time.
    pub async fn lookup(&self, key: impl AsRef<[u8]>) -> Result<Option<Lookup>, Error> {
        let _ = Bytes::copy_from_slice(key.as_ref());
        todo!()
    }
}
