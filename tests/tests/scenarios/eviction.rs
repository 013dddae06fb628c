use std::time::{Duration, Instant};

use mc_client::{Admin, Client, Code, Pin, PinAction, Put, PutMode, PutOptions};
use mc_tests::{Cluster, Faults, until, value};

const MIB: usize = 1 << 20;

fn key(n: usize) -> String {
    format!("key-{n}")
}

fn big(n: usize) -> Vec<u8> {
    value(&key(n), 1, MIB)
}

fn options() -> PutOptions {
    PutOptions::default().with_deadline(Duration::from_secs(5))
}

async fn put_all(client: &Client, numbers: &[usize], value: &[u8]) {
    for batch in numbers.chunks(1024) {
        let items: Vec<_> = batch.iter().map(|n| (key(*n), value)).collect();
        for put in client.batch_put(&items, &options()).await {
            assert_eq!(put.unwrap(), Put::Stored);
        }
    }
}

/// Makes objects the youngest without moving the others.
async fn put_again(client: &Client, numbers: &[usize], value: &[u8]) {
    for batch in numbers.chunks(1024) {
        let keys: Vec<_> = batch.iter().map(|n| key(*n)).collect();
        for removed in client.batch_remove(&keys, true).await {
            removed.unwrap();
        }
    }
    put_all(client, numbers, value).await;
}

#[tokio::test]
async fn a_full_pool_whose_objects_are_all_leased_says_so_and_keeps_them() {
    // Leases that outlast the test on a busy machine.
    let lease = ["--read-lease", "60s"];
    let cluster = Cluster::builder().masters(1).segment("16mb").master_args(lease).start().await;
    let client = cluster.client().await;
    // Otherwise the last put would pass the watermark, and could be evicted before it is leased.
    let admin = Admin::connect(&cluster.addresses()).await.unwrap();
    until("nothing is evicted below the capacity", async || {
        admin.set_config("eviction-high-watermark", "1").await.is_ok()
    })
    .await;
    let mut stored = 0;
    let refusal = loop {
        match client.put_with(key(stored), &big(stored), &options()).await {
            Ok(put) => assert_eq!(put, Put::Stored),
            Err(error) => break error,
        }
        assert_eq!(client.get(key(stored)).await.unwrap().as_deref(), Some(&big(stored)[..]));
        stored += 1;
        assert!(stored <= 16, "more than fits was taken");
    };
    assert_eq!(refusal.code, Code::NoAvailableHandle, "{refusal}");
    assert!(!refusal.is_unknown());
    assert!(refusal.why.contains("leased"), "{refusal}");
    assert!(stored >= 15, "only {stored} of 16 MiB were usable");
    for n in 0..stored {
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&big(n)[..]));
    }
    assert_eq!(
        client.put_with("too large", &value("too large", 1, 17 * MIB), &options()).await.unwrap_err().code,
        Code::ObjectTooLarge
    );
    assert!(client.remove(key(0), true).await.unwrap());
    until("there is room again", async || client.put_with("again", &big(99), &options()).await.is_ok()).await;
}

#[tokio::test]
async fn a_pool_that_is_filled_three_times_over_takes_every_put_and_reads_true_bytes() {
    const ROOM: usize = 64;
    let mut cluster = Cluster::builder().masters(3).stores(2).segment("32mb").start().await;
    let client = cluster.client().await;
    let mut faults = Faults::new();
    let fault = faults.plan("the leader is killed while the pool evicts");
    let mut killed = None;
    for n in 0..3 * ROOM {
        if n == 2 * ROOM {
            let leader = cluster.leader().await;
            cluster.masters[leader].kill9();
            fault.happened();
            killed = Some(leader);
        }
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored, "put {n}");
        if n % ROOM == 0 && n > 0 && n != 2 * ROOM {
            assert!(client.exist(key(n)).await.unwrap(), "the newest object {n} was evicted");
        }
    }
    let mut present = 0;
    for n in 0..3 * ROOM {
        if let Some(bytes) = client.get(key(n)).await.unwrap() {
            assert_eq!(bytes, big(n), "object {n}");
            present += 1;
        }
    }
    assert!((ROOM * 8 / 10..=ROOM).contains(&present), "{present} of {ROOM} MiB are in use");
    let leader = cluster.leader().await;
    assert!(cluster.metric_sum(leader, "mc_evicted_objects_total").await > 0.0);
    cluster.masters[killed.expect("a leader was killed")].start();
    cluster.ready().await;
}

