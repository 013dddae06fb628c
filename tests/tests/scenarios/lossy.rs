use mc_tests::checker::Losses;
use mc_tests::{Cluster, Faults, LossyMaster, Workload};

#[tokio::test]
async fn every_reply_is_lost_once_and_the_repetition_gets_the_same_answer() {
    let cluster = Cluster::builder().masters(1).start().await;
    let mut faults = Faults::new();
    let lost = faults.plan_times("a reply was lost and its call came again", 200);
    let proxy = LossyMaster::start(cluster.master_address(0)).await;
    let through_proxy = cluster.client_builder().masters(proxy.address());
    let running = Workload::new(6).clients(3).keys(20).start(&through_proxy).await;
    running.acknowledged(100).await;
    let history = running.stop().await;
    (0..proxy.repeated()).for_each(|_| lost.happened());
    println!("{history}; {} replies lost, {} calls repeated", proxy.lost(), proxy.repeated());
    assert_eq!(proxy.changed_answers(), Vec::<String>::new(), "the same put id got another answer");
    history.check(Losses::None).assert_ok();
    faults.assert_happened();
}
