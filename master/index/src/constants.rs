//! Every constant by which `apply` decides, held fixed for each cluster version.
//!
//! Masters of two builds apply the same entries while a cluster is upgraded. If one of these constants differed between
//! them, they would give different answers to one entry, and their indexes would diverge without any message.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mc_types::GrantKey;

use crate::alloc::run::Run;
use crate::apply::{order, place, sweep};
use crate::command::CLUSTER_VERSION;
use crate::objects::shard;
use crate::query::limits;
use crate::{alloc, apply, command, groups, key, key_values, objects, puts, snapshot, stores, tenants};

/// Lists the constants of a cluster version by name. A constant that newer versions alone decide by is listed from that
/// version on.
fn constants(version: u32) -> BTreeMap<&'static str, u64> {
    let sizes = [
        ("limit of the bytes of an entry", mc_types::MAX_COMMAND_BYTES),
        ("limit of the items of an entry", mc_types::MAX_ITEMS),
        ("limit of a key", mc_types::MAX_KEY_LEN),
        ("limit of a tenant's name", mc_types::MAX_TENANT_LEN),
        ("limit of the members of a group", mc_types::MAX_GROUP_MEMBERS),
        ("limit of the segments of a store", mc_types::MAX_SEGMENTS),
        ("limit of the ended epochs of a store", stores::DEAD_EPOCHS_MAX),
        ("limit of the stores without memory", stores::ABSENT_STORES_MAX),
        ("limit of the text of a mount", stores::TEXT_MAX),
        ("limit of the endpoints of a mount", stores::ENDPOINTS_MAX),
        ("limit of the attributes of a mount", stores::ATTRIBUTES_MAX),
        ("limit of the entries of the key-value table", key_values::KEY_VALUES_MAX),
        ("limit of a key of the key-value table", key_values::KEY_VALUE_KEY_MAX),
        ("limit of a value of the key-value table", key_values::KEY_VALUE_MAX),
        ("limit of the bytes of the key-value table", key_values::KEY_VALUES_BYTES_MAX),
        ("held ranges that the puts of an entry take back", place::TAKE_BACK_MAX),
        ("due puts and held ranges that an entry ends", apply::EXPIRE_MIN),
        ("visits of a sweep of removed objects", sweep::VISITS_MAX),
        ("shards of puts", puts::SHARDS),
        ("ended puts that a shard remembers", puts::ENDED_PER_SHARD),
        ("tries to cut up a larger slot", alloc::NEST_TRIES),
        ("bytes of a record without replicas, group and key", shard::HEAD),
        ("bytes of a replica in a record", shard::REPLICA),
        ("bytes of a group in a record", shard::GROUP),
    ];
    let numbers = [
        ("format of commands", command::COMMAND_FORMAT.into()),
        ("format of commands that name their call", command::AUDITED_FORMAT.into()),
        ("format of snapshots", snapshot::PLAIN_FORMAT.into()),
        ("format of snapshots with access settings", snapshot::FORMAT.into()),
        ("entries that a cluster may lose", order::LOST_ENTRIES_MAX),
        ("shards of objects", key::SHARDS.into()),
        ("parts of a shard of objects", objects::PARTS.into()),
        ("shards that an entry clears of ended puts", puts::SHARDS_PER_ENTRY),
        ("objects of a sweep", sweep::SWEEP_MAX.into()),
        ("seconds of the longest soft pin", mc_types::SOFT_PIN_MAX.as_secs()),
        ("memory of an object besides its record", limits::OBJECT_OVERHEAD),
        ("memory of a put in flight", limits::PUT_BYTES),
        ("memory of a group", limits::GROUP_BYTES),
        ("alignment of allocations", mc_types::ALLOCATION_ALIGN),
        ("least bytes of a segment", *stores::SEGMENT_BYTES.start()),
        ("most bytes of a segment", *stores::SEGMENT_BYTES.end()),
        ("slots of the longest run", Run::MAX_SLOTS.into()),
        ("part of a segment that a run takes", alloc::RUN_PART),
        ("part of the live slots that the next run has", alloc::GROWTH_PART),
    ];
    let since_version_2 = [
        ("limit of the members of a group and of puts that replace them", groups::ENTRIES_MAX),
        ("limit of the stores that a put prefers or avoids", mc_types::MAX_NAMED_STORES),
        ("limit of the tenants that are not registered", tenants::UNREGISTERED_MAX),
        ("memory of a tenant", limits::TENANT_BYTES as usize),
    ];
    let since_version_3 =
        [("seconds for which a replaced grant key is good", GrantKey::OVERLAP.as_secs() as usize)];
    let newer = since_version_2.into_iter().filter(|_| version >= 2);
    let newer = newer.chain(since_version_3.into_iter().filter(|_| version >= 3));
    sizes.into_iter().chain(newer).map(|(name, size)| (name, size as u64)).chain(numbers).collect()
}

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/constants/v{version}.txt"))
}

/// `MC_BLESS=1` writes down new constants. It never changes one that is written down: that is the point of the file.
#[test]
fn what_apply_decides_by_stays_as_it_was_in_each_cluster_version() {
    for version in 1..=CLUSTER_VERSION {
        let path = path(version);
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let mut fixed: BTreeMap<&str, u64> = BTreeMap::new();
        for line in written.lines() {
            let (name, value) = line.split_once(" = ").expect("a line is `name = value`");
            fixed.insert(name, value.parse().expect("a number"));
        }
        let now = constants(version);
        for (name, was) in &fixed {
            assert_eq!(
                now.get(name),
                Some(was),
                "\n{name}: builds of cluster version {version} apply entries by {was}. A build that goes by another value \
                 gives other answers to the same entries, and its index diverges during a rolling upgrade. Decide by \
                 the old value while `self.cluster_version` is {version}, by the new one from the next version on: raise \
                 CLUSTER_VERSION (command/settings.rs) unless main has a version that no release has. A changed encoding needs \
                 a new format byte, too. Correct a line of {} by hand only if no release has version {version}.\n",
                path.display()
            );
        }
        if std::env::var_os("MC_BLESS").is_some() {
            let lines: String = now.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("make the folder");
            std::fs::write(&path, lines).expect("write the constants");
        } else {
            let new: Vec<_> = now.keys().filter(|name| !fixed.contains_key(**name)).collect();
            assert!(
                new.is_empty(),
                "{new:?}: not in {}; write them down with MC_BLESS=1 cargo test -p mc-index --lib constants",
                path.display()
            );
        }
    }
}
