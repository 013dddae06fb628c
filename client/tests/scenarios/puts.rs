//! Puts that go well, and stores that fail under them.

use std::time::Duration;

use mc_client::{Code, Put, PutFrom, PutMode, PutOptions};

use crate::support::{Cluster, Fault, On, STORE_A, STORE_B, StoreHealth, until};

fn upsert() -> PutOptions {
    PutOptions::default().with_mode(PutMode::Upsert)
}

#[tokio::test]
async fn a_put_costs_two_calls_and_says_what_it_did() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    assert_eq!(client.put("k", b"one").await.unwrap(), Put::Stored);
    assert_eq!(client.put("k", b"two").await.unwrap(), Put::AlreadyExists);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"one"[..]);
    assert_eq!(client.put_with("k", b"three", &upsert()).await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"three"[..]);
    assert_eq!(client.size("k").await.unwrap(), Some(5));
    assert!(client.remove("k", false).await.unwrap());
    assert!(!client.remove("k", false).await.unwrap());
    assert!(!client.exist("k").await.unwrap());
    let world = cluster.world.lock();
    assert_eq!((world.count(On::Start), world.count(On::End)), (3, 2));
}

#[tokio::test]
async fn where_the_time_of_a_put_goes_is_counted() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let began = std::time::Instant::now();
    client.put("k", b"value").await.unwrap();
    let took = began.elapsed().as_nanos();
    let stats = client.stats();
    let parts = [stats.put_start_ns, stats.put_write_ns, stats.put_end_ns];
    assert!(parts.iter().all(|part| *part > 0), "{stats:?}");
    assert!(parts.iter().map(|part| u128::from(*part)).sum::<u128>() <= took, "{stats:?} in {took} ns");
}

#[tokio::test]
async fn a_batch_is_one_call_each_way_and_larger_ones_are_cut() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let items: Vec<(String, String)> = (0..5000).map(|i| (format!("k{i}"), format!("v{i}"))).collect();
    let results = client.batch_put(&items, &PutOptions::default()).await;
    assert!(results.iter().all(|result| matches!(result, Ok(Put::Stored))));
    let keys: Vec<&String> = items.iter().map(|(key, _)| key).collect();
    let values = client.batch_get(&keys).await;
    for ((_, put), got) in items.iter().zip(&values) {
        assert_eq!(got.as_ref().unwrap().as_deref(), Some(put.as_bytes()));
    }
    assert!(client.batch_exist(&keys).await.into_iter().all(|there| there.unwrap()));
    assert!(client.batch_remove(&keys, false).await.into_iter().all(|gone| gone.unwrap()));
    let world = cluster.world.lock();
    for on in [On::Start, On::End, On::Get, On::Exist, On::Remove] {
        let mut sizes: Vec<_> =
            world.calls.iter().filter(|(call, _)| *call == on).map(|(_, items)| *items).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [904, 4096], "{on:?}");
    }
}

#[tokio::test]
async fn long_keys_cut_a_batch_by_its_bytes() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let items: Vec<(String, &str)> = (0..600).map(|i| (format!("{i:04096}"), "v")).collect();
    let results = client.batch_put(&items, &PutOptions::default()).await;
    assert!(results.iter().all(|result| matches!(result, Ok(Put::Stored))));
    let world = cluster.world.lock();
    let starts = world.calls.iter().filter(|(on, _)| *on == On::Start);
    assert!(starts.clone().count() >= 3 && starts.map(|(_, items)| items).sum::<usize>() == 600);
    assert!(world.calls.iter().all(|(_, items)| items * 4096 < 1 << 20));
}

#[tokio::test]
async fn of_several_puts_of_one_key_in_a_batch_one_is_sent() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let items = [("a", "1"), ("b", "2"), ("a", "3")];
    let absent: Vec<_> = client.batch_put(&items, &PutOptions::default()).await;
    let absent: Vec<_> = absent.into_iter().map(Result::unwrap).collect();
    assert_eq!(absent, [Put::Stored, Put::Stored, Put::AlreadyExists]);
    assert_eq!(client.get("a").await.unwrap().unwrap(), b"1"[..]);
    let replaced = client.batch_put(&items, &upsert()).await;
    assert!(replaced.into_iter().all(|result| matches!(result, Ok(Put::Stored))));
    assert_eq!(client.get("a").await.unwrap().unwrap(), b"3"[..], "the last one wins");
}

