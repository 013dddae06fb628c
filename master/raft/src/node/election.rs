use metrics::Histogram;
use openraft::ServerState;
use tokio::time::Instant;

/// Measures the elections that this node wins, from openraft's reports of its role. Pre-votes do not change the role,
/// so they do not count.
#[derive(Debug)]
pub(crate) struct Elections {
    seconds: Histogram,
    /// Start of an election that this node might win now: the first report in which it stood for election. Reports can
    /// be missed, so until then it is the last report in which it did not stand.
    began: Option<Instant>,
    stands: bool,
}

impl Elections {
    pub(crate) fn new(seconds: Histogram) -> Self {
        Self { seconds, began: None, stands: false }
    }

    /// Processes a report of the role at `now`.
    pub(crate) fn saw(&mut self, role: ServerState, now: Instant) {
        let stands = role == ServerState::Candidate;
        if role == ServerState::Leader {
            // A node that has just started and led before has not stood for election.
            if let Some(began) = self.began.take() {
                self.seconds.record(now.duration_since(began).as_secs_f64());
            }
        } else if !(stands && self.stands) {
            self.began = Some(now);
        }
        self.stands = stands;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_process::metrics::Registry;
    use openraft::ServerState::{Candidate, Follower, Leader};

    use super::*;

    /// Count and sum of the histogram after these reports (milliseconds since the start, role).
    fn timed(reports: &[(u64, ServerState)]) -> [String; 2] {
        let registry = Registry::new();
        let mut elections = Elections::new(registry.histogram("mc_raft_election_seconds", "Elections", &[]));
        let start = Instant::now();
        for (ms, role) in reports {
            elections.saw(*role, start + Duration::from_millis(*ms));
        }
        let text = registry.render();
        ["count", "sum"].map(|what| {
            let name = format!("mc_raft_election_seconds_{what} ");
            text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
        })
    }

    #[test]
    fn an_election_lasts_from_when_the_node_stands_until_it_leads() {
        let won = [(0, Follower), (500, Candidate), (600, Candidate), (750, Leader), (900, Leader)];
        assert_eq!(timed(&won), ["1", "0.25"]);
        let lost = [(0, Follower), (500, Candidate), (600, Follower), (1000, Candidate), (1500, Leader)];
        assert_eq!(timed(&lost), ["1", "0.5"]);
    }

    #[test]
    fn one_that_was_not_seen_to_stand_counts_from_the_last_look_and_one_that_led_before_not_at_all() {
        assert_eq!(timed(&[(0, Follower), (500, Follower), (750, Leader)]), ["1", "0.25"]);
        assert_eq!(timed(&[(0, Leader), (500, Leader)]), ["0", "0"]);
    }
}
