use std::collections::VecDeque;
use std::time::Duration;

use mc_types::ClusterTime;

/// Number of parts of the time for which records are kept. A record is kept longer by up to one part.
const PARTS: u32 = 128;

/// Times at which records were written, in steps: a record holds the number of its generation instead of a time.
pub(super) struct Generations {
    keep: Duration,
    span: Duration,
    /// Number of the first generation in the list.
    first: u32,
    /// Generations that may still have records, and the present one. Neither times nor numbers go down.
    list: VecDeque<Generation>,
}

struct Generation {
    opened: ClusterTime,
    /// Latest time at which a record of it was written.
    stamp: ClusterTime,
}

impl Generations {
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, span: keep / PARTS, first: 0, list: VecDeque::new() }
    }

    /// Returns the generation of a write at `now`. If the clock goes back, the present generation goes on.
    pub(super) fn present(&mut self, now: ClusterTime) -> u32 {
        match self.list.back_mut() {
            // `after` rounds up, so that a generation lasts at least a millisecond.
            Some(present) if now < present.opened.after(self.span) => present.stamp = present.stamp.max(now),
            _ => self.list.push_back(Generation { opened: now, stamp: now }),
        }
        self.number(self.list.len() - 1)
    }

    /// Returns the oldest generation to keep when the latest time that a master has said is `heard`.
    pub(super) fn live(&self, heard: ClusterTime) -> u32 {
        self.number(self.list.iter().take_while(|old| old.stamp.after(self.keep) <= heard).count())
    }

    /// Forgets generations before `oldest`; without it, all but the present one.
    pub(super) fn forget_before(&mut self, oldest: Option<u32>) {
        while self.list.len() > 1 && oldest.is_none_or(|oldest| self.first < oldest) {
            self.list.pop_front();
            self.first += 1;
        }
    }

    /// Returns the number of the generation at `place` in the list. 2^32 generations last for a century.
    fn number(&self, place: usize) -> u32 {
        self.first + place as u32
    }
}
