//! A small table of keys and values beside the objects, for what engines tell each other at start.

use std::collections::BTreeMap;

use mc_types::Code;
use triomphe::Arc;

/// Most entries of the table.
pub const KEY_VALUES_MAX: usize = 4096;
/// Longest key of an entry, in bytes.
pub const KEY_VALUE_KEY_MAX: usize = 1 << 10;
/// Longest value of an entry, in bytes. A snapshot writes an entry as one record, so both must fit into a chunk of it.
pub const KEY_VALUE_MAX: usize = 60 << 10;
/// Most bytes of all keys and values together.
pub const KEY_VALUES_BYTES_MAX: usize = 16 << 20;

/// The table. A clone is cheap; a change after it copies the keys and the references to the values.
#[derive(Clone)]
pub(crate) struct KeyValues {
    entries: Arc<BTreeMap<Vec<u8>, Arc<Vec<u8>>>>,
    bytes: usize,
}

impl KeyValues {
    pub(crate) fn new() -> Self {
        Self { entries: Arc::new(BTreeMap::new()), bytes: 0 }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(|value| &value[..])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Sets or removes an entry. Answers `Ok`, `InvalidKey`, `InvalidParams` for a value that is too long,
    /// `ObjectNotFound` for the removal of an absent entry, or `NoAvailableHandle` when the table is full.
    pub(crate) fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Code {
        if key.is_empty() || key.len() > KEY_VALUE_KEY_MAX {
            return Code::InvalidKey;
        }
        let size = |value: &[u8]| key.len() + value.len();
        let before = self.get(key).map(size);
        let Some(value) = value else {
            let Some(before) = before else { return Code::ObjectNotFound };
            Arc::make_mut(&mut self.entries).remove(key);
            self.bytes -= before;
            return Code::Ok;
        };
        if value.len() > KEY_VALUE_MAX {
            return Code::InvalidParams;
        }
        let bytes = self.bytes - before.unwrap_or(0) + size(value);
        let entries = self.entries.len() + usize::from(before.is_none());
        if entries > KEY_VALUES_MAX || bytes > KEY_VALUES_BYTES_MAX {
            return Code::NoAvailableHandle;
        }
        Arc::make_mut(&mut self.entries).insert(key.to_vec(), Arc::new(value.to_vec()));
        self.bytes = bytes;
        Code::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_says_what_is_wrong() {
        let mut table = KeyValues::new();
        assert_eq!(table.set(b"", Some(b"v")), Code::InvalidKey);
        assert_eq!(table.set(&[0; KEY_VALUE_KEY_MAX + 1], Some(b"v")), Code::InvalidKey);
        assert_eq!(table.set(b"k", Some(&[0; KEY_VALUE_MAX + 1])), Code::InvalidParams);
        assert_eq!(table.set(b"k", None), Code::ObjectNotFound);
        assert_eq!(table.set(b"k", Some(b"one")), Code::Ok);
        let copy = table.clone();
        assert_eq!(table.set(b"k", Some(b"three")), Code::Ok);
        assert_eq!((table.get(b"k"), copy.get(b"k")), (Some(&b"three"[..]), Some(&b"one"[..])));
        let large = vec![0xff; KEY_VALUE_MAX];
        let stored =
            (0..400u32).take_while(|n| table.set(&n.to_be_bytes(), Some(&large)) == Code::Ok).count();
        assert_eq!(stored, (KEY_VALUES_BYTES_MAX - 6) / (KEY_VALUE_MAX + 4));
        assert_eq!(table.set(b"k", None), Code::Ok);
        assert_eq!(table.set(&0u32.to_be_bytes(), None), Code::Ok);
        assert_eq!(table.set(b"other", Some(&large)), Code::Ok, "there is room again");
    }
}
