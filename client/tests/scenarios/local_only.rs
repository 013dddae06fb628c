//! Without a leader: answers from the local cache in bounded time, and the way back.

use std::sync::Arc;
use std::time::Duration;

use mc_client::{
    ByteSize, Bytes, Code, ConnectError, Memory, Mode, Put, PutFrom, PutMode, PutOptions, Segment, Source,
};
use tokio::time::timeout;

use crate::support::{Cluster, FakeMaster, Fault, On, PATIENCE, STORE_A, STORE_B, StoreHealth, until};

const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn without_a_leader_the_cache_answers_and_says_so_until_a_leader_is_back() {
    let cluster = Cluster::start(3);
    // A call that waited for its own deadline rather than for the leader timeout would fail the test.
    let client = cluster
        .builder()
        .leader_timeout(SOON)
        .call_timeout(Duration::from_secs(120))
        .get_timeout(Duration::from_secs(120))
        .connect()
        .await
        .unwrap();
    client.put("old", b"v").await.unwrap();
    cluster.depose();

    let calls = timeout(PATIENCE, async {
        assert_eq!(client.get("old").await.unwrap().unwrap(), b"v"[..]);
        assert_eq!(client.mode(), Mode::LocalOnly);
        assert_eq!(client.get("other").await.unwrap(), None);
        assert!(client.exist("old").await.unwrap());
        assert_eq!(client.size("other").await.unwrap(), None);
        assert_eq!(client.put("new", b"w").await.unwrap(), Put::LocalOnly);
        assert_eq!(client.get("new").await.unwrap().unwrap(), b"w"[..]);
        let upsert = PutOptions::default().with_mode(PutMode::Upsert);
        for error in [
            client.put_with("old", b"x", &upsert).await.unwrap_err(),
            client.remove("old", true).await.unwrap_err(),
        ] {
            assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, false));
        }
        // Thousands of calls in the time of a few: none of them waits for anything.
        for _ in 0..5_000 {
            client.get("old").await.unwrap();
        }
    });
    calls.await.expect("bounded without a leader");

    cluster.elect(1, 2);
    assert!(client.connected(PATIENCE).await);
    assert_eq!(client.mode(), Mode::Connected);
    assert_eq!(client.get("new").await.unwrap(), None, "a local put was no acknowledgement");
    assert_eq!(client.get("old").await.unwrap().unwrap(), b"v"[..]);
    let stats = client.stats();
    assert_eq!((stats.local_only_entries, stats.puts_local), (1, 1));
}

#[tokio::test]
async fn the_cache_keeps_a_value_that_was_given_away_without_a_copy() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    let [stored, kept] = [1, 2].map(|byte| Bytes::from(vec![byte; 1_000]));
    let options = PutOptions::default();
    assert_eq!(client.put_bytes("stored", stored.clone(), &options).await.unwrap(), Put::Stored);
    cluster.depose();
    assert_eq!(client.put_bytes("kept", kept.clone(), &options).await.unwrap(), Put::LocalOnly);
    for (key, value) in [("stored", stored), ("kept", kept)] {
        let got = client.get(key).await.unwrap().unwrap();
        assert_eq!((&got, got.as_ptr()), (&value, value.as_ptr()), "{key}");
    }
}

#[tokio::test]
async fn local_puts_are_published_if_asked_for_once_a_leader_is_back_and_replace_nothing() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).publish_local(true).connect().await.unwrap();
    let other = cluster.client().await;
    other.put("taken", b"theirs").await.unwrap();
    cluster.depose();
    for key in ["new", "taken"] {
        assert_eq!(client.put(key, b"ours").await.unwrap(), Put::LocalOnly);
    }

    cluster.elect(1, 2);
    until("the local puts to be published", || client.stats().puts_published == 2).await;
    assert!(other.connected(PATIENCE).await);
    for (key, value) in [("new", &b"ours"[..]), ("taken", &b"theirs"[..])] {
        assert_eq!(other.get(key).await.unwrap().unwrap(), *value);
        assert_eq!(client.get(key).await.unwrap().unwrap(), *value);
    }
    let stats = client.stats();
    // The cache has the version of "new" that the pool has, and none of "taken".
    assert_eq!((stats.cache_hits, stats.puts_stored, stats.puts_local), (1, 0, 2));
}

