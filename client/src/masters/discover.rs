//! The search for the leader, whose answers [`Masters`] judges.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use mc_discovery::{
    Changed, ClusterReport, HelloError, Listed, Phase, Search, SearchOptions, SearchOwner, Situation,
    WatchUpdate, drive,
};
use mc_proto::v1::Caller;
use mc_types::HostPort;
use tokio::sync::watch;
use tokio::time::Instant;

use super::refusal::SOFTWARE;
use super::{Masters, MastersState};

const OPTIONS: SearchOptions = SearchOptions {
    software: SOFTWARE,
    pauses: (Duration::from_millis(50), Duration::from_secs(1)),
    head_start: Duration::from_millis(600),
    answer: Duration::from_millis(300),
    // Another connection does not help a busy leader.
    leader_answer: Duration::from_millis(700),
    resolve: Duration::from_secs(1),
    store_news: true,
};

/// Keeps looking for the leader.
pub(crate) async fn discover(masters: &Arc<Masters>) -> Infallible {
    let owner = Owner { masters: masters.clone(), state: masters.state.subscribe(), last_leader: None };
    let now = Instant::now();
    let search = Search::new(OPTIONS, now, Some(now));
    drive(owner, masters.channels.clone(), masters.list.last_known(), search).await
}

struct Owner {
    masters: Arc<Masters>,
    state: watch::Receiver<MastersState>,
    last_leader: Option<String>,
}

impl SearchOwner for Owner {
    fn situation(&mut self, _: Instant) -> Situation {
        let state = self.state.borrow_and_update();
        let leader = state.leader.as_ref().map(|leader| leader.address.clone());
        if leader.is_some() {
            self.last_leader.clone_from(&leader);
        }
        let phase = match leader {
            Some(_) if !state.all_tried => Phase::Searching,
            Some(_) if state.doubted => Phase::Confirming,
            Some(_) => Phase::Found,
            None => Phase::Searching,
        };
        Situation {
            masters: Arc::clone(&state.targets),
            leader,
            lost: self.last_leader.clone(),
            phase,
            spread: self.masters.spread(),
            may_watch: true,
            until: None,
        }
    }

    fn caller(&self) -> Caller {
        self.masters.caller(None)
    }

    fn list(&self) -> Vec<HostPort> {
        self.masters.list.entries().to_vec()
    }

    fn listed(&mut self, _: &[HostPort], list: Listed) {
        self.masters.listed(list);
    }

    fn answered(&mut self, from: &str, asked: Instant, answer: Result<ClusterReport, HelloError>) {
        match answer {
            Ok(report) => self.masters.greeted(from, report),
            Err(HelloError::Busy(_)) => self.masters.busy(from),
            Err(HelloError::VersionSkew(theirs)) => self.masters.skewed(from, &theirs),
            Err(HelloError::Refused(why) | HelloError::Silent(why)) => self.masters.silent(from, asked, why),
        }
    }

    fn watched(&mut self, from: &str, update: WatchUpdate) {
        self.masters.watched(from, update);
    }

    fn watch_ended(&mut self, from: &str) {
        // A leader that closes its watch, or opens none, may be gone: ask it now instead of at the next call.
        if let Some(leader) = self.masters.leader()
            && leader.address == from
        {
            self.masters.doubt(&leader, Instant::now());
        }
    }

    async fn changed(&mut self) -> Changed {
        if self.state.changed().await.is_err() {
            // The sender belongs to `masters`.
            std::future::pending::<()>().await;
        }
        Changed::Situation
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::led;
    use super::*;

    #[tokio::test]
    async fn names_are_resolved_for_a_leader_that_is_lost_not_for_one_that_is_doubted() {
        let (masters, leader) = led();
        let mut owner =
            Owner { masters: masters.clone(), state: masters.state.subscribe(), last_leader: None };
        let now = Instant::now();
        assert_eq!(owner.situation(now).phase, Phase::Found);
        masters.doubt(&leader, now);
        assert_eq!(owner.situation(now).phase, Phase::Confirming);
        masters.lost(&leader, now);
        assert_eq!(owner.situation(now).phase, Phase::Searching);
    }
}
