//! How masters come to a cluster, and what keeps them from coming to a second one.

use mc_client::{Client, Put};
use mc_tests::{Cluster, ClusterBuilder, Faults, Process, until, value};

const KEYS: usize = 20;
/// Answer of a new node to a Raft call that was meant for the one whose address it has.
const NOT_MEANT: &str = "the call is for node";

/// Masters whose logs show why they got no vote.
fn with_votes_in_the_log() -> ClusterBuilder {
    Cluster::builder().master_args(["--log", "info,openraft=warn"])
}

fn key(n: usize) -> String {
    format!("key-{n}")
}

async fn put_all(client: &Client) {
    for n in 0..KEYS {
        assert_eq!(client.put(key(n), &value(&key(n), 1, 4_096)).await.unwrap(), Put::Stored);
    }
}

async fn assert_all_there(client: &Client) {
    for n in 0..KEYS {
        let got = client.get(key(n)).await.unwrap();
        assert!(got.as_deref() == Some(&value(&key(n), 1, 4_096)[..]), "{} is lost", key(n));
    }
}

/// Waits until `master` has asked for votes again and again from now on, and was told each time that the node it means is
/// not there any more.
async fn asks_in_vain(cluster: &Cluster, master: usize) {
    let refused = || cluster.masters[master].output().matches(NOT_MEANT).count();
    let before = refused();
    until("its requests for a vote are refused, five times", async || refused() >= before + 5).await;
}

#[tokio::test]
async fn masters_whose_lists_differ_wait_and_say_so_until_the_list_is_mended() {
    let mut cluster = Cluster::builder().stores(0).prepare();
    let [a, b, c] = [0, 1, 2].map(|n| cluster.master_raft(n).to_owned());
    cluster.masters[2].set_arg("--peers", &format!("{a},{b},{c},127.0.0.1:9"));
    cluster.masters.iter_mut().for_each(Process::start);
    for master in [0, 1] {
        cluster
            .master_waits(master, "for the one with another list", |why| {
                why.contains(&format!("{c} lists other masters")) && why.contains("127.0.0.1:9")
            })
            .await;
    }
    cluster
        .master_waits(2, "for the one that nobody runs, and for the others", |why| {
            why.contains("127.0.0.1:9 does not answer") && why.contains(&format!("{a} lists other masters"))
        })
        .await;
    assert_eq!(cluster.find_leader().await, None);

    cluster.masters[2].kill9();
    cluster.masters[2].set_arg("--peers", &format!("{c},{b},{a}"));
    cluster.masters[2].start();
    cluster.ready().await;
}

#[tokio::test]
async fn a_wiped_master_gives_no_vote_while_the_leader_is_gone() {
    let mut cluster = with_votes_in_the_log().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a follower comes back without its disk while the leader is dead");
    put_all(&cluster.client().await).await;
    let leader = cluster.leader().await;
    let (wiped, healthy) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.masters[wiped].kill9();
    cluster.masters[leader].kill9();
    cluster.wipe_master(wiped);
    cluster.masters[wiped].start();
    let formed_by = format!("is already formed by {}", cluster.master_raft(healthy));
    cluster.master_waits(wiped, "to be taken in", |why| why.contains(&formed_by)).await;
    fault.happened();

    asks_in_vain(&cluster, healthy).await;
    assert_eq!(cluster.find_leader().await, None, "one voter of three is no majority");

    cluster.masters[leader].start();
    let now = cluster.leader().await;
    assert_ne!(now, wiped);
    let client = cluster.client().await;
    assert_all_there(&client).await;
    assert_eq!(client.put("another", b"value").await.unwrap(), Put::Stored);
    let new = cluster.status(wiped).await.expect("it answers").node_id;
    let members = cluster.status(now).await.expect("it answers").masters;
    assert!(members.len() == 3 && members.iter().all(|member| member.node_id != new), "it has no say");
}

#[tokio::test]
async fn two_wiped_of_three_wait_and_form_no_empty_cluster() {
    let mut cluster = with_votes_in_the_log().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan_times("a master comes back without its disk", 2);
    put_all(&cluster.client().await).await;
    let formed = cluster.status(2).await.expect("it answers").cluster_id;
    cluster.masters.iter_mut().for_each(Process::kill9);
    for wiped in [0, 1] {
        cluster.wipe_master(wiped);
        cluster.masters[wiped].start();
    }
    let absent = format!("{} does not answer", cluster.master_raft(2));
    for wiped in [0, 1] {
        cluster.master_waits(wiped, "for the third", |why| why.contains(&absent)).await;
        fault.happened();
    }

    cluster.masters[2].start();
    let formed_by = format!("is already formed by {}", cluster.master_raft(2));
    for wiped in [0, 1] {
        cluster.master_waits(wiped, "to be taken in", |why| why.contains(&formed_by)).await;
    }
    asks_in_vain(&cluster, 2).await;
    assert_eq!(cluster.find_leader().await, None);
    cluster.master_waits(2, "for a majority", |why| why.contains("no leader is known")).await;
    for (master, cluster_id) in [(0, &[][..]), (1, &[][..]), (2, &formed[..])] {
        let status = cluster.status(master).await.expect("it answers");
        assert_eq!(status.cluster_id, cluster_id, "master {}: {}", master + 1, status.waiting_for);
    }
}

/// A cluster of one at the addresses of a master that does not run.
fn stranger_at(cluster: &Cluster, master: usize) -> Process {
    let dir = cluster.dir().join("stranger");
    let flags = [
        ("--listen", cluster.master_address(master)),
        ("--raft-listen", cluster.master_raft(master)),
        ("--http-listen", cluster.master_http(master)),
        ("--data-dir", dir.to_str().expect("a path in UTF-8")),
    ];
    let mut args = vec!["master", "--single", "--exit-on-stdin-eof"];
    args.extend(flags.iter().flat_map(|(flag, value)| [*flag, *value]));
    let args = args.into_iter().map(Into::into).collect();
    Process::new("stranger".into(), args, vec![], cluster.dir().join("stranger.log"))
}

#[tokio::test]
async fn a_foreign_cluster_at_a_reused_address_changes_nothing() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("another cluster leads at an address of this one");
    let client = cluster.client().await;
    put_all(&client).await;
    let leader = cluster.leader().await;
    let before = cluster.status(leader).await.expect("it answers");
    let gone = (leader + 1) % 3;
    cluster.masters[gone].kill9();
    let mut stranger = stranger_at(&cluster, gone);
    stranger.start();
    until("the stranger leads itself", async || {
        cluster.status(gone).await.is_some_and(|status| status.role == "leader")
    })
    .await;
    fault.happened();

    // Clients that know the cluster, and ones that only have the list, keep to what most of it are of.
    let newcomer = cluster.client().await;
    for client in [&client, &newcomer] {
        assert_all_there(client).await;
    }
    assert_eq!(newcomer.put("another", b"value").await.unwrap(), Put::Stored);
    let after = cluster.status(leader).await.expect("it answers");
    assert_eq!(
        (&after.cluster_id, after.term),
        (&before.cluster_id, before.term),
        "the same leader leads on"
    );
    let foreign = cluster.status(gone).await.expect("it answers");
    assert_ne!(foreign.cluster_id, before.cluster_id);
    assert_eq!((foreign.keys, foreign.stores.len()), (0, 0), "nothing of ours went there");

    stranger.kill9();
    cluster.masters[gone].start();
    cluster.ready().await;
    assert_all_there(&client).await;
    assert_eq!(client.get("another").await.unwrap().as_deref(), Some(&b"value"[..]));
}
