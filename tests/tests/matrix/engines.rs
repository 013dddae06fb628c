//! Faults under clients that call as engines do: in bursts and batches, in sessions and ranges.

use std::time::Duration;

use mc_tests::service::Service;
use mc_tests::{ClusterBuilder, Mix, Workload, until};

use crate::evictions::Full;
use crate::kills::{evicting_leader_killed, leader_killed};
use crate::row::{FAILOVER, Row, Who};

const PACE: Duration = Duration::from_millis(2);
const BURSTS: Mix = Mix { burst: 1, batch: 10, ..Mix::ALL };
const SESSIONS: Mix = Mix { session: 8, range: 8, ..Mix::ALL };
/// A removal of many keys is an operation on each.
const BATCHES_UNDER_WAY: Service = FAILOVER.unknown(500, "removes under way");
/// Clients find out by their next call that a store is gone.
const STORE_LOST: Service = Service::interrupted(Duration::from_secs(2)).failed(50, "transfers under way");

fn row(fault: &'static str, role: &'static str, service: Service, mix: Mix) -> Row {
    let workload = Workload::engines(1).mix(mix).pace(PACE);
    Row::new(fault, role, service).cluster(|cluster| cluster.stores(2).segment("1gb")).workload(workload)
}

rows! {
    kill_leader => row("kill -9", "leader, under bursts and batches", BATCHES_UNDER_WAY, BURSTS).run_at(Who::Leader, leader_killed);
    kill_leader_of_full_tenants =>
        Row::new("kill -9", "leader, two tenants fill their quotas with pages and pins", BATCHES_UNDER_WAY)
            .workload(Workload::engines(1).pace(PACE)).evicting(Full::Tenants).run(evicting_leader_killed);
    kill_leader_of_full_pool_and_tenants =>
        Row::new("kill -9", "leader, the pool is full and two tenants fill their quotas", BATCHES_UNDER_WAY)
            .workload(Workload::engines(1).pace(PACE)).evicting(Full::PoolAndTenants).run(evicting_leader_killed);
}

/// Half of the objects are gone with their store; what is read of the others, and of a store that is just dying, is right.
pub(crate) async fn store_killed(role: &'static str, cluster: impl FnOnce(ClusterBuilder) -> ClusterBuilder) {
    row("kill -9", role, STORE_LOST, SESSIONS)
        .cluster(cluster)
        .run(async |round| {
            let store = round.number % round.cluster.stores.len();
            let id = round.cluster.store_id(store);
            let since = round.running.recorder().now();
            round.cluster.stores[store].kill9();
            until("the leader suspects the store", async || round.is_a_store_suspect().await).await;
            round.struck();
            round.all_served().await;
            round.cluster.stores[store].start();
            round.gone_since(id, since);
        })
        .await;
}

rows! {
    kill_store => store_killed("one store of two, under sessions and ranges", |cluster| cluster);
}