#[tokio::test]
async fn a_second_put_of_a_key_without_a_leader_leaves_the_first_one_to_be_published() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).publish_local(true).connect().await.unwrap();
    let other = cluster.client().await;
    cluster.depose();
    assert_eq!(client.put("k", b"first").await.unwrap(), Put::LocalOnly);
    assert_eq!(client.put("k", b"second").await.unwrap(), Put::LocalOnly);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"first"[..]);

    cluster.elect(1, 2);
    until("the first put to be published", || client.stats().puts_published == 1).await;
    assert!(other.connected(PATIENCE).await);
    assert_eq!(other.get("k").await.unwrap().unwrap(), b"first"[..]);
    assert_eq!(client.stats().local_puts_evicted, 0);
}

#[tokio::test]
async fn a_local_put_is_tried_until_the_pool_takes_it_and_a_remove_is_not_undone_by_it() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).publish_local(true).connect().await.unwrap();
    // Only cached: it is gone by the time the leader is.
    client.put("stale", b"old").await.unwrap();
    assert_eq!(client.get("stale").await.unwrap().unwrap(), b"old"[..]);
    cluster.world.lock().objects.remove(&b"stale"[..]);
    cluster.depose();
    assert_eq!(client.put("new", b"ours").await.unwrap(), Put::LocalOnly);
    assert_eq!(
        client.put("stale", b"ours").await.unwrap(),
        Put::LocalOnly,
        "whether the pool has it is not known"
    );
    assert_eq!(client.get("stale").await.unwrap().unwrap(), b"old"[..]);
    for _ in 0..3 {
        cluster.fault(On::Start, Fault::Answer(Code::NoAvailableHandle));
    }

    cluster.elect(1, 2);
    until("the local put is published", || client.stats().puts_published == 1).await;
    assert_eq!(client.get("stale").await.unwrap(), None);

    cluster.depose();
    assert_eq!(client.put("removed", b"ours").await.unwrap(), Put::LocalOnly);
    // The first try of the publish is answered after the remove was asked for.
    cluster.fault(On::End, Fault::LoseAnswer);
    cluster.elect(2, 3);
    assert!(client.connected(PATIENCE).await);
    client.remove("removed", true).await.unwrap();
    let after = client.stats();
    client.put("later", b"ours").await.unwrap();
    assert_eq!(client.get("removed").await.unwrap(), None);
    assert_eq!(client.stats().puts_published, after.puts_published, "nothing was published after the remove");
    assert_eq!((after.local_puts_refused, after.local_puts_evicted), (0, 0));

    // A publish that is under way when the remove is asked for.
    let health = |health| cluster.world.lock().stores.insert(STORE_A, health);
    cluster.depose();
    assert_eq!(client.put("late", b"ours").await.unwrap(), Put::LocalOnly);
    let started = cluster.world.lock().puts.len();
    health(StoreHealth::Held);
    cluster.elect(1, 4);
    until("the publish starts", || cluster.world.lock().puts.len() > started).await;
    let removes = cluster.world.lock().count(On::Remove);
    let remove = tokio::spawn({
        let client = client.clone();
        async move { client.remove("late", true).await }
    });
    // It comes after the publish: until then it does not reach the leader, however long that takes.
    let _ = timeout(SOON, until("the remove", || cluster.world.lock().count(On::Remove) > removes)).await;
    health(StoreHealth::Well);
    assert!(remove.await.unwrap().unwrap(), "it removes what was published");
    assert_eq!(client.get("late").await.unwrap(), None);
}

#[tokio::test]
async fn a_publish_that_loses_the_leader_leaves_the_value_of_a_later_put() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).publish_local(true).connect().await.unwrap();
    let health = |health| cluster.world.lock().stores.insert(STORE_A, health);
    cluster.depose();
    assert_eq!(client.put("k", b"local").await.unwrap(), Put::LocalOnly);
    health(StoreHealth::Held);
    cluster.elect(1, 2);
    until("the publish to start", || !cluster.world.lock().puts.is_empty()).await;
    let later = PutOptions::default().with_mode(PutMode::Upsert).with_preferred([STORE_B]);
    assert_eq!(client.put_with("k", b"later", &later).await.unwrap(), Put::Stored);

    cluster.depose();
    assert_eq!(client.put("another", b"local").await.unwrap(), Put::LocalOnly);
    health(StoreHealth::Well);
    let on_a = |(store, _): &(_, _)| *store == STORE_A;
    until("the publish to be written", || cluster.world.lock().memory.keys().any(on_a)).await;
    cluster.elect(1, 3);
    until("the other put to be published", || client.stats().puts_published > 0).await;
    assert_eq!(client.stats().puts_published, 1, "the first was overtaken");
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"later"[..]);
}

