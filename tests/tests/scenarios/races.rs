use mc_tests::{Cluster, Mix, Workload};

/// Eight clients race for two keys, which are absent again and again: of the puts of one key at most one stores, and all
/// who read until it is removed read its value.
#[tokio::test]
async fn of_many_that_put_one_absent_key_at_once_one_stores_and_all_read_its_value() {
    let cluster = Cluster::builder().start().await;
    let mix = Mix { put: 8, get: 8, remove: 1, ..Mix::NONE };
    let workload = Workload::new(1).clients(8).keys(2).sizes(10_000..10_001).mix(mix);
    let running = workload.start(&cluster.client_builder()).await;
    running.acknowledged(100).await;
    let history = running.stop().await;
    history.assert_nothing_lost(&cluster);
}
