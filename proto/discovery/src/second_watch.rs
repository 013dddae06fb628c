use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::Backoff;

/// First and longest pause before a broken watch is opened again. A mounted store need not hurry: a leader that loses
/// its leadership ends the heartbeats itself. If both heartbeats and watch are gone, the masters are asked.
pub(crate) const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Time for which a watch must last to count as one that worked, so that the pauses start over.
pub(crate) const WORKED: Duration = Duration::from_secs(5);
/// Shortest time between two watches that are opened without a pause, so that a master that comes and goes does not
/// void the pauses.
const IMMEDIATE_INTERVAL: Duration = Duration::from_secs(1);

/// Decides which master is watched besides the leader, and when its watch is opened.
///
/// A watch reports the next leader at the moment of its election, earlier than the answer to a question would.
#[derive(Debug)]
pub(crate) struct SecondWatch {
    /// The master that is watched, or will be after the pause.
    watched: Option<String>,
    /// Whether the present watch has brought news.
    has_news: bool,
    pace: Backoff,
    next: usize,
    /// A master that answered a question while no watch brings news. It is watched at once: even if it knows no leader
    /// yet, its watch reports one sooner than the next question.
    answered: Option<String>,
    /// When a watch was last opened without a pause for that reason.
    last_immediate: Option<Instant>,
}

/// A decision about the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchStep {
    /// Leave the watch as it is.
    Keep,
    /// End the watch; there is no other master to watch.
    End,
    /// End the watch if one is open, and open one of this master after a pause.
    Open {
        /// The master.
        address: String,
        /// The pause.
        pause: Duration,
    },
}

impl SecondWatch {
    /// Starts with the master at place `first` among all, so that not every store of a fleet watches the same one.
    pub(crate) fn new(first: usize) -> Self {
        let pace = Backoff::new(PAUSE.0, PAUSE.1);
        Self { watched: None, has_news: false, pace, next: first, answered: None, last_immediate: None }
    }

