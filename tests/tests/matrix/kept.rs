//! The end of the only store, whose memory outlives its process: what it held is there again, and nothing of it is lost.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{Mix, Workload, until};

use crate::round::Round;
use crate::row::{Row, Who};

/// Without the store nothing is stored or read: what it holds misses, and is back as soon as it runs again.
const BACK: Service = Service::interrupted(Duration::from_secs(2))
    .failed(100, "no other store")
    .false_misses(100, "store restarts");

fn row(fault: &'static str, role: &'static str) -> Row {
    Row::new(fault, role, BACK).cluster(|cluster| cluster.keeps_memory())
}

/// Kills the store while clients write, read parts and hold sessions, and starts it at once.
async fn killed(round: &mut Round<'_>) {
    round.cluster.stores[0].kill9();
    round.struck();
    round.cluster.stores[0].start();
}

async fn killed_with(round: &mut Round<'_>, leader: usize) {
    round.cluster.masters[leader].kill9();
    round.cluster.stores[0].kill9();
    round.hit().await;
    round.struck();
    round.cluster.stores[0].start();
    round.all_served().await;
    round.cluster.masters[leader].start();
}

rows! {
    kill_store => row("kill -9", "the only store, which keeps its memory").run(killed);
    kill_store_under_ranges => row("kill -9", "the only store, which keeps its memory, under sessions and ranges")
        .cluster(|cluster| cluster.segment("1gb"))
        .workload(Workload::engines(1).mix(Mix { session: 8, range: 8, ..Mix::ALL }).pace(Duration::from_millis(2)))
        .run(killed);
    kill_store_and_leader =>
        row("kill -9", "leader and the only store, which keeps its memory").run_at(Who::Leader, killed_with);
}

/// The next processes are killed in their start: before they have mapped the memory, or mounted it, or when they have served it for a moment.
#[tokio::test]
async fn kill_store_in_its_start() {
    row(
        "kill -9, seven times in a row",
        "the only store, which keeps its memory, and the next ones in their start",
    )
    .run(async |round| {
        for ms in [0, 5, 10, 20, 40, 80] {
            killed(round).await;
            // Where it is by then depends on the machine.
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let warm = |round: &Round<'_>| round.cluster.stores[0].output().matches("warm start").count();
        let before = warm(round);
        killed(round).await;
        until("it goes on", async || warm(round) > before).await;
    })
    .await;
}

#[tokio::test]
async fn stop_store() {
    row("SIGTERM", "the only store, which keeps its memory")
        .run(async |round| {
            let status = round.cluster.stores[0].terminate().await;
            assert_eq!(status.code(), Some(0), "a store that is asked to stop stops well");
            round.struck();
            round.cluster.stores[0].start();
        })
        .await;
}
