//! Faults in a pool at which TLS is required.

use mc_tests::{ClusterBuilder, Link};

use crate::engines;
use crate::kills::leader_killed;
use crate::partitions::leader_alone;
use crate::pauses::stopped_until_another_leads;
use crate::row::{FAILOVER, Row, Who};

fn row(fault: &'static str, role: &'static str) -> Row {
    Row::new(fault, role, FAILOVER).cluster(ClusterBuilder::tls)
}

rows! {
    kill_leader => row("kill -9", "leader, TLS required").run_at(Who::Leader, leader_killed);
    stop_leader_until_another_leads =>
        row("SIGSTOP until another master leads", "leader, TLS required").run_at(Who::Leader, stopped_until_another_leads);
    kill_store => engines::store_killed("one store of two, under sessions and ranges, TLS required", ClusterBuilder::tls);
}

#[tokio::test]
async fn partition_leader_alone() {
    row("partition", "leader alone, packets vanish, TLS required")
        .run(async |round| {
            leader_alone(round, |links, leader| {
                links.between(&[leader], &links.other_masters(leader), Link::Silent);
            })
            .await;
        })
        .await;
}
