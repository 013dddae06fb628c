//! Finding the leader, losing it, and not mistaking somebody else for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_client::{Admin, Client, Code, ConnectError, Mode, Put};
use mc_types::ClusterId;
use tokio::time::timeout;

use crate::support::{Cluster, FakeMaster, Fault, On, PATIENCE, REFUSES_OURS, until};

/// Much longer than anything here takes, much shorter than the deadlines that must not be what ends it.
const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn any_master_of_the_list_is_enough_to_find_the_leader_and_the_others() {
    let cluster = Cluster::start(3);
    cluster.elect(2, 1);
    let builder = cluster.builder().masters(cluster.masters[0].says.address.clone());
    let client = builder.connect().await.unwrap();
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
    assert_eq!(client.mode(), Mode::Connected);
}

#[tokio::test]
async fn a_redirect_is_followed_to_the_master_that_it_names() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    // The others go on calling the old one leader: only its own answer tells where to go.
    let new = cluster.masters[1].as_leader(2);
    cluster.masters[1].names(Some(new.clone()));
    cluster.masters[0].names(Some(new));
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
}

#[tokio::test]
async fn while_no_master_knows_the_leader_calls_wait_for_the_election() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(LONG).call_timeout(LONG).connect().await.unwrap();
    cluster.depose();
    let asked = cluster.masters[1].says.hellos.load(Ordering::SeqCst);
    let put = tokio::spawn({
        let client = client.clone();
        async move { client.put("k", b"v").await }
    });
    until("the client to look for a leader", || {
        cluster.masters[1].says.hellos.load(Ordering::SeqCst) > asked + 2
    })
    .await;
    assert!(!put.is_finished());
    cluster.elect(1, 2);
    assert_eq!(put.await.unwrap().unwrap(), Put::Stored);
}

#[tokio::test]
async fn a_killed_leader_is_replaced_by_the_next_one_and_old_keys_are_there() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("old", b"v").await.unwrap();
    drop(cluster.masters.remove(0));
    let put = tokio::spawn({
        let client = client.clone();
        async move { client.put("new", b"w").await }
    });
    cluster.elect(0, 2);
    assert_eq!(put.await.unwrap().unwrap(), Put::Stored);
    assert_eq!(client.get("old").await.unwrap().unwrap(), b"v"[..]);
}

#[tokio::test]
async fn a_stopped_leader_does_not_hold_a_call_once_a_watch_names_a_newer_term() {
    let cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(LONG).call_timeout(LONG).connect().await.unwrap();
    until("a second watch", || {
        cluster.masters[1..].iter().any(|master| master.says.watches.load(Ordering::SeqCst) > 0)
    })
    .await;
    cluster.fault(On::Get, Fault::Swallow);
    let get = tokio::spawn({
        let client = client.clone();
        async move { client.get("k").await }
    });
    // Nothing but the newer term ends this one before its deadline, since it must not be repeated.
    cluster.fault(On::Remove, Fault::Swallow);
    let remove = tokio::spawn({
        let client = client.clone();
        async move { client.remove("k", false).await }
    });
    until("the calls to hang", || {
        let world = cluster.world.lock();
        world.count(On::Get) == 1 && world.count(On::Remove) == 1
    })
    .await;
    cluster.elect(1, 2);
    let answer = timeout(PATIENCE, get).await.expect("the call is made again").unwrap();
    assert_eq!(answer.unwrap(), None);
    let answer = timeout(PATIENCE, remove).await.expect("there is no use in waiting").unwrap();
    assert!(answer.unwrap_err().is_unknown());
    assert_eq!(cluster.world.lock().count(On::Remove), 1);
}

