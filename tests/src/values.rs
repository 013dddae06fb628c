use mc_transfer::Checksum;

use crate::Seeded;
use crate::checker::Digest;

/// Returns the value of put number `put` under `key`. Its bytes follow from both. So a reader that has not kept the
/// value can still tell it from a torn value and from another key's.
pub fn value(key: &str, put: u64, len: usize) -> Vec<u8> {
    bytes_of(Seeded::new(xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), put)), len)
}

fn bytes_of(mut random: Seeded, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns `len` bytes of [`value`] from an offset on, without those before.
pub fn slice(key: &str, put: u64, offset: usize, len: usize) -> Vec<u8> {
    let mut random = Seeded::new(xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), put));
    random.skip((offset / 8) as u64);
    let before = offset % 8;
    let mut bytes = bytes_of(random, before + len);
    bytes.drain(..before);
    bytes
}

/// Returns the digest by which the checker identifies a value: its checksum in the masters' index and log, so that an
/// eviction in the log names a value of the history.
pub fn digest(value: &[u8]) -> Digest {
    Digest(Checksum::of(value).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_follows_from_its_key_its_put_and_its_length() {
        assert_eq!(value("k", 1, 100), value("k", 1, 100));
        assert_eq!(value("k", 1, 100)[..50], value("k", 1, 50));
        for (offset, len) in [(0, 100), (0, 1), (7, 9), (8, 8), (13, 87), (100, 0)] {
            assert_eq!(slice("k", 1, offset, len), value("k", 1, 100)[offset..offset + len]);
        }
        let mut torn = value("k", 1, 100);
        torn[99] ^= 1;
        let others = [value("k", 2, 100), value("l", 1, 100), value("k", 1, 99), torn];
        assert!(others.iter().all(|other| digest(other) != digest(&value("k", 1, 100))));
    }
}
