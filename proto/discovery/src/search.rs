use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::watches::{WatchAction, Watches};
use crate::{PollStep, Poller};

/// How a kind of process searches for the leader.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Name and version of the software in a hello.
    pub software: &'static str,
    /// First and longest pause between questions to masters while no leader is known.
    pub pauses: (Duration, Duration),
    /// Time that an open watch gets to report the next leader before masters are asked. Most elections end sooner, and a
    /// watch reports the result at once.
    pub head_start: Duration,
    /// Time limit of a master's answer. A master that takes longer is stopped, cut off or gone.
    pub answer: Duration,
    /// The same for the leader.
    pub leader_answer: Duration,
    /// Interval at which the names of the list are resolved while the leader is searched for.
    pub resolve: Duration,
    /// Whether watches bring news of stores. The leader is then watched, too, besides one other master: it alone judges
    /// stores. Otherwise its heartbeats are watch enough.
    pub store_news: bool,
}

/// Whether the leader is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is known and answers.
    Found,
    /// It is known, but all move to it just now: nobody is asked meanwhile.
    Resting,
    /// It is known but doubted: masters are asked whether it still leads. The names of the list are not resolved, because
    /// most doubts are about a leader that is only busy.
    Confirming,
    /// It is not known, or has gone silent: masters are asked for it.
    Searching,
}

/// State of the owner of a search at one moment, by which the search decides.
#[derive(Clone, Debug)]
pub struct Situation {
    /// Addresses of all known masters.
    pub masters: Arc<BTreeSet<String>>,
    /// Address of the leader, if one is known.
    pub leader: Option<String>,
    /// Address of the leader that stopped answering, or last led. It is asked first, and then every other time.
    pub lost: Option<String>,
    /// Whether the leader is searched for.
    pub phase: Phase,
    /// Time over which all watchers of a master move when it begins to lead.
    pub spread: Duration,
    /// Whether masters may be watched yet.
    pub may_watch: bool,
    /// Time at which the situation may change by itself.
    pub until: Option<Instant>,
}

/// The next thing to do in a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask this master for the leader. [`Search::ended`] takes the end of the question.
    Ask {
        /// The master.
        address: String,
        /// Time limit of its answer.
        limit: Duration,
    },
    /// Watch this master after a pause. [`Search::watch_ended`] takes the end of the watch.
    Watch {
        /// The master.
        address: String,
        /// The pause.
        pause: Duration,
        /// Time limit for the opening.
        limit: Duration,
    },
    /// End the watch of this master.
    Unwatch(String),
    /// Resolve the names of the list.
    Resolve,
    /// Look again at this time, or when something has ended or changed.
    Wait(Option<Instant>),
}

/// The decisions of a search for the leader: whom to ask and to watch, and when. It does nothing itself.
#[derive(Debug)]
pub struct Search {
    options: SearchOptions,
    poller: Poller,
    watches: Watches,
    /// Whether the present search has begun.
    is_searching: bool,
    /// When the list was last resolved.
    resolved: Option<Instant>,
}

impl Search {
    /// Begins at `now`; the list was last resolved at `resolved`.
    #[must_use]
    pub fn new(options: SearchOptions, now: Instant, resolved: Option<Instant>) -> Self {
        Self {
            options,
            poller: Poller::new(options.pauses.0, options.pauses.1, now),
            watches: Watches::new(options.store_news),
            is_searching: false,
            resolved,
        }
    }

    /// Returns how this search is done.
    #[must_use]
    pub fn options(&self) -> &SearchOptions {
        &self.options
    }

    /// Decides what to do next at `now`. Call it until it returns [`Action::Wait`].
    pub fn next(&mut self, now: Instant, situation: &Situation) -> Action {
        let leader = situation.leader.as_deref();
        let limit = |address: &str| match leader {
            Some(leader) if leader == address => self.options.leader_answer,
            _ => self.options.answer,
        };
        let mut until = situation.until;
        match situation.phase {
            Phase::Found => self.is_searching = false,
            Phase::Resting => {}
            Phase::Confirming | Phase::Searching => {
                let lost = situation.lost.as_deref();
                if !self.is_searching {
                    let has_news = self.watches.has_news();
                    self.poller.begin(now, if has_news { self.options.head_start } else { Duration::ZERO });
                    self.is_searching = true;
                }
                let due = (situation.phase == Phase::Searching)
                    .then(|| self.resolved.map_or(now, |at| at + self.options.resolve));
                if due.is_some_and(|due| due <= now) {
                    self.resolved = Some(now);
                    return Action::Resolve;
                }
                match self.poller.step(now, &situation.masters, lost) {
                    PollStep::Ask(address) => {
                        let limit = limit(&address);
                        return Action::Ask { address, limit };
                    }
                    PollStep::Wait(at) => until = [Some(at), due, until].into_iter().flatten().min(),
                }
            }
        }
        if !situation.may_watch {
            return Action::Wait(until);
        }
        let spread = situation.spread.mul_f64(rand::random_range(0.0..1.0));
        match self.watches.next(now, leader, &situation.masters, spread) {
            Some(WatchAction::Open { address, pause }) => {
                let limit = limit(&address);
                Action::Watch { address, pause, limit }
            }
            Some(WatchAction::End(address)) => Action::Unwatch(address),
            None => Action::Wait([until, self.watches.look_at()].into_iter().flatten().min()),
        }
    }

    /// Takes in that the list has changed, so that its names are to be resolved.
    pub fn list_changed(&mut self) {
        self.resolved = None;
    }

    /// Takes in that the question to `address` was answered or given up.
    pub fn ended(&mut self, address: &str) {
        self.poller.ended(address);
    }

