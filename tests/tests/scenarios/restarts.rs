use std::time::Duration;

use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload, http_get, until};

#[tokio::test]
async fn a_master_that_lost_its_disk_says_that_it_waits_to_be_taken_in() {
    let mut cluster = Cluster::builder().stores(0).start().await;
    let lost = cluster.follower().await;
    let id = cluster.status(lost).await.unwrap().cluster_id;
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    cluster.masters[lost].kill9();
    std::fs::remove_dir_all(cluster.dir().join(format!("master-{}", lost + 1))).unwrap();
    cluster.masters[lost].start();

    let says = format!("this node is new to cluster {id} and waits to be taken in by its leader");
    let address = cluster.master_http(lost);
    until(
        "it is not ready, and says why",
        async || matches!(http_get(address, "/readyz").await, Ok((503, why)) if why.contains(&says)),
    )
    .await;
    let (_, status) = http_get(address, "/status").await.unwrap();
    assert!(status.contains(&says), "{status}");
}

#[tokio::test]
async fn a_rolling_restart_fails_no_call() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master was restarted", 3);
    let running = Workload::new(7).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    let first = cluster.leader().await;
    for place in 1..=3 {
        // The leader last, as docs/operations/upgrade.md has it; it may have changed meanwhile.
        let master = if place == 3 { cluster.leader().await } else { (first + place) % 3 };
        let status = cluster.masters[master].terminate().await;
        assert_eq!(status.code(), Some(0), "a master that is asked to stop stops well");
        if place == 3 {
            let said = cluster.masters[master].output();
            assert!(said.contains("leadership was handed over"), "{said}");
        }
        cluster.masters[master].start();
        cluster.ready().await;
        fault.happened();
        running.acknowledged(50).await;
    }
    let errors = running.errors();
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
    println!("rolling restart: the slowest call took {:?}", history.slowest());
    assert_eq!(
        (history.outcomes(Outcome::Failed), history.outcomes(Outcome::Unknown)),
        (0, 0),
        "{errors:#?}"
    );
}