#[tokio::test]
async fn a_client_started_before_its_masters_waits_in_local_only_mode_and_goes_on_by_itself() {
    let cluster = Cluster::start(1);
    let address = cluster.masters[0].says.address.clone();
    let Cluster { world, masters } = cluster;
    drop(masters);
    let cluster = Cluster { world, masters: Vec::new() };
    let client = cluster.builder().masters(address.clone()).leader_timeout(SOON).connect().await.unwrap();
    assert_eq!(client.mode(), Mode::LocalOnly);
    assert_eq!(client.get("k").await.unwrap(), None);
    assert!(!client.connected(Duration::from_millis(50)).await);

    let master = FakeMaster::restart(&address, 1, &cluster.world).await;
    master.names(Some(master.as_leader(1)));
    assert!(client.connected(PATIENCE).await);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
}

#[tokio::test]
async fn a_stopped_leader_costs_the_first_call_the_leader_timeout_not_its_deadline() {
    let cluster = Cluster::start(1);
    let client = cluster
        .builder()
        .leader_timeout(SOON)
        .call_timeout(Duration::from_secs(120))
        .get_timeout(Duration::from_secs(120))
        .connect()
        .await
        .unwrap();
    client.put("k", b"v").await.unwrap();
    cluster.masters[0].stop(true);
    let got = timeout(PATIENCE, client.get("k")).await.expect("bounded");
    assert_eq!(got.unwrap().unwrap(), b"v"[..]);
    assert_eq!(client.mode(), Mode::LocalOnly);
    cluster.masters[0].stop(false);
    assert!(client.connected(PATIENCE).await);
}

#[tokio::test]
async fn a_put_whose_end_may_have_been_applied_is_not_called_local() {
    let mut cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    cluster.fault(On::End, Fault::NeverAnswer);
    let put = tokio::spawn({
        let client = client.clone();
        async move { client.put("k", b"v").await }
    });
    until("the end to be applied", || cluster.world.lock().objects.contains_key(&b"k"[..])).await;
    cluster.masters.clear();
    let error = put.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, true));
}

#[tokio::test]
async fn a_remove_under_way_when_the_leader_goes_has_an_unknown_outcome() {
    let mut cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    cluster.fault(On::Remove, Fault::NeverAnswer);
    let remove = tokio::spawn({
        let client = client.clone();
        async move { client.remove("k", false).await }
    });
    until("the remove to arrive", || cluster.world.lock().count(On::Remove) == 1).await;
    cluster.masters.clear();
    assert!(remove.await.unwrap().unwrap_err().is_unknown());
}

#[tokio::test]
async fn without_a_cache_nothing_can_be_kept_locally() {
    let cluster = Cluster::start(1);
    let builder = cluster.builder().leader_timeout(SOON).local_cache(ByteSize(0));
    let client = builder.connect().await.unwrap();
    cluster.depose();
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, false));
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let client = mc_client::Client::builder();
    assert!(matches!(client.clone().masters("").connect().await, Err(ConnectError::NoMasters)));
    assert!(matches!(client.clone().masters("a:b:c").connect().await, Err(ConnectError::Address(_))));
    assert!(matches!(
        client.tenant("t".repeat(65)).connect().await,
        Err(ConnectError::Tenant { len: 65, max: 64 })
    ));
}

