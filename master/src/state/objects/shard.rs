use std::cmp::Ordering;

use super::Object;

/// A few dozen objects (at ten million in all), packed so that the copy which the first write after a clone makes is two `memcpy`s: keys
/// lie in one buffer, entries are sorted by (hash, key).
#[derive(Clone, Default)]
pub(super) struct Shard {
    entries: Vec<Entry>,
    /// Keys back to back, with holes where keys were removed.
    keys: Vec<u8>,
    /// Bytes of `keys` that no entry uses.
    holes: usize,
}

#[derive(Clone)]
struct Entry {
    order: u32,
    key_at: usize,
    key_len: u16,
    object: Object,
}

impl Entry {
    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.key_at..self.key_at + usize::from(self.key_len)]
    }
}

impl Shard {
    fn find(&self, order: u32, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| match entry.order.cmp(&order) {
            Ordering::Equal => entry.key(&self.keys).cmp(key),
            other => other,
        })
    }

    pub(super) fn get(&self, order: u32, key: &[u8]) -> Option<&Object> {
        self.find(order, key).ok().map(|at| &self.entries[at].object)
    }

    pub(super) fn insert(&mut self, order: u32, key: &[u8], object: Object) -> Option<Object> {
        match self.find(order, key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].object, object)),
            Err(at) => {
                // Grown by a quarter: doubling would leave a third of the index unused on average.
                reserve(&mut self.keys, key.len());
                reserve(&mut self.entries, 1);
                let key_at = self.keys.len();
                // An index key is at most 65 + 4,096 bytes.
                let key_len = u16::try_from(key.len()).unwrap_or(u16::MAX);
                self.keys.extend_from_slice(key);
                self.entries.insert(at, Entry { order, key_at, key_len, object });
                None
            }
        }
    }

    pub(super) fn remove(&mut self, order: u32, key: &[u8]) -> Option<Object> {
        let at = self.find(order, key).ok()?;
        let entry = self.entries.remove(at);
        self.holes += usize::from(entry.key_len);
        if self.holes * 2 >= self.keys.len() {
            self.pack();
        }
        Some(entry.object)
    }

    fn pack(&mut self) {
        let mut packed = Vec::with_capacity(self.keys.len() - self.holes);
        for entry in &mut self.entries {
            let at = packed.len();
            packed.extend_from_slice(entry.key(&self.keys));
            entry.key_at = at;
        }
        self.keys = packed;
        self.holes = 0;
        if self.entries.len() * 2 < self.entries.capacity() {
            self.entries.shrink_to_fit();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Object)> {
        self.entries.iter().map(|entry| (entry.key(&self.keys), &entry.object))
    }
}

fn reserve<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        vec.reserve_exact(more.max(vec.len() / 4));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mc_base::PutId;
    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::*;

    fn object(version: u128) -> Object {
        Object { version: PutId(version), size: 1, checksum: 2, replicas: SmallVec::new() }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
        #[test]
        fn acts_like_a_sorted_map(
            // Few hashes, so that keys share them.
            steps in prop::collection::vec((0..4u32, prop::collection::vec(0..3u8, 1..6), any::<bool>()), 1..400),
        ) {
            let mut shard = Shard::default();
            let mut model = BTreeMap::new();
            for (version, (order, key, insert)) in steps.into_iter().enumerate() {
                let object = object(version as u128);
                if insert {
                    let old = model.insert((order, key.clone()), object.clone());
                    prop_assert_eq!(shard.insert(order, &key, object), old);
                } else {
                    prop_assert_eq!(shard.remove(order, &key), model.remove(&(order, key.clone())));
                }
                prop_assert_eq!(shard.get(order, &key), model.get(&(order, key)));
                prop_assert!(shard.holes * 2 <= shard.keys.len().max(1), "holes are packed away");
            }
            prop_assert!(shard.iter().eq(model.iter().map(|((_, key), object)| (key.as_slice(), object))));
        }
    }

    #[test]
    fn an_entry_with_one_replica_is_small() {
        assert!(size_of::<Entry>() <= 80, "{}", size_of::<Entry>());
    }
}
