//! Descriptions of objects, for people and tools.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use mc_index::{GroupId, ObjectView, PlacedReplica, State};
use mc_types::{ClusterTime, Code, PutId, SegmentEpoch, SegmentNumber, StoreId};

use crate::leader::term::Leading;

/// Number of keys and of members of their groups that are looked up while the index is locked, besides the rest of the
/// last group.
const LOOKS: usize = 1024;

/// An object as it is described, without a lease.
pub(crate) struct Described {
    pub(crate) version: PutId,
    pub(crate) size: u64,
    /// CRC-64/NVME of the value.
    pub(crate) checksum: u64,
    pub(crate) hard_pinned: bool,
    pub(crate) soft_pin_left: Option<Duration>,
    pub(crate) data_type: u8,
    pub(crate) group: Option<DescribedGroup>,
    pub(crate) replicas: Vec<DescribedReplica>,
}

/// The group of a described object.
#[derive(Clone, Copy)]
pub(crate) struct DescribedGroup {
    pub(crate) id: GroupId,
    /// Number of its members that can be read.
    pub(crate) members: u32,
    /// Number of its members that were lost with their stores.
    pub(crate) lost: u32,
    /// Number of puts in flight that will join it.
    pub(crate) joining: u32,
}

/// A replica of a described object.
pub(crate) struct DescribedReplica {
    pub(crate) store: StoreId,
    pub(crate) epoch: SegmentEpoch,
    pub(crate) name: String,
    /// host:port of the store's first endpoint.
    pub(crate) address: String,
    /// Transport of that endpoint.
    pub(crate) transport: String,
    pub(crate) segment: SegmentNumber,
    pub(crate) offset: u64,
    pub(crate) suspect: bool,
}

/// The keys of one call, described slice by slice.
pub(super) struct Describing<'a> {
    leading: &'a Leading,
    tenant: &'a str,
    keys: &'a [Bytes],
    now: ClusterTime,
    pub(super) described: Vec<Result<Described, Code>>,
    /// Groups that were looked up. A call mostly names many members of each.
    groups: HashMap<GroupId, DescribedGroup>,
    /// Name, address and transport of each store that was looked up.
    stores: HashMap<StoreId, [String; 3]>,
    /// Look-ups left in this slice.
    looks: usize,
}

impl<'a> Describing<'a> {
    pub(super) fn new(leading: &'a Leading, tenant: &'a str, keys: &'a [Bytes]) -> Self {
        Self {
            leading,
            tenant,
            keys,
            now: leading.now(),
            described: Vec::with_capacity(keys.len()),
            groups: HashMap::new(),
            stores: HashMap::new(),
            looks: 0,
        }
    }

    /// Describes some more keys. Returns whether any are left.
    pub(super) fn slice(&mut self, state: &State) -> bool {
        self.looks = LOOKS;
        while let Some(key) = self.keys.get(self.described.len()).filter(|_| self.looks > 0) {
            self.looks -= 1;
            let described = self.describe(key, state);
            self.described.push(described);
        }
        self.described.len() < self.keys.len()
    }

    fn describe(&mut self, key: &[u8], state: &State) -> Result<Described, Code> {
        if key.is_empty() || key.len() > mc_types::MAX_KEY_LEN {
            return Err(Code::InvalidKey);
        }
        match state.get(self.tenant, key) {
            Some(object) => Ok(self.object(&object, state)),
            None if state.is_being_written(self.tenant, key) => Err(Code::ReplicaIsNotReady),
            None => Err(Code::ObjectNotFound),
        }
    }

    fn object(&mut self, object: &ObjectView, state: &State) -> Described {
        let soft_until = object.pin.at(self.now).soft_until();
        Described {
            version: object.version,
            size: object.size,
            checksum: object.checksum,
            hard_pinned: object.pin.is_hard(),
            soft_pin_left: soft_until.map(|until| Duration::from_millis(until.0.saturating_sub(self.now.0))),
            data_type: object.data_type,
            group: object.group.map(|group| self.group(group, state)),
            replicas: object.replicas.iter().map(|replica| self.replica(replica, state)).collect(),
        }
    }

    fn group(&mut self, id: GroupId, state: &State) -> DescribedGroup {
        let looks = &mut self.looks;
        *self.groups.entry(id).or_insert_with(|| {
            let group = state.group(id).unwrap_or_default();
            *looks = looks.saturating_sub(group.members.len());
            let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let (members, lost) = (count(group.members.len()), count(group.lost));
            DescribedGroup { id, members, lost, joining: group.joining }
        })
    }

    fn replica(&mut self, replica: &PlacedReplica, state: &State) -> DescribedReplica {
        let [name, address, transport] = self.stores.entry(replica.store).or_insert_with(|| {
            let store = state.store(replica.store);
            let name = store.as_ref().map(|store| store.name.to_owned()).unwrap_or_default();
            let endpoint = store.as_ref().and_then(|store| store.endpoints.first());
            let endpoint = endpoint.map(|endpoint| [endpoint.address.clone(), endpoint.transport.clone()]);
            let [address, transport] = endpoint.unwrap_or_default();
            [name, address, transport]
        });
        DescribedReplica {
            store: replica.store,
            epoch: replica.epoch,
            name: name.clone(),
            address: address.clone(),
            transport: transport.clone(),
            segment: replica.segment,
            offset: replica.offset,
            suspect: self.leading.is_suspect(replica.store),
        }
    }
}
