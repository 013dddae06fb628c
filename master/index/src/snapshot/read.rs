use std::io::Read;

use mc_types::{ALLOCATION_ALIGN, ClusterTime, Code, MAX_TENANT_LEN, PutId, StoreId};
use triomphe::Arc;

use super::frame::{ChunkReader, each, read_exact};
use super::record::{
    EndedRecord, HeaderRecord, HeldRecord, KeyValueRecord, LostMemberRecord, MountedRecord, ObjectRecord,
    PlainTrailerRecord, PutRecord, RunRecord, Section, SecurityRecord, SegmentRecord, StoreRecord,
    TenantRecord, TrailerRecord,
};
use super::{FORMAT, MAGIC, PLAIN_FORMAT, SnapshotError};
use crate::alloc::{Allocator, RunLayout};
use crate::command::Settings;
use crate::key::{GroupId, IndexKey, TenantName};
use crate::objects::Object;
use crate::puts::Put;
use crate::security::{StoredPrincipal, set_calls, set_rdma};
use crate::state::State;
use crate::stores::{
    ABSENT_STORES_MAX, DEAD_EPOCHS_MAX, EarlierKey, Mounted, ProvenName, SEGMENT_BYTES, Segment, Segments,
    Store, is_mountable,
};

type Checked = Result<(), String>;

impl State {
    /// Reads a snapshot written by [`Self::write_snapshot`], and nothing past it.
    ///
    /// # Errors
    /// [`SnapshotError`] when the source fails, or the bytes are not a whole, undamaged, consistent snapshot.
    pub fn read_snapshot(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let mut magic = [0; MAGIC.len()];
        let mut format = [0];
        read_exact(input, &mut magic, Section::Header)?;
        read_exact(input, &mut format, Section::Header)?;
        if magic != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        let [format] = format;
        if ![PLAIN_FORMAT, FORMAT].contains(&format) {
            return Err(SnapshotError::Format(format));
        }
        let mut chunks = ChunkReader::new(input);
        let mut restore = Restore::new(format == PLAIN_FORMAT);
        loop {
            let (section, payload) = chunks.next()?;
            let corrupt = |why| SnapshotError::Corrupt { section: section.name(), why };
            let count = restore.chunk(section, payload).map_err(corrupt)?;
            restore.counts[section.place()] += count;
            if section == Section::Trailer {
                return restore.finish().map_err(corrupt);
            }
        }
    }
}

/// A state that is being restored. Each record is checked against the ones before it.
struct Restore {
    state: State,
    /// Whether its format has no section about security.
    is_plain: bool,
    counts: [u64; Section::COUNT],
    next_segment: u32,
    segments: Vec<(u32, Segment)>,
    /// Runs of the segment `runs_of` that have been read so far.
    runs: Vec<RunLayout>,
    runs_of: u32,
    /// Whether all segments and their runs are in the state.
    built: bool,
    /// Replicas of the objects that have been read so far: segment, offset, bytes, shard.
    replicas: Vec<(u32, u64, u64, u32)>,
    last: Last,
    trailer: Option<TrailerRecord>,
}

/// Last key read from each section, to check that keys ascend.
#[derive(Default)]
struct Last {
    store: Option<StoreId>,
    segment: Option<u32>,
    run: Option<(u32, u64, u64)>,
    tenant: Option<TenantName>,
    object: Option<(u32, u32, Vec<u8>)>,
    lost_member: Option<(GroupId, u64)>,
    key_value: Option<Vec<u8>>,
    security: Option<(u8, String)>,
    put: Option<PutId>,
    ended: Option<PutId>,
    held: Option<(u32, ClusterTime, u64)>,
}

fn ascend<K: Ord>(last: &mut Option<K>, key: K) -> Checked {
    ensure(last.as_ref().is_none_or(|last| *last < key), "records are out of order")?;
    *last = Some(key);
    Ok(())
}