#[tokio::test]
async fn scattered_memory_is_put_as_one_value() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let items = [PutFrom::new(b"k", &[b"one, ", b"two, ", b"three"])];
    client.batch_put_from(&items, &PutOptions::default()).await.pop().unwrap().unwrap();
    assert_eq!(client.stats().cache_bytes, 0, "nothing was copied");
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"one, two, three"[..]);
}

#[tokio::test]
async fn arguments_that_no_master_would_take_are_refused_by_name_and_alone() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let long = "k".repeat(4097);
    let results =
        client.batch_put(&[("", "v"), (&long, "v"), ("k", ""), ("k2", "v")], &PutOptions::default()).await;
    let codes: Vec<_> = results.iter().map(|result| result.as_ref().map_err(|error| error.code)).collect();
    assert_eq!(
        codes,
        [Err(Code::InvalidKey), Err(Code::InvalidKey), Err(Code::InvalidParams), Ok(&Put::Stored)]
    );
    assert_eq!(client.get("").await.unwrap_err().code, Code::InvalidKey);
    assert_eq!(client.remove(&long, false).await.unwrap_err().code, Code::InvalidKey);
}

#[tokio::test]
async fn one_replica_of_two_is_a_success_and_the_other_is_freed() {
    let cluster = Cluster::start(1);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let client = cluster.client().await;
    let two = PutOptions::default().with_replicas(2);
    assert_eq!(client.put_with("k", b"v", &two).await.unwrap(), Put::Stored);
    let replicas = cluster.world.lock().objects[&b"k"[..]].replicas.clone();
    assert_eq!(replicas.iter().map(|(store, _)| *store).collect::<Vec<_>>(), [STORE_B]);
}

#[tokio::test]
async fn a_replica_that_takes_all_of_the_time_does_not_fail_a_put_that_has_another() {
    let cluster = Cluster::start(1);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Busy);
    let client = cluster.client().await;
    let two = PutOptions::default().with_replicas(2).with_deadline(Duration::from_secs(1));
    assert_eq!(client.put_with("k", b"v", &two).await.unwrap(), Put::Stored);
    let replicas = cluster.world.lock().objects[&b"k"[..]].replicas.clone();
    assert_eq!(replicas.iter().map(|(store, _)| *store).collect::<Vec<_>>(), [STORE_B]);
}

#[tokio::test]
async fn a_put_whose_store_is_dead_goes_to_another_and_the_store_is_avoided() {
    let cluster = Cluster::start(1);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let client = cluster.client().await;
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
    let world = cluster.world.lock();
    assert_eq!(world.objects[&b"k"[..]].replicas[0].0, STORE_B);
    assert_eq!(world.avoided, [STORE_A]);
    assert_eq!(world.count(On::Start), 2);
    assert_ne!(world.put_ids[0], world.put_ids[1], "the first put is being revoked, the second is another");
}

#[tokio::test]
async fn puts_on_a_store_that_answers_are_ended_while_another_one_holds_its_own() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    // Given: a batch that the leader places on both stores.
    cluster.world.lock().spread = true;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let items = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")];
    let (options, world) = (PutOptions::default(), std::sync::Arc::clone(&cluster.world));
    let put = client.batch_put(&items, &options);
    let release = async {
        // Then: those on the store that answers are there, and the others fail over once theirs is given up.
        crate::support::until("half of the batch to be ended", || world.lock().objects.len() == 2).await;
        world.lock().stores.insert(STORE_A, StoreHealth::Stopped);
    };
    let (results, ()) = tokio::join!(put, release);
    assert!(results.iter().all(|result| matches!(result, Ok(Put::Stored))), "{results:?}");
    let world = cluster.world.lock();
    assert!(world.objects.values().all(|object| object.replicas[0].0 == STORE_B));
}

