use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::Backoff;
use crate::second_watch::{PAUSE, SecondWatch, WORKED, WatchStep};

/// Decides which masters are watched: one besides the leader, and the leader if it is to be watched, too.
#[derive(Debug)]
pub(crate) struct Watches {
    second: SecondWatch,
    leader: Option<LeaderWatch>,
    /// The watch to open next, in place of one that was ended just now.
    next: Option<WatchAction>,
}

/// A decision about a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchAction {
    /// Open one of this master after a pause.
    Open { address: String, pause: Duration },
    /// End that of this master.
    End(String),
}

/// The watch of the leader.
#[derive(Debug)]
struct LeaderWatch {
    watched: Option<String>,
    /// Whether this leader was not watched yet.
    is_new: bool,
    pace: Backoff,
}

impl Watches {
    /// Starts at a random master, so that not every process of a fleet watches the same one.
    pub(crate) fn new(leader_too: bool) -> Self {
        let leader = || LeaderWatch { watched: None, is_new: true, pace: Backoff::new(PAUSE.0, PAUSE.1) };
        Self {
            second: SecondWatch::new(rand::random_range(0..64)),
            leader: leader_too.then(leader),
            next: None,
        }
    }

    /// Returns whether a watch besides that of the leader has brought news, so that it will report the next leader.
    pub(crate) fn has_news(&self) -> bool {
        self.second.has_news()
    }

    /// Returns when [`Self::next`] has something to do by itself.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.second.look_at()
    }

    #[cfg(test)]
    pub(crate) fn second(&self) -> Option<&str> {
        self.second.watched()
    }

    /// Decides at `now` what to do next; `None`: nothing. `spread` delays a watch that is opened, because all watchers of
    /// a master that begins to lead change over at the same moment.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        leader: Option<&str>,
        masters: &BTreeSet<String>,
        spread: Duration,
    ) -> Option<WatchAction> {
        if let Some(action) = self.next.take().or_else(|| self.next_of_leader(leader, spread)) {
            return Some(action);
        }
        let before = self.second.watched().map(str::to_owned);
        match self.second.step(now, leader, masters, spread) {
            WatchStep::Keep => None,
            WatchStep::End => before.map(WatchAction::End),
            WatchStep::Open { address, pause } => {
                let open = WatchAction::Open { address, pause };
                let Some(before) = before else { return Some(open) };
                self.next = Some(open);
                Some(WatchAction::End(before))
            }
        }
    }

    fn next_of_leader(&mut self, leader: Option<&str>, spread: Duration) -> Option<WatchAction> {
        let watch = self.leader.as_mut()?;
        if watch.watched.as_deref() == leader {
            return None;
        }
        if let Some(before) = watch.watched.take() {
            watch.pace.reset();
            watch.is_new = true;
            return Some(WatchAction::End(before));
        }
        let address = leader?.to_owned();
        watch.watched = Some(address.clone());
        if self.second.hand_over(&address) {
            return None;
        }
        let pause = if watch.is_new { Duration::ZERO } else { watch.pace.wait() };
        Some(WatchAction::Open { address, pause: pause + spread })
    }

    /// Takes in that the master at `from` answered a question, or that its watch brought news.
    pub(crate) fn heard(&mut self, from: &str, by_watch: bool, leads: bool) {
        self.second.heard(from, by_watch, leads);
    }

    /// Takes in that the watch of `address` ended after it had `lasted` this long.
    pub(crate) fn ended(&mut self, address: &str, lasted: Duration) {
        match &mut self.leader {
            Some(watch) if watch.watched.as_deref() == Some(address) => {
                watch.watched = None;
                if lasted >= WORKED {
                    watch.pace.reset();
                }
                watch.is_new = false;
            }
            _ => self.second.ended(address, lasted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masters() -> BTreeSet<String> {
        ["a", "b", "c"].map(String::from).into()
    }

    fn all(watches: &mut Watches, leader: Option<&str>) -> Vec<WatchAction> {
        let now = Instant::now();
        std::iter::from_fn(|| watches.next(now, leader, &masters(), Duration::ZERO)).collect()
    }

    fn opened(actions: &[WatchAction]) -> Vec<&str> {
        fn opened(action: &WatchAction) -> Option<&str> {
            match action {
                WatchAction::Open { address, .. } => Some(address),
                _ => None,
            }
        }
        actions.iter().filter_map(opened).collect()
    }

    #[test]
    fn the_watch_of_a_master_that_begins_to_lead_goes_on_as_the_leaders() {
        let mut watches = Watches::new(true);
        let actions = all(&mut watches, Some("a"));
        let [leader, second] = opened(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!(leader, "a");
        let second = second.to_owned();
        watches.heard(&second, true, false);
        let actions = all(&mut watches, Some(&second));
        assert!(actions.contains(&WatchAction::End("a".to_owned())), "{actions:?}");
        assert!(!opened(&actions).contains(&&*second), "it is open: {actions:?}");
        assert_eq!(opened(&actions).len(), 1, "and another master is watched besides: {actions:?}");
    }

    #[test]
    fn a_watch_that_waits_for_its_pause_is_opened_at_once_when_its_master_begins_to_lead() {
        let mut watches = Watches::new(true);
        let second = opened(&all(&mut watches, None))[0].to_owned();
        let actions = all(&mut watches, Some(&second));
        let at_once = WatchAction::Open { address: second, pause: Duration::ZERO };
        assert!(actions.contains(&at_once), "{actions:?}");
    }

    #[test]
    fn a_leaders_watch_that_ends_is_opened_again_after_a_pause() {
        let mut watches = Watches::new(true);
        assert!(
            all(&mut watches, Some("a"))
                .contains(&WatchAction::Open { address: "a".to_owned(), pause: Duration::ZERO })
        );
        watches.ended("a", Duration::ZERO);
        let again = all(&mut watches, Some("a"));
        assert!(
            matches!(&again[..], [WatchAction::Open { address, pause }] if address == "a" && !pause.is_zero())
        );
        assert!(opened(&all(&mut watches, None)).is_empty());
    }

    #[test]
    fn a_watch_that_another_one_replaces_is_ended_first() {
        let mut watches = Watches::new(false);
        let before = opened(&all(&mut watches, None))[0].to_owned();
        let actions = all(&mut watches, Some(&before));
        assert!(
            matches!(&actions[..], [WatchAction::End(ended), WatchAction::Open { .. }] if *ended == before)
        );
    }

    #[test]
    fn stores_do_not_watch_the_leader() {
        let mut watches = Watches::new(false);
        let actions = all(&mut watches, Some("a"));
        assert!(matches!(opened(&actions)[..], ["b" | "c"]), "{actions:?}");
    }
}
