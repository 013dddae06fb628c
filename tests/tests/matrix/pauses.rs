//! SIGSTOP and SIGCONT.

use std::time::{Duration, Instant};

use crate::row::{Round, Row};

/// How long, round by round; the last is for more rounds than a quick run has.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(300), Duration::from_secs(2), Duration::from_secs(1), Duration::from_secs(10)];

async fn pause(round: &Round<'_>, masters: &[usize]) {
    let pause = PAUSES[round.number % PAUSES.len()];
    let stopped = Instant::now();
    for master in masters {
        round.cluster.masters[*master].pause().await;
    }
    round.struck();
    tokio::time::sleep_until((stopped + pause).into()).await;
    for master in masters {
        round.cluster.masters[*master].resume();
    }
}

#[tokio::test]
async fn pause_leader() {
    Row::new("SIGSTOP, 0.3 to 10 s", "leader")
        .run(async |round| {
            let leader = round.cluster.leader().await;
            pause(round, &[leader]).await;
        })
        .await;
}

#[tokio::test]
async fn pause_follower() {
    Row::new("SIGSTOP, 0.3 to 10 s", "follower")
        .run(async |round| {
            let follower = round.cluster.follower().await;
            pause(round, &[follower]).await;
        })
        .await;
}

#[tokio::test]
async fn pause_all() {
    Row::new("SIGSTOP, 0.3 to 10 s", "all masters")
        .run(async |round| {
            pause(round, &[0, 1, 2]).await;
            round.service_is_owed();
        })
        .await;
}
