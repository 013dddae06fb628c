use std::time::Duration;

use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload};

#[tokio::test]
async fn a_rolling_restart_fails_no_call() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master was restarted", 3);
    let running = Workload::new(7).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    running.acknowledged(50).await;
    for master in 0..3 {
        let status = cluster.masters[master].terminate().await;
        assert_eq!(status.code(), Some(0), "a master that is asked to stop stops well");
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
    faults.assert_happened();
}
