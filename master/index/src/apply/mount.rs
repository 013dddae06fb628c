//! Mounting and dropping stores, and sweeping the objects of dropped ones.

use std::ops::Range;

use mc_types::{Code, GrantKey, SegmentEpoch, StoreId};

use crate::command::{KEY_CHANGES_SINCE, MountStore, OWN_STORES_SINCE, RESTARTS_SINCE};
use crate::state::State;
use crate::stores::{EarlierKey, Mounted, Segment, Store, is_mountable, owner};

impl State {
    pub(crate) fn mount_store(&mut self, index: u64, mount: &MountStore) -> Code {
        if !is_mountable(mount) {
            return Code::InvalidParams;
        }
        let MountStore { store: id, epoch, .. } = *mount;
        if self.stores.is_dead(id, epoch) {
            return Code::StoreEpochDead;
        }
        if let Some(old) = self.stores.mounted(id) {
            if old.mount.epoch == epoch {
                return self.mount_again(id, mount);
            }
            let ended = old.mount.epoch;
            self.drop_store(index, id, ended);
        }
        let Some(numbers) = self.add_segments(mount, 0) else { return Code::InvalidParams };
        let dead = self.stores.get(id).map(|store| store.dead.clone()).unwrap_or_default();
        let mounted = Some(Mounted { mount: mount.clone(), numbers: numbers.collect(), earlier_key: None });
        self.stores.insert(id, Store { mounted, dead, dropped_at: 0, last_name: None });
        Code::Ok
    }

    /// Adds the segments of a mount from place `from` on, and returns their numbers; `None` when numbers have run out.
    fn add_segments(&mut self, mount: &MountStore, from: usize) -> Option<Range<u32>> {
        let new = |(number, &bytes): (u32, &u64)| {
            (bytes > 0).then(|| Segment::new(mount.store, mount.epoch, number, bytes))
        };
        let segments = (0..).zip(&mount.segments).skip(from).map(new);
        self.segments.add(segments.collect())
    }

    /// Updates the mount of an epoch that is mounted already: its names and addresses and the key of its grants may change, and
    /// segments may come and go.
    ///
    /// A segment is mounted and unmounted once: places are not used again, and the list never gets shorter. A key is not
    /// followed by the one before it, and a process of the store by none before it. The owner stays. So a mount that arrives late,
    /// after a newer one, changes nothing: it is of an earlier process, lacks a segment, or has one that was unmounted or the
    /// earlier key, and is refused.
    fn mount_again(&mut self, id: StoreId, mount: &MountStore) -> Code {
        let Some(store) = self.stores.get(id) else { return Code::InvalidParams };
        let Some(old) = &store.mounted else { return Code::InvalidParams };
        let known = old.mount.segments.len();
        let follows = |(&old, &new): (&u64, &u64)| new == old || new == 0;
        let Some(earlier_key) = self.earlier_key(old, mount) else { return Code::InvalidParams };
        // The objects that it holds are of this owner.
        if self.cluster_version >= OWN_STORES_SINCE && owner(&old.mount) != owner(mount) {
            return Code::InvalidParams;
        }
        if self.cluster_version >= RESTARTS_SINCE && mount.incarnation() < old.mount.incarnation() {
            return Code::InvalidParams;
        }
        if mount.segments.len() < known || !old.mount.segments.iter().zip(&mount.segments).all(follows) {
            return Code::InvalidParams;
        }
        if old.mount == *mount {
            return Code::Ok;
        }
        let mut store = store.clone();
        let (old_sizes, mut numbers) = (old.mount.segments.clone(), old.numbers.clone());
        let Some(added) = self.add_segments(mount, known) else { return Code::InvalidParams };
        let sizes = old_sizes.iter().zip(&mount.segments);
        for (&number, _) in numbers.iter().zip(sizes).filter(|(_, (old, new))| **old > 0 && **new == 0) {
            self.segments.drop_segment(number);
        }
        numbers.extend(added);
        store.mounted = Some(Mounted { mount: mount.clone(), numbers, earlier_key });
        self.stores.insert(id, store);
        Code::Ok
    }

    /// Returns the earlier key of a store that mounts its epoch again; `None` if it may not have the key that it names.
    fn earlier_key(&self, old: &Mounted, mount: &MountStore) -> Option<Option<EarlierKey>> {
        let key = old.mount.grant_key;
        if key == mount.grant_key {
            return Some(old.earlier_key);
        }
        let was_replaced = old.earlier_key.is_some_and(|earlier| earlier.key == mount.grant_key);
        let may_change = self.cluster_version >= KEY_CHANGES_SINCE && !was_replaced;
        may_change.then(|| Some(EarlierKey { key, until: self.time.after(GrantKey::OVERLAP) }))
    }

    /// Ends an epoch. The cost depends on the number of its segments, not on the objects in them.
    pub(crate) fn drop_store(&mut self, index: u64, id: StoreId, epoch: SegmentEpoch) {
        let remembers = self.cluster_version >= OWN_STORES_SINCE;
        if let Some(ended) = self.stores.end_epoch(id, epoch, index, remembers) {
            for number in ended.numbers() {
                self.segments.drop_segment(number);
            }
            self.stores.forget_excess();
        }
    }
}
