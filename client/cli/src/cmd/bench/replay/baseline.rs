//! Hit ratios of well-known policies, and of the optimum, for the same requests.

use std::collections::{BTreeSet, HashMap};

use crate::workload::{Block, Request};

/// Position in time of a request that never comes.
const NEVER: usize = usize::MAX;

/// Rank of a block, and among blocks of one rank the number of blocks behind it in its request. A block is of no use
/// without those before it.
type Rank = (u64, usize);

/// A cache of a fixed number of blocks, which evicts the block of the lowest rank.
#[derive(Default)]
struct Ranked {
    ranks: HashMap<Block, Rank>,
    order: BTreeSet<(Rank, Block)>,
}

impl Ranked {
    fn contains(&self, block: Block) -> bool {
        self.ranks.contains_key(&block)
    }

    fn set(&mut self, block: Block, rank: Rank) {
        if let Some(old) = self.ranks.insert(block, rank) {
            self.order.remove(&(old, block));
        }
        self.order.insert((rank, block));
    }

    fn shrink_to(&mut self, capacity: usize) {
        while self.ranks.len() > capacity {
            let Some((_, block)) = self.order.pop_first() else { return };
            self.ranks.remove(&block);
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
fn replay(requests: &[Request], capacity: usize, rank: impl Fn(Use) -> Option<u64>) -> u64 {
    let mut cache = Ranked::default();
    let (mut hits, mut time) = (0, 0);
    for (number, request) in requests.iter().enumerate() {
        hits += request.blocks.iter().take_while(|block| cache.contains(**block)).count() as u64;
        for (at, &block) in request.blocks.iter().enumerate() {
            time += 1;
            let of = Use { time, request: number, at, present: cache.contains(block) };
            if let Some(rank) = rank(of) {
                cache.set(block, (rank, request.blocks.len() - at));
            }
        }
        cache.shrink_to(capacity);
    }
    hits
}

/// Hits of a cache that evicts the least recently used block.
pub(super) fn lru(requests: &[Request], capacity: usize) -> u64 {
    replay(requests, capacity, |of| Some(of.time))
}

/// Hits of a cache that evicts the oldest block.
pub(super) fn fifo(requests: &[Request], capacity: usize) -> u64 {
    replay(requests, capacity, |of| (!of.present).then_some(of.time))
}

/// Hits of a cache that knows the future and evicts the block whose next use is the farthest away (Belady).
pub(super) fn opt(requests: &[Request], capacity: usize) -> u64 {
    let mut next_uses: Vec<Vec<usize>> = vec![Vec::new(); requests.len()];
    let mut seen: HashMap<Block, usize> = HashMap::new();
    for (number, request) in requests.iter().enumerate().rev() {
        next_uses[number] =
            request.blocks.iter().map(|block| seen.get(block).copied().unwrap_or(NEVER)).collect();
        seen.extend(request.blocks.iter().map(|block| (*block, number)));
    }
    replay(requests, capacity, |of| Some((NEVER - next_uses[of.request][of.at]) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(lists: &[&[Block]]) -> Vec<Request> {
        lists.iter().map(|blocks| Request { timestamp: 0, blocks: blocks.to_vec() }).collect()
    }

    #[test]
    fn a_hit_is_a_block_of_the_longest_prefix() {
        let trace = requests(&[&[1, 2, 3], &[1, 9, 3], &[1, 2, 3]]);
        assert_eq!((lru(&trace, 10), fifo(&trace, 10), opt(&trace, 10)), (4, 4, 4));
    }

    #[test]
    fn each_policy_evicts_what_its_name_says() {
        // 1 is used again after 2 and before 3 takes its place or 2's.
        let trace = requests(&[&[1], &[2], &[1], &[3], &[1]]);
        assert_eq!((lru(&trace, 2), fifo(&trace, 2), opt(&trace, 2)), (2, 1, 2));
        // A loop that does not fit defeats both; the optimum keeps one of its blocks.
        let trace = requests(&[&[1], &[2], &[3], &[1], &[2], &[3]]);
        assert_eq!((lru(&trace, 2), fifo(&trace, 2), opt(&trace, 2)), (0, 0, 2));
    }
}
