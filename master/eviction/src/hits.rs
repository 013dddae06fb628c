use std::sync::atomic::{AtomicUsize, Ordering};

use mc_index::KeyHash;
use parking_lot::Mutex;

const STRIPES: usize = 16;

/// Maximum number of keys that a stripe holds: about half a megabyte in each.
const KEYS_PER_STRIPE: usize = 64 << 10;

/// Reads on their way from the request threads to the evictor.
///
/// A request never waits here: if its stripe is in use or full, its hits are lost. An order of use that misses a few
/// hits serves as well.
#[derive(Debug, Default)]
pub struct Hits {
    stripes: [Mutex<Calls>; STRIPES],
    next: AtomicUsize,
}

/// The keys of several calls, back to back.
#[derive(Debug, Default)]
struct Calls {
    keys: Vec<KeyHash>,
    /// End of each call in `keys`.
    ends: Vec<usize>,
}

impl Hits {
    /// Creates an empty collection of hits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the keys that one call found, in the order of the call.
    pub fn call(&self, keys: impl Iterator<Item = KeyHash>) {
        let stripe = self.next.fetch_add(1, Ordering::Relaxed) % STRIPES;
        let Some(mut calls) = self.stripes[stripe].try_lock() else { return };
        let (before, room) = (calls.keys.len(), KEYS_PER_STRIPE.saturating_sub(calls.keys.len()));
        calls.keys.extend(keys.take(room));
        if calls.keys.len() > before {
            let end = calls.keys.len();
            calls.ends.push(end);
        }
    }

    /// Takes all recorded calls and passes each to `call`, nearly in the order in which they were recorded.
    pub fn drain(&self, mut call: impl FnMut(&[KeyHash])) {
        for stripe in &self.stripes {
            let Calls { keys, ends } = std::mem::take(&mut *stripe.lock());
            let mut from = 0;
            for end in ends {
                call(&keys[from..end]);
                from = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<u8>) -> Vec<KeyHash> {
        range.map(|key| KeyHash::of("", &[key])).collect()
    }

    #[test]
    fn calls_come_out_whole_and_once() {
        let hits = Hits::new();
        hits.call(keys(0..3).into_iter());
        hits.call([].into_iter());
        hits.call(keys(3..5).into_iter());
        let mut drained = Vec::new();
        hits.drain(|call| drained.push(call.to_vec()));
        drained.sort_by_key(Vec::len);
        assert_eq!(drained, [keys(3..5), keys(0..3)]);
        hits.drain(|_| panic!("nothing is left"));
    }

    #[test]
    fn hits_that_find_no_room_are_lost() {
        let hits = Hits::new();
        let many = || std::iter::repeat_n(KeyHash::of("", b"k"), KEYS_PER_STRIPE / 4 * 3);
        for _ in 0..3 * STRIPES {
            hits.call(many());
        }
        let mut count = 0;
        hits.drain(|call| count += call.len());
        assert_eq!(count, STRIPES * KEYS_PER_STRIPE);
    }
}