    /// Takes in that the master at `from` answered a question, or that its watch brought news. `leads`: it is the leader.
    pub fn heard(&mut self, from: &str, by_watch: bool, leads: bool) {
        self.watches.heard(from, by_watch, leads);
    }

    /// Takes in that the watch of `address` ended after it had `lasted` this long.
    pub fn watch_ended(&mut self, address: &str, lasted: Duration) {
        self.watches.ended(address, lasted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: SearchOptions = SearchOptions {
        software: "test",
        pauses: (Duration::from_millis(20), Duration::from_secs(2)),
        head_start: Duration::from_millis(500),
        answer: Duration::from_millis(300),
        leader_answer: Duration::from_millis(700),
        resolve: Duration::from_secs(1),
        store_news: true,
    };

    fn situation(phase: Phase, leader: Option<&str>) -> Situation {
        Situation {
            masters: Arc::new(["a", "b", "c"].map(String::from).into()),
            leader: leader.map(str::to_owned),
            lost: None,
            phase,
            spread: Duration::ZERO,
            may_watch: true,
            until: None,
        }
    }

    /// Returns what a search does at this time until it waits.
    fn at(search: &mut Search, now: Instant, situation: &Situation) -> Vec<Action> {
        let mut actions = Vec::new();
        loop {
            match search.next(now, situation) {
                Action::Wait(_) => return actions,
                action => actions.push(action),
            }
        }
    }

    fn asked(actions: &[Action]) -> Vec<&str> {
        fn asked(action: &Action) -> Option<&str> {
            match action {
                Action::Ask { address, .. } => Some(address),
                _ => None,
            }
        }
        actions.iter().filter_map(asked).collect()
    }

    #[test]
    fn a_search_resolves_the_list_asks_one_master_and_watches_one() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, None);
        let actions = at(&mut search, now, &situation(Phase::Searching, None));
        assert_eq!((&actions[0], asked(&actions)), (&Action::Resolve, vec!["a"]));
        assert!(matches!(actions[..], [_, _, Action::Watch { .. }]), "{actions:?}");
        search.ended("a");
        assert_eq!(asked(&at(&mut search, now, &situation(Phase::Searching, None))), ["b"]);
        search.list_changed();
        search.ended("b");
        let actions = at(&mut search, now, &situation(Phase::Searching, None));
        assert_eq!((&actions[0], asked(&actions)), (&Action::Resolve, vec!["c"]));
    }

    #[test]
    fn nobody_is_asked_while_the_leader_is_known_or_all_move_to_it() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, None);
        for phase in [Phase::Found, Phase::Resting] {
            let actions = at(&mut search, now, &situation(phase, Some("a")));
            assert!(asked(&actions).is_empty() && !actions.contains(&Action::Resolve), "{actions:?}");
        }
    }

    #[test]
    fn a_doubted_leader_is_asked_without_a_look_at_the_names() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, None);
        let doubted = Situation { lost: Some("b".to_owned()), ..situation(Phase::Confirming, Some("b")) };
        let actions = at(&mut search, now, &doubted);
        assert_eq!((asked(&actions), actions.contains(&Action::Resolve)), (vec!["b"], false));
        let lost = at(&mut search, now, &situation(Phase::Searching, None));
        assert!(lost.contains(&Action::Resolve), "{lost:?}");
    }

    #[test]
    fn the_leader_gets_more_time_to_answer_than_others() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, Some(now));
        let doubted = Situation { lost: Some("b".to_owned()), ..situation(Phase::Searching, Some("b")) };
        let actions = at(&mut search, now, &doubted);
        assert!(actions.contains(&Action::Ask { address: "b".to_owned(), limit: OPTIONS.leader_answer }));
        search.ended("b");
        let actions = at(&mut search, now, &doubted);
        assert!(actions.contains(&Action::Ask { address: "a".to_owned(), limit: OPTIONS.answer }));
    }

    #[test]
    fn a_master_that_answers_too_soon_after_another_one_is_watched_without_another_event() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, Some(now));
        let found = situation(Phase::Found, Some("a"));
        at(&mut search, now, &found);
        for answered in ["b", "c"] {
            search.heard(answered, false, false);
            at(&mut search, now, &found);
        }
        let Action::Wait(Some(wake)) = search.next(now, &found) else { panic!("c is never watched") };
        let watched = at(&mut search, wake, &found);
        assert!(
            watched.iter().any(|action| matches!(action, Action::Watch { address, pause, .. }
                if address == "c" && pause.is_zero())),
            "{watched:?}"
        );
    }

    #[test]
    fn a_watch_that_brings_news_gets_a_head_start_over_questions() {
        let now = Instant::now();
        let mut search = Search::new(OPTIONS, now, Some(now));
        for address in ["a", "b", "c"] {
            assert_eq!(asked(&at(&mut search, now, &situation(Phase::Searching, None))), [address]);
            search.ended(address);
        }
        let found = situation(Phase::Found, Some("a"));
        let watched = at(&mut search, now, &found).into_iter().find_map(|action| match action {
            Action::Watch { address, .. } if address != "a" => Some(address),
            _ => None,
        });
        // Or the one that was opened during the search.
        let watched = watched.unwrap_or_else(|| search.watches.second().unwrap().to_owned());
        search.heard(&watched, true, false);
        let lost_at = now + Duration::from_secs(5);
        let lost = Situation { lost: Some("a".to_owned()), ..situation(Phase::Searching, None) };
        search.resolved = Some(lost_at);
        assert_eq!(asked(&at(&mut search, lost_at, &lost)), ["a"], "the lost leader alone");
        search.ended("a");
        assert!(asked(&at(&mut search, lost_at + OPTIONS.head_start / 2, &lost)).is_empty());
        assert!(!asked(&at(&mut search, lost_at + OPTIONS.head_start * 2, &lost)).is_empty());
    }
}
