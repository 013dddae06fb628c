//! Values derived from their keys, so that any process can check every byte without remembering what was written.
//!
//! A value is the stream `w(i) = mix(x0 + i * STEP)` of little-endian words; `x0` is the hash of its key. STEP is odd,
//! so the sum never repeats within a value. The streams of two keys share a word only if their hashes happen to lie a
//! small multiple of STEP apart. So the check detects another key's bytes, bytes at another offset, and torn bytes.
//! Eight bytes cost an addition and a shift, so generating values does not dominate a measurement.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of most values: one block of an 8-billion-parameter model in the shape that the workload uses.
pub const SMALL: usize = 128 << 10;
/// Bytes of a few values: a whole KV block of a large model (61 layers, 512 tokens). Not a multiple of a page.
pub const LARGE: usize = 3_274_752;
/// Number of keys per large value, on average.
const LARGE_EVERY: u64 = 20;
/// Mean bytes of a value of the mix.
pub const MEAN: u64 = (LARGE as u64 + (LARGE_EVERY - 1) * SMALL as u64) / LARGE_EVERY;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Salt of the hash that draws the size, so that sizes and bytes come from different hashes of the key.
const SIZE_SALT: u64 = 0x51_7E;

/// Returns the bytes of `key`'s value in the mixed workload; they depend only on the key.
pub fn mixed_size(key: &[u8]) -> usize {
    let draw = xxhash_rust::xxh3::xxh3_64_with_seed(key, SIZE_SALT);
    if draw.is_multiple_of(LARGE_EVERY) { LARGE } else { SMALL }
}

/// Fills `out` with `key`'s value.
pub fn fill(key: &[u8], out: &mut [u8]) {
    let mut x = xxh3_64(key);
    let (words, tail) = out.as_chunks_mut::<8>();
    for word in words {
        *word = mix(x).to_le_bytes();
        x = x.wrapping_add(STEP);
    }
    let last = mix(x).to_le_bytes();
    let len = tail.len();
    tail.copy_from_slice(&last[..len]);
}

/// Returns `key`'s value of `size` bytes.
pub fn of(key: &[u8], size: usize) -> bytes::Bytes {
    let mut value = vec![0; size];
    fill(key, &mut value);
    value.into()
}

/// Returns whether `got` is exactly `key`'s value of `size` bytes.
pub fn is_right(key: &[u8], size: usize, got: &[u8]) -> bool {
    if got.len() != size {
        return false;
    }
    let mut x = xxh3_64(key);
    let (words, tail) = got.as_chunks::<8>();
    let mut difference = 0;
    for word in words {
        difference |= u64::from_le_bytes(*word) ^ mix(x);
        x = x.wrapping_add(STEP);
    }
    difference == 0 && *tail == mix(x).to_le_bytes()[..tail.len()]
}

fn mix(x: u64) -> u64 {
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_follows_from_its_key() {
        for size in [1, 7, 8, 9, 4096, LARGE] {
            let value = of(b"block-1", size);
            assert_eq!(value, of(b"block-1", size), "the same key always has the same bytes");
            assert!(is_right(b"block-1", size, &value), "{size}");
        }
        // The stream must not change: a pool may still hold values from another build's run.
        assert_eq!(of(b"block-1", 8), mix(xxh3_64(b"block-1")).to_le_bytes().to_vec());
    }

    #[test]
    fn another_keys_bytes_torn_bytes_and_a_wrong_length_are_told_apart() {
        let right = of(b"block-1", SMALL);
        assert!(!is_right(b"block-2", SMALL, &right), "another key's value");
        for at in [0, 1, SMALL / 2, SMALL - 1] {
            let mut bad = right.to_vec();
            bad[at] ^= 1;
            assert!(!is_right(b"block-1", SMALL, &bad), "one flipped bit at {at}");
        }
        let mut torn = right.to_vec();
        torn[SMALL / 2..].copy_from_slice(&of(b"block-2", SMALL)[SMALL / 2..]);
        assert!(!is_right(b"block-1", SMALL, &torn), "half of another value");
        let mut shifted = right.to_vec();
        shifted.rotate_left(64);
        assert!(!is_right(b"block-1", SMALL, &shifted), "the right bytes at the wrong offset");
        assert!(!is_right(b"block-1", SMALL, &right[..SMALL - 1]), "cut short");
        assert!(!is_right(b"block-1", 13, &of(b"block-1", 14)), "one byte more");
    }

    #[test]
    fn a_few_values_are_large() {
        let large = (0..10_000).filter(|i| mixed_size(format!("block-{i}").as_bytes()) == LARGE).count();
        assert!((400..600).contains(&large), "one in {LARGE_EVERY}: {large} of 10000");
    }
}