#[tokio::test]
async fn pinned_objects_outlast_a_pool_that_is_filled_again_and_again() {
    const ROOM: usize = 32;
    let cluster = Cluster::builder().masters(1).segment("32mb").start().await;
    let client = cluster.client().await;
    let pinned = |pin| options().with_pin(pin);
    for n in 0..4 {
        assert_eq!(client.put_with(key(n), &big(n), &pinned(PinAction::Hard)).await.unwrap(), Put::Stored);
    }
    for n in 4..8 {
        assert_eq!(client.put_with(key(n), &big(n), &pinned(PinAction::SOFT)).await.unwrap(), Put::Stored);
    }
    for n in 8..8 + 3 * ROOM {
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored, "put {n}");
    }
    for n in 0..8 {
        assert_eq!(client.get(key(n)).await.unwrap().as_deref(), Some(&big(n)[..]), "object {n}");
    }
    assert_eq!(client.get(key(8)).await.unwrap(), None, "the oldest without a pin is evicted");

    let described = client.describe(key(0)).await.unwrap().unwrap();
    assert_eq!((described.pin, described.size.0), (Some(Pin::Hard), MIB as u64));
    assert_eq!(described.replicas[0].address, cluster.store_address(0));
    let soft = client.describe(key(4)).await.unwrap().unwrap().pin;
    assert!(matches!(soft, Some(Pin::Soft { left }) if left <= Duration::from_secs(1801)), "{soft:?}");
    assert_eq!(client.describe(key(8)).await.unwrap(), None);
    let newest = client.describe(key(7 + 3 * ROOM)).await.unwrap().unwrap();
    assert_eq!(newest.pin, None);

    // Half of the pool may be hard-pinned.
    let more = pinned(PinAction::Hard);
    let mut hard = 4;
    let refusal = loop {
        let name = format!("hard-{hard}");
        match client.put_with(&name, &value(&name, 1, MIB), &more).await {
            Ok(_) => hard += 1,
            Err(error) => break error,
        }
        assert!(hard <= ROOM / 2, "more than the limit is hard-pinned");
    };
    assert_eq!((refusal.code, hard), (Code::NoAvailableHandle, ROOM / 2), "{refusal}");
    assert!(refusal.why.contains("hard-pin-limit"), "{refusal}");
    let leader = cluster.leader().await;
    until("the metric tells", async || {
        cluster.metric(leader, "mc_pool_hard_pinned_bytes").await == Some((ROOM / 2 * MIB) as f64)
    })
    .await;
    let upsert = pinned(PinAction::Disable).with_mode(PutMode::Upsert);
    assert_eq!(client.put_with(key(0), &big(0), &upsert).await.unwrap(), Put::Stored);
    assert_eq!(client.put_with("hard again", &big(1), &more).await.unwrap(), Put::Stored);
    let too_long = pinned(PinAction::Soft(Duration::from_secs(25 * 3600)));
    let refusal = client.put_with("too long", &big(1), &too_long).await.unwrap_err();
    assert!(refusal.code == Code::InvalidParams && refusal.why.contains("24 hours"), "{refusal}");
}

/// The order in which the small objects were used last is not that of their places, so evicting them one by one leaves
/// holes that no large object fits.
#[tokio::test]
async fn a_pool_full_of_small_objects_takes_large_ones_and_small_ones_again() {
    const SMALL: usize = 658_432;
    const LARGE: usize = 3_274_752;
    const POOL: usize = 64 << 20;
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let client = cluster.client().await;
    let evicted = async || cluster.metric_sum(0, "mc_evicted_bytes_total").await;
    let upsert = options().with_mode(PutMode::Upsert);
    let count = POOL / SMALL;
    for n in 0..count {
        let key = format!("small-{n}");
        assert_eq!(client.put_with(&key, &value(&key, 1, SMALL), &options()).await.unwrap(), Put::Stored);
    }
    for n in 0..count {
        let key = format!("small-{}", n * 37 % count);
        assert_eq!(client.put_with(&key, &value(&key, 2, SMALL), &upsert).await.unwrap(), Put::Stored);
    }
    for (turn, size) in [("large", LARGE), ("small again", SMALL), ("large again", LARGE)] {
        let before = evicted().await;
        for n in 0..2 * POOL / size {
            let key = format!("{turn}-{n}");
            let put = client.put_with(&key, &value(&key, 1, size), &options()).await;
            assert_eq!(put.unwrap_or_else(|error| panic!("{key}: {error}")), Put::Stored);
        }
        let gone = evicted().await - before;
        assert!(gone > 0.0, "the metric counts");
        assert!(gone <= 4.0 * POOL as f64, "{gone} bytes were evicted for twice {POOL}");
    }
}

