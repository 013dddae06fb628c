//! Hit ratios of well-known policies, and of the optimum, for the same requests.

use std::collections::{BTreeSet, HashMap};

use super::Block;

/// Position in time of a request that never comes.
const NEVER: usize = usize::MAX;

/// Rank of a block, and among blocks of one rank the number of blocks behind it in its request. A block is of no use
/// without those before it.
type Rank = (u64, usize);

/// A cache of a fixed size, which evicts the block of the lowest rank.
#[derive(Default)]
struct Ranked {
    ranks: HashMap<Block, Rank>,
    order: BTreeSet<(Rank, Block)>,
    /// Sum of the sizes of its blocks.
    used: u64,
}

/// Capacity of a cache, and the share of it that each block takes, in the same unit.
#[derive(Clone, Copy)]
pub struct Capacity<'a> {
    /// The capacity.
    pub total: u64,
    /// Share of a block.
    pub of_block: &'a dyn Fn(Block) -> u64,
}

impl Capacity<'_> {
    /// A number of blocks, whatever their sizes.
    pub fn blocks(total: u64) -> Self {
        Self { total, of_block: &|_| 1 }
    }
}

impl Ranked {
    fn contains(&self, block: Block) -> bool {
        self.ranks.contains_key(&block)
    }

    fn set(&mut self, block: Block, size: u64, rank: Rank) {
        match self.ranks.insert(block, rank) {
            Some(old) => _ = self.order.remove(&(old, block)),
            None => self.used += size,
        }
        self.order.insert((rank, block));
    }

    fn shrink_to(&mut self, capacity: Capacity<'_>) {
        while self.used > capacity.total {
            let Some((_, block)) = self.order.pop_first() else { return };
            self.ranks.remove(&block);
            self.used -= (capacity.of_block)(block);
        }
    }
}

/// Use of a block.
struct Use {
    /// Number of uses before it, of any block.
    time: u64,
    /// Number of the request, and the block's place in it.
    request: usize,
    at: usize,
    /// Whether the cache has the block.
    present: bool,
}

/// Replays the requests. `rank` returns the rank that a used block gets; `None` leaves it as it is.
fn replay(
    requests: &[impl AsRef<[Block]>],
    capacity: Capacity<'_>,
    rank: impl Fn(Use) -> Option<u64>,
) -> u64 {
    let mut cache = Ranked::default();
    let (mut hits, mut time) = (0, 0);
    for (number, request) in requests.iter().enumerate() {
        let blocks = request.as_ref();
        hits += blocks.iter().take_while(|block| cache.contains(**block)).count() as u64;
        for (at, &block) in blocks.iter().enumerate() {
            time += 1;
            let of = Use { time, request: number, at, present: cache.contains(block) };
            if let Some(rank) = rank(of) {
                cache.set(block, (capacity.of_block)(block), (rank, blocks.len() - at));
            }
        }
        cache.shrink_to(capacity);
    }
    hits
}

/// Hits of a cache that evicts the least recently used block.
pub fn lru(requests: &[impl AsRef<[Block]>], capacity: Capacity<'_>) -> u64 {
    replay(requests, capacity, |of| Some(of.time))
}

/// Hits of a cache that evicts the oldest block.
pub fn fifo(requests: &[impl AsRef<[Block]>], capacity: Capacity<'_>) -> u64 {
    replay(requests, capacity, |of| (!of.present).then_some(of.time))
}

/// Hits of a cache that knows the future and evicts the block whose next use is the farthest away (Belady).
pub fn opt(requests: &[impl AsRef<[Block]>], capacity: Capacity<'_>) -> u64 {
    let mut next_uses: Vec<Vec<usize>> = vec![Vec::new(); requests.len()];
    let mut seen: HashMap<Block, usize> = HashMap::new();
    for (number, request) in requests.iter().enumerate().rev() {
        let blocks = request.as_ref();
        next_uses[number] = blocks.iter().map(|block| seen.get(block).copied().unwrap_or(NEVER)).collect();
        seen.extend(blocks.iter().map(|block| (*block, number)));
    }
    replay(requests, capacity, |of| Some((NEVER - next_uses[of.request][of.at]) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hits of LRU, FIFO and the optimum.
    fn hits(requests: &[&[Block]], capacity: u64) -> [u64; 3] {
        let capacity = Capacity::blocks(capacity);
        [lru(requests, capacity), fifo(requests, capacity), opt(requests, capacity)]
    }

    #[test]
    fn a_hit_is_a_block_of_the_longest_prefix() {
        let trace: &[&[Block]] = &[&[1, 2, 3], &[1, 9, 3], &[1, 2, 3]];
        assert_eq!(hits(trace, 10), [4, 4, 4]);
    }

    #[test]
    fn each_policy_evicts_what_its_name_says() {
        // 1 is used again after 2 and before 3 takes its place or 2's.
        let trace: &[&[Block]] = &[&[1], &[2], &[1], &[3], &[1]];
        assert_eq!(hits(trace, 2), [2, 1, 2]);
        // A loop that does not fit defeats both; the optimum keeps one of its blocks.
        let trace: &[&[Block]] = &[&[1], &[2], &[3], &[1], &[2], &[3]];
        assert_eq!(hits(trace, 2), [0, 0, 2]);
    }

    #[test]
    fn a_large_block_takes_the_room_of_several() {
        let trace: &[&[Block]] = &[&[1], &[2], &[9], &[1], &[2]];
        let of_block = &|block| if block == 9 { 2 } else { 1 };
        assert_eq!(lru(trace, Capacity { total: 3, of_block }), 0);
        assert_eq!(lru(trace, Capacity { total: 4, of_block }), 2);
    }
}
