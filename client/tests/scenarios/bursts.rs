//! Many single calls at once: they share messages, and nothing else.

use std::task::{Context, Waker};
use std::time::Duration;

use mc_client::{Client, Code, Mode, Put, PutMode, PutOptions};
use tokio::task::JoinSet;

use crate::support::{Cluster, Fault, On, STORE_A, StoreHealth, until};

const MANY: usize = 3_000;

fn key(n: usize) -> String {
    format!("key-{n:05}")
}

async fn put(client: &Client, n: usize) -> Result<Put, mc_client::Error> {
    client.put(key(n), b"v").await
}

/// Puts `count` objects by single calls at once, then gets them so, and returns the results that are wrong. The master answers
/// the calls of a kind once all of them have been made: however busy the machine is, all but the first of them wait to be sent.
async fn burst(cluster: &Cluster, client: &Client, count: usize) -> Vec<String> {
    let hold = |on| cluster.world.lock().held = on;
    hold(Some(On::Start));
    let puts = made((0..count).map(|n| {
        let client = client.clone();
        async move { client.put(key(n), key(n).as_bytes()).await }
    }));
    hold(Some(On::End));
    until("every put has written its bytes", || cluster.world.lock().writes == count).await;
    hold(Some(On::Get));
    let mut wrong: Vec<String> = Vec::new();
    wrong.extend(
        puts.join_all()
            .await
            .into_iter()
            .filter(|put| !matches!(put, Ok(Put::Stored)))
            .map(|put| format!("{put:?}")),
    );
    let gets = made((0..count).map(|n| {
        let client = client.clone();
        async move { (n, client.get(key(n)).await) }
    }));
    hold(None);
    for (n, got) in gets.join_all().await {
        match got {
            Ok(Some(bytes)) if bytes[..] == *key(n).as_bytes() => {}
            other => wrong.push(format!("{other:?}")),
        }
    }
    wrong
}

/// Makes calls that can't be answered yet, and leaves waiting for them to tasks.
fn made<T: Send + 'static>(
    calls: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> JoinSet<T> {
    let mut context = Context::from_waker(Waker::noop());
    calls
        .map(|call| {
            let mut call = Box::pin(call);
            assert!(call.as_mut().poll(&mut context).is_pending());
            call
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_single_calls_is_a_few_messages_and_each_call_gets_its_own_result() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().local_cache("0".parse().unwrap()).connect().await.unwrap();
    assert_eq!(burst(&cluster, &client, MANY).await, [""; 0]);
    let world = cluster.world.lock();
    for on in [On::Start, On::End, On::Get] {
        let items: Vec<usize> =
            world.calls.iter().filter(|(call, _)| *call == on).map(|(_, items)| *items).collect();
        assert_eq!(items.iter().sum::<usize>(), MANY, "{on:?}");
        assert!(items.len() < MANY / 50, "{on:?}: {} messages", items.len());
    }
    drop(world);
    assert_eq!((client.stats().leader_changes, client.stats().local_only_entries), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_do_not_tell_calls_apart_get_one_call_in_a_message() {
    let cluster = Cluster::start(1);
    cluster.world.lock().joins_unknown = true;
    let client = cluster.client().await;
    assert_eq!(burst(&cluster, &client, 300).await, [""; 0]);
    let world = cluster.world.lock();
    let starts = world.calls.iter().filter(|(call, _)| *call == On::Start);
    assert!(starts.clone().all(|(_, items)| *items == 1));
    assert_eq!(starts.count(), 300);
}

#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_sent_takes_no_other_along_and_is_never_sent() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    // From then on messages are joined.
    client.put("first", b"v").await.unwrap();
    cluster.masters[0].stop(true);
    let mut calls: Vec<_> = (0..100).map(|n| Some(Box::pin(put(&client, n)))).collect();
    for call in calls.iter_mut().flatten() {
        assert!(futures::poll!(call).is_pending());
    }
    // The first of them are on their way, one in each message.
    calls.iter_mut().skip(50).step_by(2).for_each(|call| *call = None);
    cluster.masters[0].stop(false);
    for put in futures::future::join_all(calls.into_iter().flatten()).await {
        assert!(matches!(put, Ok(Put::Stored)));
    }
    let world = cluster.world.lock();
    assert_eq!((world.objects.len(), world.put_ids.len()), (76, 76), "the other 25 were not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_keeps_its_own_deadline_and_options() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("first", b"old").await.unwrap();
    cluster.masters[0].stop(true);
    let waiting: Vec<_> = (0..40)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.put(key(n), b"v").await })
        })
        .collect();
    let soon = PutOptions::default().with_deadline(Duration::from_millis(100));
    let error = client.put_with("soon", b"v", &soon).await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::RpcTimeout, false), "{error}");
    let upsert = PutOptions::default().with_mode(PutMode::Upsert).with_replicas(2);
    let (put, again, ()) =
        tokio::join!(client.put_with("first", b"new", &upsert), client.put("first", b"newer"), async {
            cluster.masters[0].stop(false);
        });
    assert!(matches!((put, again), (Ok(Put::Stored), Ok(Put::AlreadyExists))));
    for call in waiting {
        assert!(matches!(call.await.unwrap(), Ok(Put::Stored)));
    }
    let world = cluster.world.lock();
    assert_eq!(world.objects[&b"first"[..]].replicas.len(), 2);
    assert!(!world.objects.contains_key(&b"soon"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_stops_polling_its_calls_does_not_keep_others_from_being_sent() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("k", b"v").await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        let mut call = Box::pin(client.get("k"));
        // On a busy machine an answer may come within the first poll.
        if futures::poll!(&mut call).is_pending() {
            idle.push(call);
        }
    }
    // Nobody polls the others meanwhile.
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"v"[..]));
    for call in idle {
        assert_eq!(call.await.unwrap().as_deref(), Some(&b"v"[..]));
    }
}