    /// Returns whether an open watch has brought news, so that it will report the next leader.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// Decides at `now` what to do about the watch. `masters` are all known masters. `spread_delay` delays a watch that is
    /// opened, because all watchers of a master that begins to lead change over at the same moment.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        leader: Option<&str>,
        masters: &BTreeSet<String>,
        spread_delay: Duration,
    ) -> WatchStep {
        let may_open_now = self.last_immediate.is_none_or(|at| now.duration_since(at) >= IMMEDIATE_INTERVAL);
        self.answered = self
            .answered
            .take()
            .filter(|address| Some(address.as_str()) != leader && masters.contains(address));
        let was_open = self.watched.is_some();
        if let Some(watched) = &self.watched {
            let better = !self.has_news && may_open_now && self.answered.is_some();
            if Some(watched.as_str()) != leader && masters.contains(watched) && !better {
                return WatchStep::Keep;
            }
            self.give_up();
        }
        let others: Vec<&String> =
            masters.iter().filter(|address| Some(address.as_str()) != leader).collect();
        if others.is_empty() {
            return if was_open { WatchStep::End } else { WatchStep::Keep };
        }
        let answered = match may_open_now {
            true => self.answered.take(),
            false => None,
        };
        let in_turn = others[self.next % others.len()].clone();
        self.next = self.next.wrapping_add(1);
        let (address, pause) = match answered {
            Some(address) => {
                self.last_immediate = Some(now);
                self.pace.wait();
                (address, Duration::ZERO)
            }
            None => (in_turn, self.pace.wait() + spread_delay),
        };
        self.watched = Some(address.clone());
        WatchStep::Open { address, pause }
    }

    /// Returns when [`Self::step`] has something to do by itself: a master has answered, and the last watch without a pause
    /// is not long enough ago. No event wakes the search then.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.answered.as_ref().filter(|_| !self.has_news)?;
        self.last_immediate.map(|at| at + IMMEDIATE_INTERVAL)
    }

    /// Returns the master that is watched, or will be after the pause.
    pub(crate) fn watched(&self) -> Option<&str> {
        self.watched.as_deref()
    }

    /// Gives up the watch of `address`. Returns whether it goes on as that of the leader: one that has brought no news may
    /// still be in its pause.
    pub(crate) fn hand_over(&mut self, address: &str) -> bool {
        let has_news = self.has_news;
        let is_watched = self.watched.as_deref() == Some(address);
        if is_watched {
            self.give_up();
        }
        is_watched && has_news
    }

    /// Forgets the present watch. One that has brought news has worked.
    fn give_up(&mut self) {
        if self.has_news {
            self.pace.reset();
        }
        (self.watched, self.has_news) = (None, false);
    }

    /// Records that the master at `from` answered a question, or that its watch brought news. `leads`: the master is
    /// the leader, which needs no second watch.
    pub(crate) fn heard(&mut self, from: &str, by_watch: bool, leads: bool) {
        self.has_news |= by_watch && self.watched.as_deref() == Some(from);
        if !self.has_news && !leads {
            self.answered = Some(from.to_owned());
        }
    }

    /// Takes in that the watch of `address` ended after it had `lasted` this long.
    pub(crate) fn ended(&mut self, address: &str, lasted: Duration) {
        if self.watched.as_deref() == Some(address) {
            (self.watched, self.has_news) = (None, false);
            if lasted >= WORKED {
                self.pace.reset();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    fn masters() -> BTreeSet<String> {
        ["a:1", "b:1", "c:1"].map(String::from).into()
    }

    fn opened(step: WatchStep) -> (String, Duration) {
        match step {
            WatchStep::Open { address, pause } => (address, pause),
            other => panic!("no watch is opened: {other:?}"),
        }
    }

    #[test]
    fn a_master_besides_the_leader_is_watched_until_it_leads() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        let (first, pause) = opened(watch.step(now, Some("a:1"), &all, NONE));
        assert_eq!(first, "b:1");
        assert!(pause > NONE && pause <= PAUSE.0);
        assert_eq!(watch.step(now, Some("a:1"), &all, NONE), WatchStep::Keep);
        assert_eq!(watch.step(now, Some("c:1"), &all, NONE), WatchStep::Keep, "another one leads");
        watch.heard("b:1", true, false);
        assert!(watch.has_news());
        let spread_delay = Duration::from_secs(1);
        let (second, pause) = opened(watch.step(now, Some("b:1"), &all, spread_delay));
        assert_ne!(second, "b:1");
        assert!(pause > spread_delay, "every store changes over at this moment");
        assert!(!watch.has_news(), "the new watch has brought nothing yet");
    }

    #[test]
    fn pauses_start_over_after_a_watch_that_brought_news_until_its_master_led() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        for _ in 0..8 {
            let (watched, pause) = opened(watch.step(now, None, &all, NONE));
            assert!(pause <= PAUSE.0);
            watch.heard(&watched, true, false);
            assert!(watch.hand_over(&watched));
            let (watched, pause) = opened(watch.step(now, None, &all, NONE));
            assert!(pause <= PAUSE.0);
            watch.heard(&watched, true, false);
            assert!(opened(watch.step(now, Some(&watched), &all, NONE)).1 <= PAUSE.0);
            let watched = watch.watched().unwrap().to_owned();
            watch.ended(&watched, WORKED);
        }
    }

    #[test]
    fn a_master_that_is_not_known_any_more_is_not_watched() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        assert_eq!(opened(watch.step(now, Some("a:1"), &all, NONE)).0, "b:1");
        watch.heard("b:1", true, false);
        let left = ["a:1", "c:1"].map(String::from).into();
        assert_eq!(opened(watch.step(now, Some("a:1"), &left, NONE)).0, "c:1");
    }

    #[test]
    fn a_master_that_came_back_and_leads_by_now_ends_no_watch_that_is_being_opened() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        opened(watch.step(now, None, &all, NONE));
        watch.heard("c:1", false, false);
        assert_eq!(watch.step(now, Some("c:1"), &all, NONE), WatchStep::Keep);
    }

    #[test]
    fn a_master_that_answered_and_is_not_known_any_more_ends_no_watch_that_is_being_opened() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        assert_eq!(opened(watch.step(now, None, &all, NONE)).0, "a:1");
        watch.heard("c:1", false, false);
        assert_eq!(watch.step(now, None, &["a:1".to_owned()].into(), NONE), WatchStep::Keep);
    }

    #[test]
    fn a_single_master_is_not_watched_while_it_leads() {
        let (mut watch, now) = (SecondWatch::new(0), Instant::now());
        let one = BTreeSet::from(["a:1".to_owned()]);
        assert_eq!(opened(watch.step(now, None, &one, NONE)).0, "a:1");
        assert_eq!(watch.step(now, Some("a:1"), &one, NONE), WatchStep::End);
        assert_eq!(watch.step(now, Some("a:1"), &one, NONE), WatchStep::Keep);
    }

    #[test]
    fn a_master_that_answers_while_no_watch_brings_news_is_watched_at_once() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        opened(watch.step(now, None, &all, NONE));
        watch.heard("c:1", false, false);
        assert_eq!(opened(watch.step(now, None, &all, Duration::from_secs(1))), ("c:1".to_owned(), NONE));
        watch.heard("b:1", false, false);
        assert_eq!(watch.step(now, None, &all, NONE), WatchStep::Keep, "not twice within a second");
        let later = watch.look_at().expect("nothing else would wake the search");
        assert_eq!(later, now + IMMEDIATE_INTERVAL);
        assert_eq!(opened(watch.step(later, None, &all, NONE)), ("b:1".to_owned(), NONE));
        watch.heard("b:1", true, false);
        watch.heard("c:1", false, false);
        assert_eq!(
            watch.step(later + IMMEDIATE_INTERVAL, None, &all, NONE),
            WatchStep::Keep,
            "this one brings news"
        );
    }

    #[test]
    fn an_answer_of_the_leader_does_not_end_a_watch_that_is_being_opened() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        opened(watch.step(now, Some("a:1"), &all, NONE));
        watch.heard("a:1", false, true);
        assert_eq!(watch.step(now, Some("a:1"), &all, NONE), WatchStep::Keep);
    }

    #[test]
    fn pauses_grow_until_a_watch_has_worked() {
        let (mut watch, now, all) = (SecondWatch::new(0), Instant::now(), masters());
        let mut pause = NONE;
        for _ in 0..8 {
            let (address, next) = opened(watch.step(now, None, &all, NONE));
            pause = next;
            watch.ended(&address, NONE);
        }
        assert!(pause >= PAUSE.1 / 2);
        let (address, _) = opened(watch.step(now, None, &all, NONE));
        watch.ended("another", WORKED);
        assert_eq!(watch.step(now, None, &all, NONE), WatchStep::Keep, "this one is still open");
        watch.ended(&address, WORKED);
        assert!(opened(watch.step(now, None, &all, NONE)).1 <= PAUSE.0);
    }
}