#[tokio::test]
async fn durations_beyond_what_clocks_count_are_as_good_as_a_day() {
    let cluster = Cluster::start(1);
    let longest = Duration::MAX;
    let builder = cluster.builder().leader_timeout(longest).connect_timeout(longest);
    let client = builder.call_timeout(longest).get_timeout(longest).connect().await.unwrap();
    let options = PutOptions::default().with_deadline(longest);
    assert_eq!(client.put_with("k", b"v", &options).await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
    assert!(client.exist("k").await.unwrap() && client.connected(longest).await);
    assert!(client.remove("k", true).await.unwrap());
}

#[tokio::test]
async fn a_get_tells_who_answered_and_a_put_of_a_cached_key_finds_it() {
    for publish in [false, true] {
        let cluster = Cluster::start(1);
        let client = cluster.builder().leader_timeout(SOON).publish_local(publish).connect().await.unwrap();
        let other = cluster.client().await;
        other.put("theirs", b"v").await.unwrap();
        client.put("ours", b"v").await.unwrap();
        let source = async |key| {
            let (value, source) = client.get_with_source(key).await.unwrap();
            (value.is_some(), source)
        };
        assert_eq!(source("theirs").await, (true, Source::Pool));
        assert_eq!(source("ours").await, (true, Source::Cache));
        assert_eq!(source("absent").await, (false, Source::Pool));
        cluster.depose();
        assert_eq!(source("ours").await, (true, Source::Local));
        assert_eq!(source("absent").await, (false, Source::Local));
        assert_eq!(client.put("ours", b"new").await.unwrap(), Put::LocalOnly);
        assert_eq!(client.get("ours").await.unwrap().unwrap(), b"v"[..]);
    }
}

#[tokio::test]
async fn misses_without_a_leader_are_errors_if_asked_for() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().leader_timeout(SOON).fail_local_misses(true).connect().await.unwrap();
    client.put("k", b"v").await.unwrap();
    assert_eq!(client.get("absent").await.unwrap(), None);
    cluster.depose();
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
    assert!(client.exist("k").await.unwrap());
    for error in [client.get("absent").await.unwrap_err(), client.exist("absent").await.unwrap_err()] {
        assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, false), "{error}");
    }
}

#[tokio::test]
async fn a_client_of_a_wrong_port_says_why_it_finds_no_leader() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let builder = mc_client::Client::builder().masters(&free).leader_timeout(SOON);
    let client = builder.clone().connect().await.unwrap();
    let error = client.last_error().unwrap();
    assert!(error.why.contains(&free) && error.why.contains("refused"), "{error}");
    let error = builder.require_leader(true).connect().await.unwrap_err();
    assert!(matches!(&error, ConnectError::NoLeader { why, .. } if why.contains("refused")), "{error}");

    let cluster = Cluster::start(1);
    let client = cluster.builder().require_leader(true).connect().await.unwrap();
    assert!(client.last_error().is_none());
}

#[tokio::test]
async fn a_leader_is_enough_where_one_is_required_although_another_master_is_silent() {
    let cluster = Cluster::start(2);
    cluster.masters[1].stop(true);
    // Shorter than the wait for the silent one. On a busy machine the leader may be as late.
    let soon = Duration::from_millis(100);
    let builder = cluster.builder().leader_timeout(soon).connect_timeout(soon).require_leader(true);
    let connected = timeout(PATIENCE, async { while builder.clone().connect().await.is_err() {} });
    assert!(connected.await.is_ok(), "the silent master is waited for");
}

#[tokio::test]
async fn a_put_without_a_leader_leaves_an_object_of_the_embedded_store_alone() {
    let cluster = Cluster::start(1);
    let memory = Arc::new(Memory::of(vec![Segment::allocate(0, 4 << 20, &mut |_| {}).unwrap()]));
    let builder = cluster.builder().leader_timeout(SOON).embedded_store(STORE_A, &memory);
    let client = builder.connect().await.unwrap();
    // Its bytes are not cached.
    let item = PutFrom::new("k", &[b"value"]);
    client.batch_put_from(&[item], &PutOptions::default()).await.remove(0).unwrap();
    cluster.depose();
    assert_eq!(client.get("nothing").await.unwrap(), None);
    assert_eq!(client.mode(), Mode::LocalOnly);
    assert_eq!(client.put("k", b"other").await.unwrap(), Put::LocalOnly);
    // The fake store has zeros for it, which is a miss by their checksum.
    assert_eq!(client.get("k").await.unwrap(), None, "nothing was kept in its place");
    assert_eq!(client.put("other", b"value").await.unwrap(), Put::LocalOnly);
}