#[tokio::test]
async fn a_stopped_leader_is_given_up_even_if_the_others_still_name_it() {
    let cluster = Cluster::start(3);
    let client =
        cluster.builder().leader_timeout(LONG).call_timeout(LONG).get_timeout(LONG).connect().await.unwrap();
    cluster.masters[0].stop(true);
    let found = client.stats().leader_changes;
    let get = tokio::spawn({
        let client = client.clone();
        async move { client.get("k").await }
    });
    // The followers go on naming it for that term; their word is not taken.
    let given_up = timeout(PATIENCE, async { while client.connected(Duration::ZERO).await {} });
    given_up.await.expect("the leader is given up");
    let hellos = || cluster.masters[1].says.hellos.load(Ordering::SeqCst);
    let before = hellos();
    until("the followers to repeat themselves", || hellos() > before + 2).await;
    assert!(!get.is_finished() && !client.connected(Duration::ZERO).await);
    cluster.masters[0].stop(false);
    assert_eq!(timeout(PATIENCE, get).await.unwrap().unwrap().unwrap(), None, "it comes back by itself");
    assert!(client.stats().leader_changes > found, "the leader was given up and found again");
}

#[tokio::test]
async fn version_skew_is_an_error_that_names_both_sides() {
    let cluster = Cluster::start(2);
    for master in &cluster.masters {
        master.says.version.store(7, Ordering::SeqCst);
    }
    let error = cluster.builder().connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::VersionSkew { .. }));
    let text = error.to_string();
    let ours = format!("{} to {}", mc_proto::VERSIONS.start(), mc_proto::VERSIONS.end());
    for part in ["7 to 7", "mc-master of the future", &ours, "mc-client"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_master_that_refuses_our_version_is_not_called_silent() {
    let cluster = Cluster::start(1);
    cluster.masters[0].says.version.store(REFUSES_OURS, Ordering::SeqCst);
    let error = cluster.builder().connect().await.unwrap_err();
    assert!(matches!(&error, ConnectError::VersionSkew { theirs, .. } if theirs == "8..=8"), "{error}");
}

#[tokio::test]
async fn a_list_of_two_clusters_is_refused_and_both_are_named() {
    let cluster = Cluster::start(2);
    let other = ClusterId(77);
    *cluster.masters[1].says.cluster.lock() = Some(other);
    let error = cluster.builder().connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::WrongCluster { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&other.to_string()) && text.contains(&cluster.world.lock().cluster.to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_foreign_master_is_not_followed_until_a_majority_of_the_list_has_moved() {
    let mut cluster = Cluster::start(3);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    client.put("k", b"v").await.unwrap();
    let new = ClusterId(99);

    // The leader's address now belongs to another cluster; the others are gone.
    let rest: Vec<_> = cluster.masters.drain(1..).collect();
    let addresses: Vec<_> = rest.iter().map(|master| master.says.address.clone()).collect();
    drop(rest);
    cluster.world.lock().cluster = new;
    cluster.elect(0, 1);
    until_local_only(&client).await;
    assert!(client.exist("k").await.unwrap());
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..], "what is kept here is still answered");
    let error = client.remove("k", true).await.unwrap_err();
    assert_eq!((error.code, error.is_unknown()), (Code::NoLeader, false), "{error}");

    // A second one makes it a majority, and nothing of the old cluster is remembered.
    cluster.masters.push(FakeMaster::restart(&addresses[0], 2, &cluster.world).await);
    cluster.elect(0, 1);
    cluster.world.lock().objects.clear();
    assert!(client.connected(PATIENCE).await);
    assert_eq!(client.get("k").await.unwrap(), None);
    assert_eq!(client.stats().cache_bytes, 0);
}

/// Waits for local-only mode, which calls begin.
async fn until_local_only(client: &Client) {
    let begun = timeout(PATIENCE, async {
        while client.mode() != Mode::LocalOnly {
            client.exist("k").await.unwrap();
        }
    });
    begun.await.expect("the leader timeout passes");
}

#[tokio::test]
async fn one_skewed_master_does_not_turn_local_answers_into_errors() {
    let mut cluster = Cluster::start(3);
    cluster.masters[2].says.version.store(7, Ordering::SeqCst);
    let client = cluster.builder().leader_timeout(SOON).connect().await.unwrap();
    client.put("k", b"v").await.unwrap();
    // Of those that answer, all are skewed now.
    drop(cluster.masters.drain(..2).collect::<Vec<_>>());
    until_local_only(&client).await;
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"v"[..]);
    assert!(client.exist("k").await.unwrap() && !client.exist("other").await.unwrap());
}

