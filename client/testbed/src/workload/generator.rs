//! Generator of multi-turn conversations in the shape of a production trace.
//!
//! A request is a list of blocks of 512 tokens each: a prefix from an earlier request of its conversation, then new
//! blocks. Every request begins with block 0, the system prompt. The tables are quantiles of one hour of real traffic
//! (the conversation trace published with the Mooncake paper, FAST'25: 12,031 requests, 288,500 block references). They
//! give the length of new conversations, the blocks that a turn adds, and the number of requests until a conversation
//! continues.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// One block of 512 tokens; equal numbers mean the same tokens after the same prefix.
pub type Block = u64;

/// Quantiles (probability, value), both rising; values in between are interpolated.
type Quantiles = [(f64, f64)];

/// New blocks of a conversation's first request, after block 0.
const FIRST_TURN: &Quantiles = &[
    (0.0, 1.0),
    (0.15, 1.0),
    (0.20, 2.0),
    (0.30, 3.0),
    (0.40, 7.0),
    (0.50, 10.0),
    (0.60, 14.0),
    (0.70, 21.0),
    (0.80, 30.0),
    (0.90, 49.0),
    (0.95, 75.0),
    (0.98, 131.0),
    (0.99, 175.0),
    (1.0, 246.0),
];

/// New blocks of a later turn, after the prefix that it reuses.
const LATER_TURN: &Quantiles = &[
    (0.0, 1.0),
    (0.20, 1.0),
    (0.25, 2.0),
    (0.60, 2.0),
    (0.70, 4.0),
    (0.80, 10.0),
    (0.90, 20.0),
    (0.95, 29.0),
    (0.98, 41.0),
    (0.99, 53.0),
    (1.0, 150.0),
];

/// Number of requests between two turns of a conversation.
const PAUSE: &Quantiles = &[
    (0.0, 5.0),
    (0.05, 99.0),
    (0.10, 147.0),
    (0.25, 229.0),
    (0.50, 461.0),
    (0.75, 901.0),
    (0.90, 1_841.0),
    (0.95, 2_500.0),
    (1.0, 8_000.0),
];

/// Share of requests that continue a conversation, if one is old enough.
const CONTINUES: f64 = 0.42;
/// Share of continuing requests that go back before the last turn (an edited or regenerated answer).
const GOES_BACK: f64 = 0.40;
/// Maximum number of blocks of a request.
const LONGEST: usize = 247;

/// A seeded, endless source of requests.
#[derive(Debug)]
pub struct Generator {
    rng: SmallRng,
    /// Divisor of the pauses. At the trace's pace a run of a few hundred requests would hardly see a second turn.
    pause_divisor: f64,
    next_block: Block,
    /// Blocks of each request so far, by its number; `None` once it was continued or if it can't be.
    open: Vec<Option<Vec<Block>>>,
}

impl Generator {
    /// Creates requests that follow from `seed`, with pauses `pause_divisor` times shorter than the trace's.
    pub fn new(seed: u64, pause_divisor: f64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), pause_divisor, next_block: 1, open: Vec::new() }
    }

    /// Takes the conversation whose last turn was about a drawn pause ago.
    fn resume(&mut self) -> Option<Vec<Block>> {
        let pause = (self.draw(PAUSE) as f64 / self.pause_divisor).max(1.0) as usize;
        let wanted = self.open.len().checked_sub(pause)?;
        // Take the nearest request before it, else after it: most requests are the last turn of their conversation.
        let before = (0..=wanted).rev().take(200);
        let after = wanted + 1..self.open.len();
        let found =
            before.chain(after.take(50)).find(|&at| self.open.get(at).is_some_and(Option::is_some))?;
        self.open[found].take()
    }

    fn draw(&mut self, quantiles: &Quantiles) -> usize {
        let p: f64 = self.rng.random();
        let above = quantiles.iter().position(|(q, _)| *q >= p).unwrap_or(quantiles.len() - 1).max(1);
        let ((p0, v0), (p1, v1)) = (quantiles[above - 1], quantiles[above]);
        (v0 + (v1 - v0) * (p - p0) / (p1 - p0)).round() as usize
    }
}

impl Iterator for Generator {
    type Item = Vec<Block>;

