//! Descriptions of objects.

use std::time::Duration;

use bytes::Bytes;
use mc_proto::v1::{BatchDescribeRequest, DescribeResult};
use mc_types::{ByteSize, Code, PutId, SegmentEpoch, SegmentNumber, StoreId};
use tokio::time::Instant;

use crate::call::Repeat;
use crate::core::{Core, copied, item_error, nonsense};
use crate::{Client, Error};

/// Description of an object by the masters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Id of the put that wrote it.
    pub version: PutId,
    /// Its size.
    pub size: ByteSize,
    /// CRC-64/NVME that its writer recorded.
    pub checksum: u64,
    /// Its protection from eviction; `None` if it is not pinned.
    pub pin: Option<Pin>,
    /// Tag that its put gave it.
    pub data_type: u8,
    /// Its group.
    pub group: Option<DescribedGroup>,
    /// Its replicas, those on suspect stores included; at least one.
    pub replicas: Vec<DescribedReplica>,
}

/// The group of a described object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescribedGroup {
    /// Hash of the tenant and the group's name.
    pub id: u128,
    /// Number of members that exist.
    pub members: u32,
    /// Number of members that were lost with their stores. The group is incomplete if there are any.
    pub lost: u32,
    /// Number of puts in flight that will join.
    pub joining: u32,
}

/// Protection of an object from eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pin {
    /// Evicted only when nothing without a pin can be.
    Soft {
        /// Time until the pin ends.
        left: Duration,
    },
    /// Hard pin: the object is never evicted.
    Hard,
}

/// One replica of a described object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescribedReplica {
    /// The store.
    pub store: StoreId,
    /// Epoch of the store's memory.
    pub epoch: SegmentEpoch,
    /// Name of the store.
    pub store_name: String,
    /// host:port of the store's memory.
    pub address: String,
    /// Number of the segment within the store.
    pub segment: SegmentNumber,
    /// Offset of its first byte within the segment.
    pub offset: u64,
    /// Whether the store is silent, so that readers are not sent to it.
    pub suspect: bool,
}

impl Description {
    pub(crate) fn read(result: &DescribeResult) -> Option<Self> {
        let soft = Duration::from_millis(result.soft_pin_left_ms);
        let pin = match result.hard_pinned {
            true => Some(Pin::Hard),
            false => (!soft.is_zero()).then_some(Pin::Soft { left: soft }),
        };
        let replica = |replica: &mc_proto::v1::DescribedReplica| {
            Some(DescribedReplica {
                store: StoreId::from_bytes(&replica.store_id)?,
                epoch: SegmentEpoch::from_bytes(&replica.epoch)?,
                store_name: replica.store_name.clone(),
                address: replica.address.clone(),
                segment: replica.segment,
                offset: replica.offset,
                suspect: replica.suspect,
            })
        };
        Some(Self {
            version: PutId::from_bytes(&result.version)?,
            size: ByteSize(result.size),
            checksum: result.checksum,
            pin,
            data_type: u8::try_from(result.data_type).ok()?,
            group: match &result.group {
                None => None,
                Some(group) => Some(DescribedGroup {
                    id: u128::from_be_bytes(group.id.as_ref().try_into().ok()?),
                    members: group.members,
                    lost: group.lost,
                    joining: group.joining,
                }),
            },
            replicas: result.replicas.iter().map(replica).collect::<Option<_>>()?,
        })
    }
}

pub(crate) async fn descriptions(core: &Core, keys: Vec<Bytes>) -> Vec<Result<Option<Description>, Error>> {
    let deadline = Instant::now() + core.call_timeout;
    core.by_chunks("describe", keys, |keys| descriptions_of(core, keys, deadline)).await
}

async fn descriptions_of(
    core: &Core,
    keys: Vec<Bytes>,
    deadline: Instant,
) -> Vec<Result<Option<Description>, Error>> {
    let request = BatchDescribeRequest { caller: None, tenant: core.tenant.clone(), keys };
    let reply = match core.leader.call(&request, deadline, Repeat::Freely).await {
        Ok(answer) => answer.reply,
        Err(error) => return vec![Err(error.into_error("describe")); request.keys.len()],
    };
    if reply.results.len() != request.keys.len() {
        return vec![Err(nonsense("describe")); request.keys.len()];
    }
    let read = |result: &DescribeResult| match Code::try_from(result.code) {
        Ok(Code::Ok) => Description::read(result).map(Some).ok_or_else(|| nonsense("describe")),
        Ok(Code::ObjectNotFound) => Ok(None),
        _ => Err(item_error("describe", result.code)),
    };
    reply.results.iter().map(read).collect()
}

impl Client {
    /// Describes an object: its version, size, checksum, pin and replicas; `None` when there is none.
    ///
    /// The call grants no read lease and does not count as a use of the object.
    ///
    /// # Errors
    /// [`Error`] when no leader answers in time.
    pub async fn describe(&self, key: impl AsRef<[u8]>) -> Result<Option<Description>, Error> {
        let mut results = self.batch_describe(&[key.as_ref()]).await;
        results.pop().unwrap_or_else(|| Err(nonsense("describe")))
    }

    /// [`describe`](Self::describe) for many keys; one result each, in order.
    pub async fn batch_describe<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Vec<Result<Option<Description>, Error>> {
        self.run("describe", keys.len(), descriptions(self.core(), copied(keys))).await
    }
}