/// Each takes the place of 2,100 of them, which are more than one log entry evicts. Then many wait for room at once.
#[tokio::test]
async fn a_pool_full_of_tiny_objects_takes_large_ones_of_many_callers() {
    const TINY: usize = 2 << 10;
    const LARGE: usize = 4_300_000;
    const CALLERS: usize = 8;
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let client = cluster.client().await;
    // A busy machine frees room late.
    client.admin().set_config("put-space-wait", "5s").await.unwrap();
    let tiny = value("tiny", 1, TINY);
    let count = (64 << 20) / TINY;
    put_all(&client, &(0..count).collect::<Vec<_>>(), &tiny).await;
    // Every second one, in another order.
    let seconds: Vec<_> = (0..count / 2).map(|n| (2 * n * 4099 + 1) % count).collect();
    put_again(&client, &seconds, &tiny).await;
    let large = value("large", 1, LARGE);
    let put = async |caller| {
        for n in 0..4 {
            let put = client.put_with(format!("large-{caller}-{n}"), &large, &options()).await;
            assert_eq!(put.unwrap_or_else(|error| panic!("{n} of {caller}: {error}")), Put::Stored);
        }
    };
    put(0).await;
    futures::future::join_all((1..=CALLERS).map(put)).await;
}

/// Neighbours have different ages: evicted by their age, most of them would go before a large object fits.
#[tokio::test]
async fn a_large_object_costs_a_pool_of_tiny_ones_little_more_than_its_size() {
    const POOL: usize = 32 << 20;
    const TINY: usize = 1 << 10;
    const LARGE: usize = 3_000_000;
    let cluster = Cluster::builder().masters(1).segment("32mb").start().await;
    let client = cluster.client().await;
    let evicted = async || cluster.metric_sum(0, "mc_evicted_bytes_total").await;
    // Below the capacity, the first ones would be evicted while the pool is filled: they lie side by side.
    client.admin().set_config("eviction-high-watermark", "1").await.unwrap();
    // A busy machine frees room late.
    client.admin().set_config("put-space-wait", "5s").await.unwrap();
    let tiny = value("tiny", 1, TINY);
    put_all(&client, &(0..POOL / TINY).collect::<Vec<_>>(), &tiny).await;
    put_again(&client, &(0..POOL / TINY).filter(|n| n % 2 == 1).collect::<Vec<_>>(), &tiny).await;
    let before = evicted().await;
    let put = client.put_with("large", &value("large", 1, LARGE), &options()).await;
    assert_eq!(put.unwrap(), Put::Stored);
    let gone = evicted().await - before;
    // The pool first evicts the oldest objects, then clears one place. Evicting the whole older half frees more than that.
    assert!((LARGE as f64..=4.0 * LARGE as f64).contains(&gone), "{gone} bytes were evicted for {LARGE}");
}

#[tokio::test]
async fn objects_that_are_used_outlast_younger_ones_that_are_not() {
    let lease = ["--read-lease", "5s"];
    let cluster = Cluster::builder().masters(1).segment("32mb").master_args(lease).start().await;
    let client = cluster.client().await;
    for n in 0..24 {
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored);
    }
    let used: Vec<_> = (0..4).map(key).collect();
    for _ in 0..3 {
        assert!(client.batch_exist(&used).await.into_iter().all(|found| found.unwrap()));
    }
    let leased = async || cluster.metric(0, "mc_pool_leased_bytes").await.unwrap_or_default();
    until("they are leased", async || leased().await > 0.0).await;
    until("no lease keeps them", async || leased().await == 0.0).await;
    for n in 24..44 {
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored);
    }
    let there = client.batch_peek(&(0..8).map(key).collect::<Vec<_>>()).await;
    let there: Vec<_> = there.into_iter().map(|found| found.unwrap().is_there()).collect();
    assert_eq!(there, [true, true, true, true, false, false, false, false]);
}

#[tokio::test]
async fn the_age_of_evicted_objects_is_the_time_since_they_were_put() {
    const OLD: Duration = Duration::from_secs(4);
    let cluster = Cluster::builder().masters(1).stores(1).segment("16mb").start().await;
    let client = cluster.client().await;
    for n in 0..14 {
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored);
    }
    let put = Instant::now();
    until("the objects are old", async || put.elapsed() > OLD).await;
    for n in 14..20 {
        assert_eq!(client.put_with(key(n), &big(n), &options()).await.unwrap(), Put::Stored);
    }
    let (mut sum, mut count) = (0.0, 0.0);
    until("some were evicted", async || {
        let names = ["mc_evicted_age_seconds_sum", "mc_evicted_age_seconds_count"];
        [sum, count] = cluster.metric_sums(0, names).await;
        count > 0.0
    })
    .await;
    let mean = sum / count;
    // Ages are known to a second.
    assert!((OLD.as_secs_f64() - 1.5..30.0).contains(&mean), "{mean} s");
}
