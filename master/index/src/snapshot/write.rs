use std::io::{self, Write};

use mc_types::StoreId;

use super::frame::ChunkWriter;
use super::record::{
    EndedRecord, HeaderRecord, HeldRecord, KeyValueRecord, LostMemberRecord, MountedRecord, ObjectRecord,
    PlainTrailerRecord, PutRecord, RunRecord, Section, SecurityRecord, SegmentRecord, StoreRecord,
    TenantRecord, TrailerRecord,
};
use super::{FORMAT, MAGIC, PLAIN_FORMAT};
use crate::key::TenantName;
use crate::objects::ObjectRef;
use crate::security::{Security, StoredPrincipal};
use crate::state::State;
use crate::stores::{EarlierKey, ProvenName};

impl State {
    /// Writes the index. Equal states write the same bytes, in blocks of up to 64 KiB.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        let is_plain = self.security == Security::default()
            && self.earlier_keys().next().is_none()
            && self.last_names().next().is_none();
        out.write_all(&[if is_plain { PLAIN_FORMAT } else { FORMAT }])?;
        let mut chunks = ChunkWriter::new(out);
        chunks.record(
            Section::Header,
            &HeaderRecord {
                time: self.time,
                cluster_version: self.cluster_version,
                settings: self.settings.clone(),
                next_segment: self.segments.next(),
                once_share: self.once_share,
                sweep_from: self.sweep_from,
            },
        )?;
        for (name, tenant) in self.tenants.iter() {
            let (quota, removed) = (tenant.quota, tenant.removed);
            if quota.is_some() || removed.is_some() {
                let record = TenantRecord { name: name.as_bytes(), quota, removed };
                chunks.record(Section::Tenants, &record)?;
            }
        }
        self.write_stores(&mut chunks)?;
        for object in self.objects.iter() {
            let replicas = object.replicas().collect();
            let ObjectRef { key, version, size, checksum, reused, pin, data_type, group, .. } = object;
            let record =
                ObjectRecord { key, version, size, checksum, reused, pin, data_type, group, replicas };
            chunks.record(Section::Objects, &record)?;
        }
        self.write_puts(&mut chunks)?;
        for (id, group) in self.groups.iter() {
            for &key in &group.lost {
                chunks.record(Section::LostMembers, &LostMemberRecord { group: id, key })?;
            }
        }
        for (segment, held) in self.segments.iter().filter_map(|(n, s)| Some((n, &s.space.as_ref()?.held))) {
            for (&(reuse_at, offset), &len) in held.iter() {
                chunks.record(Section::Held, &HeldRecord { segment, reuse_at, offset, len })?;
            }
        }
        for (key, value) in self.key_values.iter() {
            chunks.record(Section::KeyValues, &KeyValueRecord { key, value })?;
        }
        let trailer = |chunks: &ChunkWriter<_>| TrailerRecord { counts: chunks.counts };
        if is_plain {
            let plain = PlainTrailerRecord::from(&trailer(&chunks));
            chunks.record(Section::Trailer, &plain)?;
        } else {
            self.write_security(&mut chunks)?;
            let trailer = trailer(&chunks);
            chunks.record(Section::Trailer, &trailer)?;
        }
        chunks.flush()
    }

    fn write_security<W: Write>(&self, chunks: &mut ChunkWriter<W>) -> io::Result<()> {
        let Security { revision, level, principals, calls, without_rdma } = &self.security;
        let mut record = |record: SecurityRecord<'_>| chunks.record(Section::Security, &record);
        record(SecurityRecord::Head { revision: *revision, level: *level })?;
        for (name, known) in &principals.by_name {
            let StoredPrincipal { record: principal, token_number, .. } = known.clone();
            record(SecurityRecord::Principal { name, token_number, principal })?;
        }
        for (&token_number, &until) in &principals.revoked {
            record(SecurityRecord::Revoked { token_number, until })?;
        }
        for (tenant, &per_second) in calls.iter() {
            record(SecurityRecord::Calls { tenant, per_second })?;
        }
        for (store, EarlierKey { key, until }) in self.earlier_keys() {
            record(SecurityRecord::EarlierKey { store, key, until })?;
        }
        for (name, _) in principals.by_name.iter().filter(|(_, known)| known.shares_memory) {
            record(SecurityRecord::SharedMemory { name })?;
        }
        for tenant in without_rdma.iter() {
            record(SecurityRecord::WithoutRdma { tenant })?;
        }
        for (store, ProvenName { name, owner }) in self.last_names() {
            let tenant = owner.as_ref().map(TenantName::as_bytes);
            record(SecurityRecord::LastName { store, name, tenant })?;
        }
        Ok(())
    }

    fn last_names(&self) -> impl Iterator<Item = (StoreId, &ProvenName)> + '_ {
        self.stores.iter().filter_map(|(store, known)| Some((store, known.last_name.as_ref()?)))
    }

    fn earlier_keys(&self) -> impl Iterator<Item = (StoreId, EarlierKey)> + '_ {
        self.stores.iter().filter_map(|(store, known)| Some((store, known.mounted.as_ref()?.earlier_key?)))
    }

    fn write_stores<W: Write>(&self, chunks: &mut ChunkWriter<W>) -> io::Result<()> {
        for (store, known) in self.stores.iter() {
            let mounted = known.mounted.as_ref().map(|mounted| MountedRecord {
                mount: mounted.mount.clone(),
                numbers: mounted.numbers.clone(),
            });
            let (dead, dropped_at) = (known.dead.clone(), known.dropped_at);
            chunks.record(Section::Stores, &StoreRecord { store, mounted, dead, dropped_at })?;
        }
        for (number, segment) in self.segments.iter() {
            let record = SegmentRecord {
                segment: number,
                store: segment.store,
                epoch: segment.epoch,
                number: segment.number,
                bytes: segment.bytes,
                live: segment.is_live(),
            };
            chunks.record(Section::Segments, &record)?;
        }
        for (segment, space) in self.segments.iter().filter_map(|(n, s)| Some((n, s.space.as_ref()?))) {
            for run in space.alloc.runs() {
                let (slot, offset, slots, parent) = (run.slot, run.offset, run.slots, run.parent);
                chunks.record(Section::Runs, &RunRecord { segment, slot, offset, slots, parent })?;
            }
        }
        Ok(())
    }

    fn write_puts<W: Write>(&self, chunks: &mut ChunkWriter<W>) -> io::Result<()> {
        for (id, put) in self.puts.all_in_flight() {
            let record = PutRecord {
                put: id,
                key: put.key.bytes(),
                size: put.size,
                mode: put.mode,
                deadline: put.deadline,
                pin: put.pin,
                data_type: put.data_type,
                group: put.group,
                replicas: put.replicas.clone(),
            };
            chunks.record(Section::Puts, &record)?;
        }
        for (put, ended) in self.puts.all_ended() {
            chunks.record(Section::Ended, &EndedRecord { put, ended })?;
        }
        Ok(())
    }
}
