use std::collections::HashMap;
use std::ops::Range;

use mc_types::MAX_ITEMS;

use crate::call::MAX_REQUEST_BYTES;

/// Maximum bytes of values in one chunk of puts. It keeps the time between start and end of a put well below its
/// deadline, however large the batch is.
const MAX_PAYLOAD_BYTES: u64 = 256 << 20;

/// Maximum number of requests of one batch that are under way at the same time.
pub(crate) const IN_FLIGHT: usize = 4;

/// Cost of one item against the limits of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Bytes of the item in the encoded request.
    pub(crate) request: usize,
    /// Bytes of its value if a transfer follows the request, else 0.
    pub(crate) payload: u64,
}

/// Cuts a batch, in order, into requests that a master accepts.
pub(crate) fn cut(costs: impl IntoIterator<Item = Cost>) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut begin, mut end, mut request, mut payload) = (0, 0, 0_usize, 0_u64);
    for cost in costs {
        let full = end - begin == MAX_ITEMS
            || request + cost.request > MAX_REQUEST_BYTES
            || payload.saturating_add(cost.payload) > MAX_PAYLOAD_BYTES;
        if full && end > begin {
            chunks.push(begin..end);
            (begin, request, payload) = (end, 0, 0);
        }
        end += 1;
        request += cost.request;
        payload = payload.saturating_add(cost.payload);
    }
    if end > begin {
        chunks.push(begin..end);
    }
    chunks
}

/// Selects the put that is sent if a batch has several puts of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The first. The others then find its object.
    First,
    /// The last. It would replace the others' objects at once.
    Last,
}

/// Returns for each item the index of the item that is sent for its key: its own index, except for duplicates.
pub(crate) fn representatives<'a>(keys: impl IntoIterator<Item = &'a [u8]>, keep: Keep) -> Vec<usize> {
    let keys: Vec<&[u8]> = keys.into_iter().collect();
    let mut first: HashMap<&[u8], usize> = HashMap::with_capacity(keys.len());
    let mut sent = vec![0; keys.len()];
    let mut choose = |at: usize| sent[at] = *first.entry(keys[at]).or_insert(at);
    match keep {
        Keep::First => (0..keys.len()).for_each(&mut choose),
        Keep::Last => (0..keys.len()).rev().for_each(&mut choose),
    }
    sent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs(n: usize, request: usize, payload: u64) -> Vec<Cost> {
        vec![Cost { request, payload }; n]
    }

    #[test]
    fn a_batch_is_cut_at_each_limit() {
        assert!(cut([]).is_empty());
        assert_eq!(cut(costs(MAX_ITEMS + 1, 10, 0)), [0..MAX_ITEMS, MAX_ITEMS..MAX_ITEMS + 1]);
        assert_eq!(cut(costs(3, MAX_REQUEST_BYTES / 2, 0)), [0..2, 2..3]);
        assert_eq!(cut(costs(3, 10, MAX_PAYLOAD_BYTES)), [0..1, 1..2, 2..3]);
        assert_eq!(cut(costs(2, 10, u64::MAX)), [0..1, 1..2], "one item is a request, however large");
    }

    #[test]
    fn of_duplicates_the_first_or_the_last_is_sent() {
        let keys: [&[u8]; 4] = [b"a", b"b", b"a", b"a"];
        assert_eq!(representatives(keys, Keep::First), [0, 1, 0, 0]);
        assert_eq!(representatives(keys, Keep::Last), [3, 1, 3, 3]);
    }

    proptest! {
        #[test]
        fn chunks_cover_the_batch_in_order_and_respect_the_limits(
            items in prop::collection::vec((1..200_000_usize, 0..(200_u64 << 20)), 0..100)
        ) {
            let costs: Vec<Cost> =
                items.iter().map(|&(request, payload)| Cost { request, payload }).collect();
            let mut next = 0;
            for chunk in cut(costs.iter().copied()) {
                prop_assert_eq!(chunk.start, next);
                prop_assert!(!chunk.is_empty());
                next = chunk.end;
                let request: usize = costs[chunk.clone()].iter().map(|cost| cost.request).sum();
                let payload: u64 = costs[chunk].iter().map(|cost| cost.payload).sum();
                prop_assert!(request <= MAX_REQUEST_BYTES && payload <= MAX_PAYLOAD_BYTES);
            }
            prop_assert_eq!(next, costs.len());
        }
    }
}
