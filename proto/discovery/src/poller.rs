use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::Backoff;

/// Time after which an unanswered question no longer keeps another master from being asked; it stays open. A master
/// that is cut off would otherwise take its whole time-out from every search.
const ANSWER_WAIT: Duration = Duration::from_millis(100);

/// Time after a search within which the next one continues with its pauses. Clients and stores lose and find an
/// overloaded leader again and again; each time all of them would ask it at once.
const SAME_SEARCH: Duration = Duration::from_secs(1);

/// Decides which master to ask for the leader, and when. It asks one at a time with pauses that double, because all
/// clients and stores that lost the leader search at the same time. Masters that were never asked come first, without a
/// pause.
#[derive(Debug)]
pub(crate) struct Poller {
    pace: Backoff,
    /// Time before which no question is asked.
    next: Instant,
    began: Instant,
    /// When a step of a search was last taken.
    looked: Option<Instant>,
    lost_asked_last: bool,
    /// When each master was last asked.
    asked: BTreeMap<String, Instant>,
    /// Masters with a question under way, and since when.
    open: BTreeMap<String, Instant>,
}

/// The next step of a poller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PollStep {
    /// Ask this master. The caller reports the end of the question to [`Poller::ended`].
    Ask(String),
    /// Look again at this time, or when a question has ended.
    Wait(Instant),
}