#[tokio::test]
async fn where_only_foreign_masters_ever_answered_calls_fail_with_that_error() {
    let Cluster { world, masters } = Cluster::start(1);
    let address = masters[0].says.address.clone();
    drop(masters);
    let cluster = Cluster { world, masters: Vec::new() };
    let ours = ClusterId(5);
    // The other one never answers; of a list of one, the one is a majority.
    let list = format!("{address},127.0.0.1:1");
    let builder = cluster.builder().masters(list).cluster(ours).leader_timeout(SOON);
    let client = builder.connect().await.unwrap();
    assert_eq!(client.mode(), Mode::LocalOnly, "nobody answers yet");

    let foreign = FakeMaster::restart(&address, 1, &cluster.world).await;
    let error = timeout(PATIENCE, async {
        loop {
            if let Err(error) = client.exist("k").await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    });
    let error = error.await.expect("the master is heard");
    assert_eq!((error.code, error.is_unknown()), (Code::WrongCluster, false), "{error}");
    let theirs = cluster.world.lock().cluster;
    let text = error.to_string();
    assert!(text.contains(&ours.to_string()) && text.contains(&theirs.to_string()), "{text}");
    // It is still so when that master is gone again: nobody else has ever answered.
    drop(foreign);
    assert_eq!(client.exist("k").await.unwrap_err().code, Code::WrongCluster);
}

#[tokio::test]
async fn a_restarted_master_under_the_leaders_address_is_not_taken_for_it() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let address = cluster.masters[0].says.address.clone();
    drop(cluster.masters.remove(0));
    cluster.masters.push(FakeMaster::restart(&address, 9, &cluster.world).await);
    // The newcomer knows nobody; the others elect.
    cluster.elect(0, 2);
    assert_eq!(client.put("k", b"v").await.unwrap(), Put::Stored);
}

#[tokio::test]
async fn background_tasks_end_with_the_last_clone() {
    let cluster = Cluster::start(1);
    cluster.depose();
    let client = cluster.builder().leader_timeout(Duration::from_millis(50)).connect().await.unwrap();
    let hellos = || cluster.masters[0].says.hellos.load(Ordering::SeqCst);
    let clone = client.clone();
    drop(client);
    let before = hellos();
    until("the clone to keep looking", || hellos() > before).await;
    drop(clone);
    let mut last = hellos();
    until("silence", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = hellos();
        let silent = now == last;
        last = now;
        silent
    })
    .await;
}

#[tokio::test]
async fn a_closed_client_fails_its_calls_at_once() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.clone().close();
    let error = client.get("k").await.unwrap_err();
    assert_eq!(error.code, Code::UnavailableInCurrentStatus);
}

#[tokio::test]
async fn status_asks_every_master_and_lookup_shows_where_an_object_lies() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("k", b"value").await.unwrap();
    let admin = client.admin();
    let found = admin.lookup("k").await.unwrap().unwrap();
    assert_eq!((found.size.0, found.replicas.len()), (5, 1));
    assert_eq!(admin.lookup("other").await.unwrap(), None);
    assert_eq!(admin.list_members().await.unwrap().leader.unwrap().term, 1);

    drop(cluster.masters.remove(2));
    let admin = Admin::connect(&cluster.list()).await.unwrap();
    let status = admin.status().await;
    assert_eq!(status.masters.len(), 3, "the dead one is known from the others");
    assert_eq!(status.masters.iter().filter(|master| master.status.is_ok()).count(), 2);
    let authority = status.masters[status.authority.unwrap()].status.as_ref().unwrap();
    assert_eq!((authority.keys, status.leader.unwrap().term), (1, 1));
}
