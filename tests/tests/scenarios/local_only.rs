use std::time::{Duration, Instant};

use mc_client::{ByteSize, Client, Code, Mode, Put};
use mc_tests::checker::Outcome;
use mc_tests::{Cluster, Faults, Workload, until};

#[tokio::test]
async fn without_any_leader_a_client_answers_from_its_cache_in_bounded_time_and_comes_back_by_itself() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 3);
    let client = Client::builder()
        .masters(cluster.addresses())
        .local_cache(ByteSize(64 << 20))
        .leader_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client.put("known", b"value").await.unwrap();

    for master in &mut cluster.masters {
        master.kill9();
        fault.happened();
    }
    let started = Instant::now();
    let first = client.get("known").await.unwrap();
    println!("the first get without a leader took {:?}", started.elapsed());
    assert_eq!(first.as_deref(), Some(&b"value"[..]));
    until("the client notices", async || client.mode() == Mode::LocalOnly).await;
    let started = Instant::now();
    assert_eq!(client.get("known").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.get("unknown").await.unwrap(), None);
    assert_eq!(client.put("later", b"local").await.unwrap(), Put::LocalOnly);
    assert_eq!(client.get("later").await.unwrap().as_deref(), Some(&b"local"[..]));
    println!("four calls in local-only mode took {:?}", started.elapsed());
    let refusal = client.remove("known", false).await.unwrap_err();
    assert!(refusal.code == Code::NoLeader && !refusal.is_unknown(), "{refusal}");

    cluster.masters.iter_mut().for_each(mc_tests::Process::start);
    until("the client comes back by itself", async || client.mode() == Mode::Connected).await;
    cluster.ready().await;
    assert_eq!(client.get("known").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.put("fresh", b"new").await.unwrap(), Put::Stored);
    assert_eq!(
        cluster.client().await.get("later").await.unwrap(),
        None,
        "what was local never was in the pool"
    );
    faults.assert_happened();
}

#[tokio::test]
async fn what_clients_do_through_an_outage_is_old_news_at_worst_and_no_acknowledgement() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master is killed", 3);
    let builder =
        cluster.client_builder().local_cache(ByteSize(64 << 20)).leader_timeout(Duration::from_millis(300));
    let running = Workload::new(9).pace(Duration::from_millis(2)).start(&builder).await;
    running.acknowledged(100).await;
    for master in &mut cluster.masters {
        master.kill9();
        fault.happened();
    }
    until("clients put and read without a leader", async || {
        let count =
            |wanted: fn(&Outcome) -> bool| running.recorder().count(|operation| wanted(&operation.outcome));
        count(|outcome| *outcome == Outcome::LocalOnly) >= 20
            && count(|outcome| matches!(outcome, Outcome::LocalValue(_))) >= 20
    })
    .await;
    cluster.masters.iter_mut().for_each(mc_tests::Process::start);
    cluster.ready().await;
    running.acknowledged(50).await;
    running.stop().await.assert_nothing_lost(&cluster);
    faults.assert_happened();
}
