use std::collections::VecDeque;
use std::time::Duration;

use mc_types::ClusterTime;

/// Parts into which the time that records are kept is cut: each record is kept longer by up to one of them.
const PARTS: u32 = 128;

/// When records were written, some at a time: a record holds the number of its generation instead of a time.
pub(super) struct Generations {
    keep: Duration,
    span: Duration,
    /// Number of the first one in the list.
    first: u32,
    /// Those that may still have records, and the present one. Neither times nor numbers go down.
    list: VecDeque<Generation>,
}

struct Generation {
    opened: ClusterTime,
    /// The latest time at which a record of it was written.
    stamp: ClusterTime,
}

impl Generations {
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, span: keep / PARTS, first: 0, list: VecDeque::new() }
    }

    /// The generation of what is written now. A clock that goes back stays in the one it was in.
    pub(super) fn present(&mut self, now: ClusterTime) -> u32 {
        match self.list.back_mut() {
            // `after` rounds up, so that a generation is at least a millisecond.
            Some(present) if now < present.opened.after(self.span) => present.stamp = present.stamp.max(now),
            _ => self.list.push_back(Generation { opened: now, stamp: now }),
        }
        self.number(self.list.len() - 1)
    }

    /// The oldest generation whose records must still be kept when a master has said that it is `heard`.
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

    /// 2^32 generations last for a century.
    fn number(&self, place: usize) -> u32 {
        self.first + place as u32
    }
}