#[tokio::test]
async fn a_put_that_fails_over_does_not_wait_for_the_rest_of_its_batch() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    // Given: a batch over three stores, one of which is dead and one of which takes long.
    let third = mc_types::StoreId(0xc);
    cluster.world.lock().stores.insert(third, StoreHealth::Well);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    cluster.world.lock().stores.insert(STORE_B, StoreHealth::Held);
    cluster.world.lock().spread = true;
    let items = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")];
    let (options, world) = (PutOptions::default(), std::sync::Arc::clone(&cluster.world));
    let put = client.batch_put(&items, &options);
    let release = async {
        // Then: the put on the dead store is there before the slow store is done.
        crate::support::until("the failed put to be stored", || world.lock().objects.len() == 2).await;
        world.lock().stores.insert(STORE_B, StoreHealth::Well);
    };
    let (results, ()) = tokio::join!(put, release);
    assert!(results.iter().all(|result| matches!(result, Ok(Put::Stored))), "{results:?}");
}

#[tokio::test]
async fn a_put_whose_store_is_unmounted_meanwhile_goes_to_another_one() {
    for (options, on, fault) in [
        (PutOptions::default(), On::End, Fault::Unmount(STORE_A)),
        (upsert(), On::End, Fault::Unmount(STORE_A)),
        (PutOptions::default(), On::Start, Fault::UnmountAfter(STORE_A)),
        (upsert(), On::Start, Fault::UnmountAfter(STORE_A)),
    ] {
        let cluster = Cluster::start(1);
        let client = cluster.client().await;
        cluster.fault(on, fault);
        assert_eq!(client.put_with("k", b"v", &options).await.unwrap(), Put::Stored, "{on:?}");
        assert_eq!(cluster.world.lock().objects[&b"k"[..]].replicas[0].0, STORE_B);
        assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
        until("nothing of the first put is left", || cluster.world.lock().puts.is_empty()).await;
        let put_ids = cluster.world.lock().put_ids.clone();
        assert!(put_ids.len() == 2 && put_ids[0] != put_ids[1], "{put_ids:?}");
    }
}

#[tokio::test]
async fn a_session_is_opened_although_the_store_of_its_place_is_unmounted_meanwhile() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.fault(On::Start, Fault::UnmountAfter(STORE_A));
    let session = client.put_session("k", 1, &PutOptions::default()).await.unwrap().unwrap();
    session.write(0, b"v").await.unwrap();
    assert_eq!(session.finish().await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
}

#[tokio::test]
async fn a_put_whose_store_is_gone_goes_to_one_that_failed_other_calls_and_is_back() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    // Given: a store that this client leaves out for a while, because it failed it five times in a row.
    let set = |store, health| cluster.world.lock().stores.insert(store, health);
    set(STORE_B, StoreHealth::Dead);
    let there = PutOptions::default().with_preferred([STORE_B]);
    let failures = || cluster.world.lock().tried.iter().filter(|store| **store == STORE_B).count();
    for n in 0.. {
        if failures() == 5 {
            break;
        }
        client.put_with(format!("other{n}"), b"v", &there).await.unwrap();
    }
    set(STORE_B, StoreHealth::Well);
    // When: the only other store is gone.
    set(STORE_A, StoreHealth::Dead);
    let starts = cluster.world.lock().count(On::Start);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
    let world = cluster.world.lock();
    assert_eq!(world.objects[&b"k"[..]].replicas[0].0, STORE_B);
    assert_eq!(world.count(On::Start) - starts, 3, "at the one, at neither, at the other");
}

#[tokio::test]
async fn a_put_that_no_store_takes_fails_definitely_and_is_revoked() {
    let cluster = Cluster::start(1);
    for store in [STORE_A, STORE_B] {
        cluster.world.lock().stores.insert(store, StoreHealth::Dead);
    }
    let client = cluster.client().await;
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!(error.code, Code::TransferFail);
    assert!(!error.is_unknown());
    crate::support::until("both puts to be revoked", || cluster.world.lock().puts.is_empty()).await;
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn a_store_that_failed_before_is_used_when_it_is_the_only_one() {
    let cluster = Cluster::start(1);
    cluster.world.lock().stores.remove(&STORE_B);
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Dead);
    let client = cluster.client().await;
    let error = client.put("k", b"v").await.unwrap_err();
    assert_eq!(error.code, Code::TransferFail, "it says why, not that there is no room: {error}");
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
}