fn ensure(holds: bool, why: &str) -> Checked {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

impl Restore {
    fn new(is_plain: bool) -> Self {
        Self {
            state: State::new(Settings::default()),
            is_plain,
            counts: [0; Section::COUNT],
            next_segment: 0,
            segments: Vec::new(),
            runs: Vec::new(),
            runs_of: 0,
            built: false,
            replicas: Vec::new(),
            last: Last::default(),
            trailer: None,
        }
    }

    fn chunk(&mut self, section: Section, payload: &[u8]) -> Result<u64, String> {
        if section != Section::Header {
            ensure(self.counts[Section::Header.place()] == 1, "there is not one header")?;
        }
        if section > Section::Runs && !self.built {
            self.build_segments()?;
        }
        if section > Section::Objects {
            self.settle_replicas()?;
        }
        match section {
            Section::Header => each(payload, |record| self.header(record)),
            Section::Tenants => each(payload, |record| self.tenant(&record)),
            Section::Stores => each(payload, |record| self.store(record)),
            Section::Segments => each(payload, |record| self.segment(&record)),
            Section::Runs => each(payload, |record| self.run(&record)),
            Section::Objects => each(payload, |record| self.object(record)),
            Section::LostMembers => each(payload, |record| self.lost_member(&record)),
            Section::Puts => each(payload, |record| self.put(record)),
            Section::Ended => each(payload, |record| self.ended(&record)),
            Section::Held => each(payload, |record| self.held(&record)),
            Section::KeyValues => each(payload, |record| self.key_value(&record)),
            Section::Security => each(payload, |record| self.security(record)),
            Section::Trailer if self.is_plain => {
                each(payload, |record: PlainTrailerRecord| self.trailer(record.into()))
            }
            Section::Trailer => each(payload, |record| self.trailer(record)),
        }
    }

    fn header(&mut self, record: HeaderRecord) -> Checked {
        self.state.time = record.time;
        self.state.cluster_version = record.cluster_version;
        self.state.settings = record.settings;
        self.next_segment = record.next_segment;
        self.state.once_share = record.once_share;
        self.state.sweep_from = record.sweep_from;
        Ok(())
    }

    fn tenant(&mut self, record: &TenantRecord<'_>) -> Checked {
        ensure(record.name.len() <= MAX_TENANT_LEN, "a tenant's name is too long")?;
        let name = TenantName::new(record.name);
        ascend(&mut self.last.tenant, name)?;
        let TenantRecord { quota, removed, .. } = *record;
        ensure(quota.is_some() || removed.is_some(), "a tenant without a quota or a mark")?;
        if quota.is_some() {
            self.state.tenants.set_quota(name, quota);
        }
        if let Some(mark) = removed {
            self.state.tenants.mark(name, mark);
        }
        Ok(())
    }

    fn store(&mut self, record: StoreRecord) -> Checked {
        let StoreRecord { store, mounted, dead, dropped_at } = record;
        ascend(&mut self.last.store, store)?;
        let mounted =
            mounted.map(|MountedRecord { mount, numbers }| Mounted { mount, numbers, earlier_key: None });
        if let Some(Mounted { mount, numbers, .. }) = &mounted {
            ensure(mount.store == store && is_mountable(mount), "a bad mount")?;
            let numbered = numbers.len() == mount.segments.len() && numbers.is_sorted_by(|a, b| a < b);
            ensure(numbered, "segments of a mount without a number each")?;
            let given_out = numbers.last().is_none_or(|last| *last < self.next_segment);
            ensure(given_out, "a segment's number was not given out yet")?;
        }
        ensure(dead.len() <= DEAD_EPOCHS_MAX, "too many ended epochs")?;
        self.state.stores.insert(store, Store { mounted, dead, dropped_at, last_name: None });
        ensure(self.state.stores.absent() <= ABSENT_STORES_MAX, "too many stores without memory")
    }

    fn segment(&mut self, record: &SegmentRecord) -> Checked {
        ascend(&mut self.last.segment, record.segment)?;
        ensure(record.segment < self.next_segment, "a segment's number was not given out yet")?;
        let mounted = self.state.stores.mounted(record.store);
        let belongs = mounted.is_some_and(|mounted| {
            let at = usize::try_from(record.number).unwrap_or(usize::MAX);
            mounted.numbers.get(at) == Some(&record.segment)
                && mounted.mount.epoch == record.epoch
                && mounted.mount.segments.get(at) == Some(&record.bytes)
        });
        ensure(belongs == record.live, "a segment and its store disagree")?;
        ensure(SEGMENT_BYTES.contains(&record.bytes), "a segment of a size that no store can mount")?;
        let mut segment = Segment::new(record.store, record.epoch, record.number, record.bytes);
        if !record.live {
            segment.space = None;
        }
        self.segments.push((record.segment, segment));
        Ok(())
    }

    fn run(&mut self, record: &RunRecord) -> Checked {
        let RunRecord { segment, slot, offset, slots, parent } = *record;
        ascend(&mut self.last.run, (segment, slot, offset))?;
        if segment != self.runs_of {
            self.build_runs()?;
            self.runs_of = segment;
        }
        self.runs.push(RunLayout { slot, offset, slots, parent });
        Ok(())
    }

    /// Rebuilds the allocator of the segment whose runs have been read.
    fn build_runs(&mut self) -> Checked {
        if self.runs.is_empty() {
            return Ok(());
        }
        let at = self.segments.binary_search_by_key(&self.runs_of, |(number, _)| *number);
        let segment = &mut self.segments[at.map_err(|_| "runs of an unknown segment".to_owned())?].1;
        let bytes = segment.bytes;
        let space = segment.space.as_mut().ok_or("runs of a dropped segment")?;
        space.alloc = Allocator::from_runs(bytes, self.runs.drain(..)).map_err(|err| err.to_string())?;
        Ok(())
    }

    fn build_segments(&mut self) -> Checked {
        self.build_runs()?;
        self.built = true;
        let live = self.segments.iter().filter(|(_, segment)| segment.is_live()).count();
        let mounted = self.state.stores.iter().filter_map(|(_, store)| store.mounted.as_ref());
        let expected =
            mounted.flat_map(|mounted| &mounted.mount.segments).filter(|bytes| **bytes > 0).count();
        ensure(live == expected, "segments of mounted stores are missing")?;
        self.state.segments = Segments::restored(self.next_segment, std::mem::take(&mut self.segments));
        Ok(())
    }

    /// Claims an allocation for its owner; does nothing when the segment is not live.
    fn claim(&mut self, segment: u32, offset: u64, len: u64) -> Checked {
        match self.state.segments.change(segment, |space| space.alloc.claim(offset, len)) {
            Some(claimed) => claimed.map_err(|err| err.to_string()),
            None => Ok(()),
        }
    }

    fn object(&mut self, record: ObjectRecord<'_>) -> Checked {
        let key = IndexKey::from_bytes(record.key).ok_or("a bad key")?;
        ascend(&mut self.last.object, (key.shard(), key.hash().order(), key.bytes().to_vec()))?;
        ensure(record.size > 0 && !record.replicas.is_empty(), "an object without bytes or place")?;
        ensure(record.replicas.len() <= usize::from(u8::MAX), "an object with more replicas than a put has")?;
        for replica in &record.replicas {
            let segment =
                self.state.segments.get(replica.segment).ok_or("a replica in an unknown segment")?;
            let end = replica.offset.checked_add(record.size);
            let inside = end.is_some_and(|end| end <= segment.bytes);
            ensure(inside && replica.offset.is_multiple_of(ALLOCATION_ALIGN), "a replica out of place")?;
            self.replicas.push((replica.segment, replica.offset, record.size, key.shard()));
        }
        let ObjectRecord { version, size, checksum, reused, pin, data_type, group, replicas, .. } = record;
        for replica in &replicas {
            self.state.segments.pin(replica.segment, size, pin);
        }
        let object = Object { version, size, checksum, reused, pin, data_type, group, replicas };
        self.join(group)?;
        self.state.groups.join(group, key.hash());
        self.state.charge(&key, &object);
        self.state.objects.insert(&key, &object);
        Ok(())
    }

    fn join(&self, group: Option<GroupId>) -> Checked {
        let may_have_more = group.is_none_or(|group| self.state.groups.may_have_more(group));
        ensure(may_have_more, "a group with more members than it can have")
    }

    fn lost_member(&mut self, record: &LostMemberRecord) -> Checked {
        let LostMemberRecord { group, key } = *record;
        // Cluster version 1 lists a member twice that was lost with another one of the same hash.
        if self.last.lost_member != Some((group, key.to_u64())) {
            ascend(&mut self.last.lost_member, (group, key.to_u64()))?;
        }
        ensure(self.state.groups.get(group).is_some(), "a lost member of an unknown group")?;
        self.join(Some(group))?;
        self.state.groups.restore_lost(group, key);
        Ok(())
    }

    fn key_value(&mut self, record: &KeyValueRecord<'_>) -> Checked {
        ascend(&mut self.last.key_value, record.key.to_vec())?;
        let code = self.state.key_values.set(record.key, Some(record.value));
        ensure(code == Code::Ok, "an entry that the key-value table can't hold")
    }

    fn security(&mut self, record: SecurityRecord<'_>) -> Checked {
        ensure(!self.is_plain, "security in a snapshot of an earlier format")?;
        let is_first = self.last.security.is_none();
        let security = &mut self.state.security;
        let place = match record {
            SecurityRecord::Head { .. } => (0, String::new()),
            SecurityRecord::Principal { name, .. } => (1, name.to_owned()),
            // As wide as the largest number, so that texts are in the order of numbers.
            SecurityRecord::Revoked { token_number, .. } => (2, format!("{token_number:020}")),
            SecurityRecord::Calls { tenant, .. } => (3, tenant.to_owned()),
            SecurityRecord::EarlierKey { store, .. } => (4, format!("{:020}", store.0)),
            SecurityRecord::SharedMemory { name } => (5, name.to_owned()),
            SecurityRecord::WithoutRdma { tenant } => (6, tenant.to_owned()),
            SecurityRecord::LastName { store, .. } => (7, format!("{:020}", store.0)),
        };
        ensure(is_first == (place.0 == 0), "the head of security is not its first record")?;
        ascend(&mut self.last.security, place)?;
        match record {
            SecurityRecord::Head { revision, level } => {
                (security.revision, security.level) = (revision, level);
                Ok(())
            }
            SecurityRecord::Principal { name, token_number, principal } => {
                let table = Arc::make_mut(&mut security.principals);
                let known = StoredPrincipal { record: principal, token_number, shares_memory: false };
                ensure(table.restore(name.to_owned(), known), "a principal that the state can't hold")
            }
            SecurityRecord::Revoked { token_number, until } => {
                Arc::make_mut(&mut security.principals).revoked.insert(token_number, until);
                Ok(())
            }
            SecurityRecord::Calls { tenant, per_second } => {
                let code = set_calls(Arc::make_mut(&mut security.calls), tenant, Some(per_second));
                ensure(code == Code::Ok, "a limit on calls that the state can't hold")
            }
            SecurityRecord::EarlierKey { store, key, until } => {
                let restored = self.state.stores.restore_earlier_key(store, EarlierKey { key, until });
                ensure(restored, "a replaced key of a store that is not mounted")
            }
            SecurityRecord::SharedMemory { name } => {
                let restored = Arc::make_mut(&mut security.principals).restore_sharing(name);
                ensure(restored, "shared memory for a principal that is not known")
            }
            SecurityRecord::WithoutRdma { tenant } => {
                let code = set_rdma(Arc::make_mut(&mut security.without_rdma), tenant, false);
                ensure(code == Code::Ok, "a tenant without RDMA that the state can't hold")
            }
            SecurityRecord::LastName { store, name, tenant } => {
                let last = ProvenName { name: name.to_owned(), owner: tenant.map(TenantName::new) };
                let restored = self.state.stores.restore_last_name(store, last);
                ensure(restored, "a last name of a store that is mounted or not known")
            }
        }
    }

    fn trailer(&mut self, record: TrailerRecord) -> Checked {
        ensure(self.trailer.is_none(), "two trailers")?;
        self.trailer = Some(record);
        Ok(())
    }

    /// Enters the replicas into their segments, sorted by place. Objects come in the order of their hashes, and in that
    /// order each replica would miss the cache a dozen times.
    fn settle_replicas(&mut self) -> Checked {
        let mut replicas = std::mem::take(&mut self.replicas);
        replicas.sort_unstable();
        let mut last = None;
        for (segment, offset, size, shard) in replicas {
            ensure(last.replace((segment, offset)) != Some((segment, offset)), "two replicas in one place")?;
            self.state.segments.settle(segment, offset, shard);
            self.claim(segment, offset, size)?;
        }
        Ok(())
    }

    fn put(&mut self, record: PutRecord<'_>) -> Checked {
        ascend(&mut self.last.put, record.put)?;
        let key = IndexKey::from_bytes(record.key).ok_or("a bad key")?;
        ensure(record.size > 0 && !record.replicas.is_empty(), "a put without bytes or place")?;
        ensure(record.size <= *SEGMENT_BYTES.end(), "a put of a size that no segment has")?;
        ensure(
            record.replicas.len() <= usize::from(u8::MAX),
            "a put with more replicas than can be asked for",
        )?;
        for replica in &record.replicas {
            let placed = &replica.placed;
            ensure(placed.len == record.size, "a put's replica of another size")?;
            let given_out = replica.segment < self.next_segment;
            ensure(given_out, "a put's replica in a segment whose number was not given out yet")?;
            if let Some(segment) = self.state.segments.live(replica.segment) {
                let same = (segment.store, segment.epoch, segment.number)
                    == (placed.store, placed.epoch, placed.segment);
                ensure(same, "a put and its segment disagree")?;
            }
            self.claim(replica.segment, placed.offset, record.size)?;
        }
        let PutRecord { put, size, mode, deadline, pin, data_type, group, replicas, .. } = record;
        self.join(group)?;
        self.state.enter_put(put, Put { key, size, mode, deadline, pin, data_type, group, replicas });
        Ok(())
    }

    fn ended(&mut self, record: &EndedRecord) -> Checked {
        ascend(&mut self.last.ended, record.put)?;
        ensure(self.state.puts.in_flight(record.put).is_none(), "a put that is in flight and ended")?;
        ensure(self.state.puts.has_room_for(record.put), "too many ended puts in one shard")?;
        self.state.puts.end(record.put, record.ended, self.state.time);
        Ok(())
    }

    fn held(&mut self, record: &HeldRecord) -> Checked {
        let HeldRecord { segment, reuse_at, offset, len } = *record;
        ascend(&mut self.last.held, (segment, reuse_at, offset))?;
        ensure(self.state.segments.live(segment).is_some(), "held bytes of an unknown segment")?;
        self.claim(segment, offset, len)?;
        self.state.segments.hold(segment, offset, len, reuse_at);
        Ok(())
    }

    fn finish(self) -> Result<State, String> {
        let trailer = self.trailer.ok_or("it is empty")?;
        let mut counts = self.counts;
        counts[Section::Trailer.place()] = 0;
        ensure(trailer.counts == counts, "records are missing")?;
        for (_, segment) in self.state.segments.iter() {
            match &segment.space {
                Some(space) => space.alloc.check_claimed().map_err(|err| err.to_string())?,
                None => ensure(segment.residents.len() > 0, "a dropped segment with nothing to sweep")?,
            }
        }
        Ok(self.state)
    }
}