#[tokio::test]
async fn a_late_answer_is_no_reason_to_doubt_a_leader_that_answers_other_calls() {
    let cluster = Cluster::start(1);
    let client = cluster.builder().local_cache("0".parse().unwrap()).connect().await.unwrap();
    client.put("k", b"v").await.unwrap();
    let hellos = || cluster.masters[0].says.hellos.load(std::sync::atomic::Ordering::SeqCst);
    let before = hellos();
    cluster.fault(On::Exist, Fault::Swallow);
    let late = client.exist("k");
    tokio::pin!(late);
    let found = loop {
        tokio::select! {
            found = &mut late => break found,
            got = client.get("k") => assert_eq!(got.unwrap().as_deref(), Some(&b"v"[..])),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(found.unwrap(), "it was repeated");
    assert_eq!((hellos(), client.mode()), (before, Mode::Connected));
    assert_eq!((client.stats().leader_changes, client.stats().retries), (1, 1));
}

#[tokio::test]
async fn a_put_that_is_dropped_is_revoked_once_it_was_started() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let gone = async || {
        until("the put is revoked", || {
            let world = cluster.world.lock();
            world.puts.is_empty() && world.count(On::Revoke) > 0
        })
        .await;
        cluster.world.lock().calls.clear();
    };
    // While its bytes are written.
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let mut put = Box::pin(client.put("k", b"v"));
    tokio::select! {
        _ = &mut put => panic!("the store holds it"),
        () = until("it is started", || !cluster.world.lock().puts.is_empty()) => {}
    }
    drop(put);
    gone().await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    // Before the start was answered: the answer comes when nobody waits for it.
    cluster.fault(On::Start, Fault::NeverAnswer);
    let mut put = Box::pin(client.put("k", b"v"));
    tokio::select! {
        _ = &mut put => panic!("it is not answered"),
        () = until("it is started", || !cluster.world.lock().puts.is_empty()) => {}
    }
    drop(put);
    gone().await;
    assert!(cluster.world.lock().objects.is_empty());
}

#[tokio::test]
async fn many_dropped_puts_are_revoked_in_few_messages_also_as_the_client_ends() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let mut puts = JoinSet::new();
    for n in 0..200 {
        let client = client.clone();
        puts.spawn(async move { client.put(key(n), b"v").await });
    }
    until("all are started", || cluster.world.lock().puts.len() == 200).await;
    drop(client);
    puts.shutdown().await;
    until("they are revoked", || cluster.world.lock().puts.is_empty()).await;
    assert!(cluster.world.lock().count(On::Revoke) < 100);
}

#[tokio::test]
async fn a_put_that_a_close_overtakes_is_revoked_although_handles_of_the_client_live_on() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Held);
    let mut put = Box::pin(client.put("k", b"v"));
    tokio::select! {
        _ = &mut put => panic!("the store holds it"),
        () = until("it is started", || !cluster.world.lock().puts.is_empty()) => {}
    }
    // Another put is abandoned, and its revocation shows that the client has revoked what was left at its close.
    let mut other = Box::pin(client.put("other", b"v"));
    tokio::select! {
        _ = &mut other => panic!("the store holds it"),
        () = until("it is started", || cluster.world.lock().puts.len() == 2) => {}
    }
    client.close();
    drop(other);
    until("the other one is revoked", || cluster.world.lock().puts.len() == 1).await;
    cluster.world.lock().stores.insert(STORE_A, StoreHealth::Well);
    assert!(put.await.is_err(), "the client is closed");
    until("it is revoked", || cluster.world.lock().puts.is_empty()).await;
    assert!(cluster.world.lock().objects.is_empty());
}

#[tokio::test]
async fn a_session_that_outlives_the_close_of_its_client_is_revoked_with_the_last_handle() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let session = client.put_session("k", 100, &PutOptions::default()).await.unwrap();
    client.close();
    drop(client);
    assert_eq!(cluster.world.lock().puts.len(), 1);
    drop(session);
    until("it is revoked", || cluster.world.lock().puts.is_empty()).await;
}
