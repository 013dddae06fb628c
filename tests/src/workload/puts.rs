use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use crate::checker::Digest;
use crate::{digest, slice, value};

/// All puts that the clients of a workload have begun, by the keys of the history.
#[derive(Debug, Default)]
pub(super) struct Puts(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    count: u64,
    of_keys: HashMap<String, OfKey>,
}

#[derive(Debug, Default)]
struct OfKey {
    puts: Vec<Known>,
    /// How many of them have ended, with a known outcome.
    ended: usize,
}

/// A put, from whose number and length the bytes of its value follow.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    len: usize,
    digest: Digest,
}

/// Part of an object that was read: its offset and its bytes.
pub(super) type Slice<'a> = (u64, &'a [u8]);

impl Puts {
    /// Begins a put: returns its value.
    pub(super) fn begin(&self, key: &str, len: usize) -> (Vec<u8>, Digest) {
        let number = {
            let mut begun = self.0.lock().unwrap();
            begun.count += 1;
            begun.count
        };
        let bytes = value(key, number, len);
        let known = Known { number, len, digest: digest(&bytes) };
        self.0.lock().unwrap().of_keys.entry(key.to_owned()).or_default().puts.push(known);
        (bytes, known.digest)
    }

    /// Returns the value of a key that has all these parts. If no put explains them, the digest is that of the bytes, which
    /// nobody ever put.
    pub(super) fn value_of(&self, key: &str, parts: &[Slice<'_>]) -> Digest {
        let begun = self.0.lock().unwrap();
        let mut known = begun.of_keys.get(key).into_iter().flat_map(|of_key| &of_key.puts);
        let explains = |put: &&Known| parts.iter().all(|part| put.has(key, part));
        known.find(explains).map_or_else(
            || digest(&parts.iter().flat_map(|(_, bytes)| *bytes).copied().collect::<Vec<_>>()),
            |put| put.digest,
        )
    }

    /// Notes that a put of this key has ended, with a known outcome.
    pub(super) fn ended(&self, key: &str) {
        if let Some(of_key) = self.0.lock().unwrap().of_keys.get_mut(key) {
            of_key.ended += 1;
        }
    }

    /// Returns the keys that satisfy `wanted`, and of each how many puts have begun, if all of them have ended.
    pub(super) fn keys(&self, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, Option<usize>> {
        let begun = self.0.lock().unwrap();
        let keys = begun.of_keys.iter().filter(|(key, _)| wanted(key));
        keys.map(|(key, of_key)| {
            (key.clone(), Some(of_key.puts.len()).filter(|count| *count == of_key.ended))
        })
        .collect()
    }
}

impl Known {
    fn has(&self, key: &str, (offset, bytes): &Slice<'_>) -> bool {
        let Ok(offset) = usize::try_from(*offset) else { return false };
        let has = |len| slice(key, self.number, offset, len) == bytes[..len];
        // The first bytes tell most values apart.
        offset + bytes.len() <= self.len && has(bytes.len().min(16)) && has(bytes.len())
    }
}
