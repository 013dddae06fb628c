//! SIGSTOP and SIGCONT: about as long as a lease lasts, long enough for an election, and longer than connections live on
//! which nobody answers.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::until;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::evictions::{self, Full};
use crate::round::Round;
use crate::row::{FAILOVER, FORMED, FORMED_AGAIN, Row, Who};
use crate::witness::{ALL, Witness};

const SHORT: Duration = Duration::from_millis(300);
const ELECTION: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(10);

const FOR_SHORT: &str = "SIGSTOP for 300 ms";
const FOR_AN_ELECTION: &str = "SIGSTOP for 2 s";
const FOR_LONG: &str = "SIGSTOP for 10 s";

async fn pause(round: &Round<'_>, masters: &[usize], span: Duration) {
    let stopped = Instant::now();
    for master in masters {
        round.cluster.masters[*master].pause().await;
    }
    round.hit().await;
    round.struck();
    sleep_until(stopped + span).await;
    for master in masters {
        round.cluster.masters[*master].resume();
    }
}

/// As long as the voters' promise: nobody has been elected yet, and none of what it was asked meanwhile is refused for good. On a
/// machine that stood still it may have been voted out, and then it answers nothing more.
#[tokio::test]
async fn pause_leader_300ms() {
    Row::new(FOR_SHORT, "leader, which leads on", FAILOVER)
        .run_at(Who::Leader, async |round, leader| {
            let witness = Witness::of(round.cluster, leader).await;
            let over = Instant::now() + SHORT;
            round.cluster.masters[leader].pause().await;
            round.hit().await;
            round.struck();
            let elected = timeout_at(over, round.another_leads(leader)).await.ok();
            sleep_until(over).await;
            round.cluster.masters[leader].resume();
            let resumed = Instant::now();
            if let Some(led) = elected {
                round.claim(false, "nobody is elected before the promise to the leader has ended");
                witness.stays_unanswered(&ALL, led).await;
            } else {
                until("it answers again, or another one leads", async || {
                    witness.has_read_since(resumed)
                        || round.cluster.find_leader().await.is_some_and(|now| now != leader)
                })
                .await;
                round.claim(round.leads_on().await, "the leader leads on");
            }
        })
        .await;
}

/// It goes on as soon as another one leads, so that no lease can be fresher: its own was good when it was stopped, and it has looked at no
/// clock since.
pub(crate) async fn stopped_until_another_leads(round: &mut Round<'_>, leader: usize) {
    let witness = Witness::of(round.cluster, leader).await;
    round.cluster.masters[leader].pause().await;
    round.hit().await;
    let led = round.another_leads(leader).await;
    round.cluster.masters[leader].resume();
    round.struck();
    witness.stays_unanswered(&ALL, led).await;
}

rows! {
    pause_leader_until_another_leads => Row::new("SIGSTOP until another master leads", "leader", FAILOVER)
        .run_at(Who::Leader, stopped_until_another_leads);
}

/// A leader that is voted out while it stands still. When it goes on it has heard of nothing, and what it was asked
/// meanwhile lies before it: it must not answer from a lease that was good when it was stopped, and steps aside.
async fn deposed(fault: &'static str, span: Duration) {
    Row::new(fault, "leader", FAILOVER)
        .run_at(Who::Leader, async |round, leader| {
            let witness = Witness::of(round.cluster, leader).await;
            let stopped = Instant::now();
            round.cluster.masters[leader].pause().await;
            round.hit().await;
            let led = round.another_leads(leader).await;
            round.struck();
            round.all_served().await;
            sleep_until(stopped + span).await;
            round.cluster.masters[leader].resume();
            until("the old leader follows", async || {
                round.cluster.status(leader).await.is_some_and(|status| status.role == "follower")
            })
            .await;
            until("it refuses what it was asked", async || witness.has_refused_since(led)).await;
            witness.stays_unanswered(&ALL, led).await;
        })
        .await;
}

rows! {
    pause_leader_2s => deposed(FOR_AN_ELECTION, ELECTION);
    pause_leader_10s => deposed(FOR_LONG, LONG);
}

/// The old leader may have proposed evictions, and marked what it evicts, when it is stopped. Another one evicts meanwhile.
#[tokio::test]
async fn pause_leader_of_an_evicting_pool() {
    Row::new(FOR_AN_ELECTION, "leader, the pool evicts", FAILOVER)
        .evicting(Full::Pool)
        .run(async |round| {
            evictions::go_on(round.cluster).await;
            let leader = round.leader().await;
            let stopped = Instant::now();
            round.cluster.masters[leader].pause().await;
            round.hit().await;
            round.another_leads(leader).await;
            round.struck();
            round.all_served().await;
            evictions::go_on(round.cluster).await;
            sleep_until(stopped + ELECTION).await;
            round.cluster.masters[leader].resume();
        })
        .await;
}

async fn follower(fault: &'static str, span: Duration) {
    Row::new(fault, "follower", Service::unaffected())
        .run_at(Who::Follower, async |round, follower| {
            pause(round, &[follower], span).await;
        })
        .await;
}

rows! {
    pause_follower_300ms => follower(FOR_SHORT, SHORT);
    pause_follower_10s => follower(FOR_LONG, LONG);
}

async fn all(fault: &'static str, span: Duration, service: Service) {
    Row::new(fault, "all masters", service)
        .run(async |round| {
            pause(round, &[0, 1, 2], span).await;
            round.service_is_owed();
        })
        .await;
}

rows! {
    pause_all_300ms => all(FOR_SHORT, SHORT, FORMED);
    pause_all_10s => all(FOR_LONG, LONG, FORMED_AGAIN);
}