    fn next(&mut self) -> Option<Vec<Block>> {
        let continued = if self.rng.random_bool(CONTINUES) { self.resume() } else { None };
        let (mut blocks, added) = match continued {
            Some(mut blocks) => {
                // The last block of a request is rarely full, so the next turn does not share it.
                let mut keep = blocks.len() - 1;
                if self.rng.random_bool(GOES_BACK) {
                    keep = self.rng.random_range(2..=keep);
                }
                blocks.truncate(keep);
                let added = self.draw(LATER_TURN);
                (blocks, added)
            }
            None => (vec![0], self.draw(FIRST_TURN)),
        };
        let added = added.min(LONGEST - blocks.len());
        blocks.extend(self.next_block..self.next_block + added as Block);
        self.next_block += added as Block;
        // A shorter conversation has no full block that a later request could share, and one of the maximum length has
        // ended.
        let goes_on = (3..LONGEST).contains(&blocks.len());
        self.open.push(goes_on.then(|| blocks.clone()));
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn quantile(values: &mut [usize], p: f64) -> usize {
        values.sort_unstable();
        values[((values.len() as f64 * p) as usize).min(values.len() - 1)]
    }

    fn mean(values: &[usize]) -> f64 {
        values.iter().sum::<usize>() as f64 / values.len() as f64
    }

    fn near(what: &str, got: f64, trace: f64, tolerance: f64) {
        assert!(
            (got - trace).abs() <= trace * tolerance,
            "{what}: {got:.2}, the trace has {trace} (tolerance {tolerance})"
        );
    }

    /// The test generates as many requests as the trace has, and measures them as the trace was measured.
    #[test]
    fn the_statistics_are_the_traces() {
        let requests: Vec<_> = Generator::new(1, 1.0).take(12_031).collect();
        let mut seen: HashMap<Block, (usize, usize)> = HashMap::new(); // uses, last request
        let (mut sizes, mut prefixes, mut pauses) = (Vec::new(), Vec::new(), Vec::new());
        for (at, request) in requests.iter().enumerate() {
            let prefix = request.iter().take_while(|block| seen.contains_key(block)).count();
            sizes.push(request.len());
            prefixes.push(prefix);
            if prefix > 1 {
                pauses.push(at - seen[&request[prefix - 1]].1);
            }
            assert_eq!(request[0], 0, "block 0 is in every request");
            for block in request {
                let uses = seen.get(block).map_or(0, |(uses, _)| *uses);
                seen.insert(*block, (uses + 1, at));
            }
        }
        near("blocks a request, p50", quantile(&mut sizes, 0.5) as f64, 14.0, 0.25);
        near("blocks a request, p90", quantile(&mut sizes, 0.9) as f64, 54.0, 0.2);
        near("blocks a request, p99", quantile(&mut sizes, 0.99) as f64, 167.0, 0.2);
        near("blocks a request, mean", mean(&sizes), 24.0, 0.1);
        assert!(sizes.iter().all(|size| *size <= LONGEST), "no request is longer than the trace's longest");
        near("reused blocks, p90", quantile(&mut prefixes, 0.9) as f64, 25.0, 0.25);
        near("reused blocks, p99", quantile(&mut prefixes, 0.99) as f64, 106.0, 0.35);
        near("reused blocks, mean", mean(&prefixes), 8.8, 0.15);
        assert_eq!(quantile(&mut prefixes, 0.5), 1, "half of the requests reuse the common block only");
        let reusing = prefixes.iter().filter(|prefix| **prefix > 1).count() as f64 / prefixes.len() as f64;
        near("share that reuses more than the common block", reusing, 0.387, 0.1);
        near("requests between two turns, p10", quantile(&mut pauses, 0.1) as f64, 147.0, 0.25);
        near("requests between two turns, p50", quantile(&mut pauses, 0.5) as f64, 461.0, 0.25);
        near("requests between two turns, p90", quantile(&mut pauses, 0.9) as f64, 1_841.0, 0.25);
        near("blocks", seen.len() as f64, 182_790.0, 0.1);
        let once = seen.values().filter(|(uses, _)| *uses == 1).count() as f64;
        near("share of blocks used once", once / seen.len() as f64, 138_646.0 / 182_790.0, 0.15);
    }

    #[test]
    fn a_seed_gives_the_same_requests_again_and_another_seed_others() {
        let run = |seed| Generator::new(seed, 10.0).take(300).collect::<Vec<_>>();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn a_short_hurried_run_sees_second_turns() {
        let mut seen = std::collections::HashSet::new();
        let mut reusing = 0;
        for request in Generator::new(1, 20.0).take(150) {
            reusing += usize::from(request.len() > 1 && seen.contains(&request[1]));
            seen.extend(request);
        }
        assert!(reusing > 15, "{reusing} of 150 requests reuse a prefix of their own");
    }
}
