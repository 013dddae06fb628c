//! This build beside the release before, which tests/compat/PREVIOUS names.

use std::path::PathBuf;
use std::time::Duration;

use mc_client::Put;
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload, mcctl, until, value};

/// The `mcctl` of the release before.
fn previous() -> PathBuf {
    std::env::var_os("MC_PREVIOUS").expect("tests/compat/run builds it").into()
}

/// Starts masters and stores of the release before.
async fn start_previous(mut cluster: Cluster) -> Cluster {
    for process in cluster.masters.iter_mut().chain(&mut cluster.stores) {
        process.set_exe(Some(previous()));
        process.start();
    }
    cluster.ready().await;
    cluster
}

/// Restarts each master with another executable, the leader last.
async fn roll(cluster: &mut Cluster, exe: Option<PathBuf>) {
    let first = cluster.leader().await;
    for place in 1..=3 {
        let master = if place == 3 { cluster.leader().await } else { (first + place) % 3 };
        assert_eq!(cluster.masters[master].terminate().await.code(), Some(0));
        cluster.masters[master].set_exe(exe.clone());
        cluster.masters[master].start();
        cluster.ready().await;
    }
}

#[tokio::test]
#[ignore = "needs a build of the release before: tests/compat/run"]
async fn masters_are_upgraded_and_taken_back_under_load() {
    let mut cluster = start_previous(Cluster::builder().prepare()).await;
    let mut faults = Faults::new();
    let rolled = faults.plan_times("all masters were rolled", 3);
    let running = Workload::growing(36).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    for exe in [None, Some(previous()), None] {
        running.acknowledged(100).await;
        roll(&mut cluster, exe).await;
        rolled.happened();
    }
    let (code, said) = mcctl(&cluster, &["upgrade", "finish"]).await;
    assert!(code == 0 || said.contains("older"), "{code}: {said}");
    running.acknowledged(100).await;
    let errors = running.errors();
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    let outcomes = [Outcome::Failed, Outcome::Unknown].map(|outcome| history.outcomes(outcome));
    assert_eq!(outcomes, [0, 0], "{errors:#?}");
}

/// Masters of the release before don't know that a store may be restarted with its memory: it gives that up by itself, and keeps it once the
/// upgrade is finished.
#[tokio::test]
#[ignore = "needs a build of the release before: tests/compat/run"]
async fn a_store_that_keeps_its_memory_goes_with_masters_of_the_release_before() {
    let mut cluster = Cluster::builder().keeps_memory().prepare();
    for master in &mut cluster.masters {
        master.set_exe(Some(previous()));
        master.start();
    }
    cluster.stores[0].start();
    cluster.ready().await;
    let bytes = value("k", 1, 100_000);
    assert_eq!(cluster.client().await.put("k", &bytes).await.unwrap(), Put::Stored);
    let restart = async |cluster: &mut Cluster| {
        cluster.stores[0].kill9();
        cluster.stores[0].start();
        cluster.ready().await;
    };
    restart(&mut cluster).await;
    until("it says why", async || {
        cluster.stores[0].output().contains("takes up no memory of another process")
    })
    .await;
    assert_eq!(cluster.client().await.get("k").await.unwrap(), None);

    roll(&mut cluster, None).await;
    restart(&mut cluster).await;
    until("it says what to do", async || cluster.stores[0].output().contains("upgrade finish")).await;
    until("the upgrade is finished", async || mcctl(&cluster, &["upgrade", "finish"]).await.0 == 0).await;
    let client = cluster.client().await;
    until("it is stored", async || client.put("k", &bytes).await.is_ok_and(|put| put == Put::Stored)).await;
    restart(&mut cluster).await;
    until("it is there", async || {
        cluster.client().await.get("k").await.unwrap().as_deref() == Some(&bytes[..])
    })
    .await;
}
