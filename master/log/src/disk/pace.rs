use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time over which syncs are remembered.
const WINDOW: Duration = Duration::from_secs(2);

/// Durations of the disk's syncs in the last two seconds, as recorded by the log's writer.
#[derive(Debug, Default)]
pub struct SyncPace(Mutex<Syncs>);

#[derive(Debug, Default)]
struct Syncs {
    /// Begin of the sync that is under way.
    begun: Option<Instant>,
    /// End and duration of each sync.
    ended: VecDeque<(Instant, Duration)>,
}

/// Summary of a disk's syncs in the last two seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Median duration. A sync that is under way for longer than the others took counts as if it ended now, so that a
    /// disk that is stuck counts as slow.
    pub median: Duration,
    /// Total duration of all of them.
    pub spent: Duration,
    /// Duration of the last of them, or of the one under way so far if that is longer.
    pub latest: Duration,
    /// Number of syncs that were measured.
    pub syncs: usize,
}

impl Pace {
    /// Returns a cautious estimate of the next sync's duration: a disk that has just become slow does not count as
    /// fast.
    pub fn at_worst(&self) -> Duration {
        self.median.max(self.latest)
    }
}

impl SyncPace {
    pub(crate) fn begin(&self) {
        self.0.lock().begun = Some(Instant::now());
    }

    pub(crate) fn end(&self) {
        let now = Instant::now();
        let mut syncs = self.0.lock();
        if let Some(begun) = syncs.begun.take() {
            syncs.ended.push_back((now, now - begun));
        }
        syncs.forget(now);
    }

    /// Returns the pace now; `None` when nothing was synced for a while.
    pub fn now(&self) -> Option<Pace> {
        let now = Instant::now();
        let mut syncs = self.0.lock();
        syncs.forget(now);
        let mut took: Vec<_> = syncs.ended.iter().map(|(_, took)| *took).collect();
        let under_way = syncs.begun.map(|begun| now - begun);
        let latest = took.last().copied().max(under_way)?;
        drop(syncs);
        if let Some(under_way) = under_way
            && took.iter().all(|took| under_way > *took)
        {
            took.push(under_way);
        }
        let (middle, syncs) = (took.len() / 2, took.len());
        let spent = took.iter().sum();
        let (_, median, _) = (!took.is_empty()).then(|| took.select_nth_unstable(middle))?;
        Some(Pace { median: *median, spent, latest, syncs })
    }
}

impl Syncs {
    fn forget(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|(ended, _)| *ended + WINDOW < now) {
            self.ended.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sync(pace: &SyncPace, ms: u64) {
        pace.begin();
        tokio::time::sleep(Duration::from_millis(ms)).await;
        pace.end();
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn the_median_of_two_seconds_counts() {
        let pace = SyncPace::default();
        assert_eq!(pace.now(), None);
        sync(&pace, 900).await;
        for _ in 0..2 {
            sync(&pace, 10).await;
        }
        assert_eq!(pace.now(), Some(Pace { median: ms(10), spent: ms(920), latest: ms(10), syncs: 3 }));
        tokio::time::sleep(ms(1_990)).await;
        assert_eq!(
            pace.now(),
            Some(Pace { median: ms(10), spent: ms(20), latest: ms(10), syncs: 2 }),
            "the first is forgotten"
        );
        tokio::time::sleep(ms(20)).await;
        assert_eq!(pace.now(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_has_just_become_slow_is_not_called_fast() {
        let pace = SyncPace::default();
        for _ in 0..10 {
            sync(&pace, 1).await;
        }
        sync(&pace, 300).await;
        let now = pace.now().unwrap();
        assert_eq!((now.median, now.at_worst()), (ms(1), ms(300)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_sync_is_a_slow_one() {
        let pace = SyncPace::default();
        sync(&pace, 1).await;
        pace.begin();
        tokio::time::sleep(ms(1_500)).await;
        assert_eq!(pace.now().map(|pace| pace.median), Some(ms(1_500)));
        tokio::time::sleep(ms(5_000)).await;
        assert_eq!(
            pace.now(),
            Some(Pace { median: ms(6_500), spent: ms(6_500), latest: ms(6_500), syncs: 1 })
        );
    }
}