impl Poller {
    /// Makes a poller whose pauses between questions double from `first` to `most`.
    pub(crate) fn new(first: Duration, most: Duration, now: Instant) -> Self {
        Self {
            pace: Backoff::new(first, most),
            next: now,
            began: now,
            looked: None,
            lost_asked_last: false,
            asked: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// Begins a search. `head_start` is the time that an open watch gets to report the leader before masters are asked.
    /// Until then, only the lost leader and masters that were never asked before are asked.
    pub(crate) fn begin(&mut self, now: Instant, head_start: Duration) {
        if self.looked.is_some_and(|looked| now < looked + SAME_SEARCH) {
            return;
        }
        self.pace.reset();
        self.began = now;
        self.next = now + head_start;
    }

    /// Decides at `now` which of `masters` to ask. `lost` is the leader that stopped answering. It is asked first, and
    /// then every other time, because it alone can say that it still leads.
    pub(crate) fn step(&mut self, now: Instant, masters: &BTreeSet<String>, lost: Option<&str>) -> PollStep {
        self.looked = Some(now);
        self.asked.retain(|address, _| masters.contains(address));
        let waiting = self.open.values().map(|since| *since + ANSWER_WAIT).filter(|until| now < *until).min();
        if let Some(until) = waiting {
            return PollStep::Wait(until);
        }
        let free = |address: &&String| !self.open.contains_key(*address);
        let fresh = masters.iter().filter(free).find(|address| !self.asked.contains_key(*address));
        let unasked_lost = masters.iter().filter(free).find(|address| {
            Some(address.as_str()) == lost && self.asked.get(*address).is_none_or(|at| *at < self.began)
        });
        let chosen = match unasked_lost.or(fresh) {
            Some(address) => address.clone(),
            None if now < self.next => return PollStep::Wait(self.next),
            None => match self.in_turn(masters, lost) {
                Some(address) => address,
                None => return PollStep::Wait(now + ANSWER_WAIT),
            },
        };
        self.lost_asked_last = Some(chosen.as_str()) == lost;
        self.next = self.next.max(now + self.pace.wait());
        self.asked.insert(chosen.clone(), now);
        self.open.insert(chosen.clone(), now);
        PollStep::Ask(chosen)
    }

    /// Returns the lost leader every other time, and else the other master that was asked longest ago.
    fn in_turn(&self, masters: &BTreeSet<String>, lost: Option<&str>) -> Option<String> {
        let free = || masters.iter().filter(|address| !self.open.contains_key(*address));
        let leader = free().find(|address| Some(address.as_str()) == lost);
        let other = free()
            .filter(|address| Some(address.as_str()) != lost)
            .min_by_key(|address| self.asked.get(*address));
        let (first, second) = if self.lost_asked_last { (other, leader) } else { (leader, other) };
        first.or(second).cloned()
    }

    /// Records that the question to `address` was answered or given up.
    pub(crate) fn ended(&mut self, address: &str) {
        self.open.remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_secs(2);

    fn masters() -> BTreeSet<String> {
        ["a", "b", "c"].map(String::from).into()
    }

    fn poller(now: Instant) -> Poller {
        Poller::new(FIRST, MOST, now)
    }

    /// Runs the poller until `end` and ends every question at once; returns the masters asked, and when.
    fn run(poller: &mut Poller, from: Instant, end: Instant) -> Vec<(String, Duration)> {
        let (mut now, mut asked) = (from, Vec::new());
        while now < end {
            match poller.step(now, &masters(), None) {
                PollStep::Ask(address) => {
                    poller.ended(&address);
                    asked.push((address, now - from));
                }
                PollStep::Wait(until) => now = until,
            }
        }
        asked
    }

    #[test]
    fn at_first_each_is_asked_at_once_one_after_the_other() {
        let now = Instant::now();
        let mut poller = poller(now);
        assert_eq!(poller.step(now, &masters(), None), PollStep::Ask("a".into()));
        assert_eq!(poller.step(now, &masters(), None), PollStep::Wait(now + ANSWER_WAIT), "one at a time");
        poller.ended("a");
        assert_eq!(poller.step(now, &masters(), None), PollStep::Ask("b".into()));
        // b is cut off: it does not keep c from being asked.
        assert_eq!(poller.step(now + ANSWER_WAIT, &masters(), None), PollStep::Ask("c".into()));
        poller.ended("c");
        let PollStep::Wait(until) = poller.step(now + ANSWER_WAIT, &masters(), None) else {
            panic!("all were asked")
        };
        assert_eq!(poller.step(until, &masters(), None), PollStep::Ask("a".into()), "b is still asked");
    }

    #[test]
    fn a_search_slows_down_and_asks_all_in_turn() {
        let now = Instant::now();
        let mut poller = poller(now);
        run(&mut poller, now, now + Duration::from_millis(1));
        let now = now + Duration::from_secs(5);
        poller.begin(now, Duration::ZERO);
        let asked = run(&mut poller, now, now + Duration::from_secs(60));
        assert!(asked.len() < 60, "a question a second or less in the long run, not {}", asked.len());
        assert!(asked[1].1 <= Duration::from_millis(60), "{asked:?}");
        for three in asked.chunks_exact(3) {
            let distinct: BTreeSet<_> = three.iter().map(|(address, _)| address).collect();
            assert_eq!(distinct.len(), 3, "{asked:?}");
        }
        for pair in asked.windows(2) {
            assert!(pair[1].1 - pair[0].1 <= MOST, "nobody is left alone for longer: {pair:?}");
        }
    }

    #[test]
    fn with_a_watch_open_only_the_lost_leader_is_asked_at_once() {
        let now = Instant::now();
        let mut poller = poller(now);
        run(&mut poller, now, now + Duration::from_millis(1));
        let lost_at = now + Duration::from_secs(5);
        poller.begin(lost_at, Duration::from_millis(250));
        assert_eq!(poller.step(lost_at, &masters(), Some("b")), PollStep::Ask("b".into()));
        poller.ended("b");
        let PollStep::Wait(until) = poller.step(lost_at, &masters(), Some("b")) else {
            panic!("b was asked")
        };
        assert!(until >= lost_at + Duration::from_millis(250), "the watch tells");
    }

    #[test]
    fn a_leader_that_was_lost_is_asked_every_other_time() {
        let (mut now, mut asked) = (Instant::now(), Vec::new());
        let mut poller = poller(now);
        run(&mut poller, now, now + Duration::from_millis(1));
        now += Duration::from_secs(5);
        poller.begin(now, Duration::ZERO);
        while asked.len() < 6 {
            match poller.step(now, &masters(), Some("b")) {
                PollStep::Ask(address) => {
                    poller.ended(&address);
                    asked.push(address);
                }
                PollStep::Wait(until) => now = until,
            }
        }
        assert_eq!(asked, ["b", "a", "b", "c", "b", "a"]);
    }

    #[test]
    fn a_leader_that_is_doubted_again_and_again_is_asked_ever_less_often() {
        let now = Instant::now();
        let mut poller = poller(now);
        run(&mut poller, now, now + Duration::from_millis(1));
        let mut questions = 0;
        // It answers each time, and is doubted again 300 ms later.
        for doubt in 10..110 {
            let at = now + Duration::from_millis(300) * doubt;
            poller.begin(at, Duration::ZERO);
            if let PollStep::Ask(address) = poller.step(at, &masters(), Some("a")) {
                poller.ended(&address);
                questions += 1;
            }
        }
        assert!(questions < 30, "{questions} in 30 s");
    }

    #[test]
    fn a_thousand_that_lost_every_master_ask_hundreds_of_questions_a_second_not_tens_of_thousands() {
        // Polling every 50 ms, a thousand stores asked three masters 60,000 times a second.
        let now = Instant::now();
        let (mut busiest, mut a_second) = (0, [0; 20]);
        for _ in 0..1_000 {
            let mut poller = poller(now);
            run(&mut poller, now, now + Duration::from_millis(1));
            let now = now + Duration::from_secs(5);
            poller.begin(now, Duration::ZERO);
            for (_, at) in run(&mut poller, now, now + Duration::from_secs(20)) {
                a_second[at.as_secs() as usize] += 1;
            }
        }
        for questions in &a_second[5..] {
            busiest = busiest.max(*questions);
        }
        assert!(busiest < 1_000, "{a_second:?}");
    }
}
