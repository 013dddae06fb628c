//! Masters come and go while the pool is used: by `mcctl members`, and by themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use mc_index::CLUSTER_VERSION;
use mc_proto::v1;
use mc_tests::{
    Cluster, Fault, Faults, Process, Running, Workload, by_hand, eventually, is_ready, mcctl, until,
    until_within,
};
use mc_types::{ClientId, SegmentEpoch, StoreId};

async fn load(cluster: &Cluster, seed: u64) -> Running {
    Workload::growing(seed).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await
}

/// The masters that vote, by their Raft address, as the leader has them.
async fn voters(cluster: &Cluster) -> BTreeSet<String> {
    let status = eventually("the leader's status", async || {
        let leader = cluster.leader().await;
        cluster.status(leader).await
    })
    .await;
    status.masters.into_iter().filter(|member| member.voter).map(|member| member.raft_address).collect()
}

fn raft(cluster: &Cluster, masters: &[usize]) -> BTreeSet<String> {
    masters.iter().map(|master| cluster.master_raft(*master).to_owned()).collect()
}

async fn node_id(cluster: &Cluster, master: usize) -> Vec<u8> {
    cluster.status(master).await.expect("it answers").node_id.to_vec()
}

fn kill(cluster: &mut Cluster, master: usize, fault: &Fault) {
    cluster.masters[master].kill9();
    fault.happened();
}

/// Removes a master and waits until it knows; returns what mcctl said.
async fn remove(cluster: &Cluster, master: usize) -> String {
    let address = cluster.master_raft(master).to_owned();
    let (code, said) = mcctl(cluster, &["members", "remove", &address]).await;
    assert!(code == 0 && said.contains("removed"), "{code}: {said}");
    until("it says that it was removed", async || {
        let status = cluster.status(master).await;
        status.is_some_and(|status| status.waiting_for.contains("is no member of cluster"))
    })
    .await;
    said
}

/// Starts a master that was not taken in, or lost its disk, and takes it in.
async fn add(cluster: &mut Cluster, master: usize) {
    cluster.masters[master].start();
    let address = cluster.master_raft(master).to_owned();
    until(format!("{address} waits to be taken in"), async || cluster.status(master).await.is_some()).await;
    let (code, said) = mcctl(cluster, &["members", "add", &address]).await;
    assert!(code == 0 && said.contains("is a voter"), "{code}: {said}");
}

#[tokio::test]
async fn a_master_that_lost_its_disk_takes_the_place_of_its_old_self() {
    // The newcomer cannot catch up from the log alone.
    let flags = ["--snapshot-log-entries", "200", "--keep-log-entries", "50"];
    let mut cluster = Cluster::builder().master_args(flags).start().await;
    let mut faults = Faults::new();
    let wiped = faults.plan("a follower loses its disk");
    let killed = faults.plan("another master is killed once the new one votes");
    let running = load(&cluster, 31).await;
    running.acknowledged(500).await;
    let lost = cluster.follower().await;
    let old = node_id(&cluster, lost).await;
    kill(&mut cluster, lost, &wiped);
    cluster.wipe_master(lost);
    cluster.masters[lost].start();

    let ready = async |master: usize| is_ready(cluster.master_http(master)).await;
    let (mut copied, mut others_ready, mut too_early) = (false, false, 0);
    until_within(Duration::from_secs(60), "the new node votes in the place of the old one", async || {
        // Asked first: a master that voted when it called itself ready votes afterwards, too.
        let it_is_ready = ready(lost).await;
        let leader = cluster.leader().await;
        let Some(status) = cluster.status(leader).await else { return false };
        let Some(new) = cluster.status(lost).await else { return false };
        let member = status.masters.iter().find(|member| member.node_id == new.node_id);
        if member.is_some_and(|member| !member.voter) && new.applied > 0 {
            copied = true;
            others_ready |= ready((lost + 1) % 3).await && ready((lost + 2) % 3).await;
        }
        // The leader's index may lag for a moment behind what is committed. A learner stays one for half a second.
        too_early = if it_is_ready && member.is_none_or(|member| !member.voter) { too_early + 1 } else { 0 };
        assert!(too_early < 3, "it is ready and has no vote");
        let voters: Vec<_> = status.masters.iter().filter(|member| member.voter).collect();
        voters.len() == 3 && status.masters.len() == 3 && voters.iter().all(|member| member.node_id != old)
    })
    .await;
    assert!(copied, "it was never seen as a learner with an index, in which it must not be ready");
    assert!(others_ready, "one wiped master does not make the others unready");
    assert_ne!(node_id(&cluster, lost).await, old);
    cluster.ready().await;
    running.acknowledged(50).await;

    // Its vote and its copy count: with one of the two others gone, nothing is lost and the pool goes on.
    let leader = cluster.leader().await;
    kill(&mut cluster, if leader == lost { (lost + 1) % 3 } else { leader }, &killed);
    running.acknowledged(100).await;
    running.stop().await.assert_nothing_lost(&cluster);
}

#[tokio::test]
async fn a_cluster_grows_from_one_to_five_and_shrinks_again_under_load() {
    let mut cluster = Cluster::builder().masters(5).prepare();
    let first = cluster.master_raft(0).to_owned();
    cluster.masters[0].set_arg("--peers", &first);
    cluster.masters[0].start();
    cluster.stores[0].start();
    cluster.ready().await;
    let running = load(&cluster, 32).await;
    running.acknowledged(100).await;

    for master in 1..5 {
        add(&mut cluster, master).await;
        running.acknowledged(50).await;
    }
    assert_eq!(voters(&cluster).await, raft(&cluster, &[0, 1, 2, 3, 4]));
    let (code, said) = mcctl(&cluster, &["members", "list"]).await;
    assert!(code == 0 && said.matches("voter").count() == 4 && said.contains("leader"), "{code}: {said}");

    // The leader goes first: it hands over, and the next one removes it.
    let mut left: Vec<usize> = (0..5).collect();
    for _ in 0..3 {
        let leader = cluster.leader().await;
        remove(&cluster, leader).await;
        left.retain(|master| *master != leader);
        cluster.masters[leader].kill9();
        running.acknowledged(50).await;
        assert_eq!(voters(&cluster).await, raft(&cluster, &left));
    }
    running.stop().await.assert_nothing_lost(&cluster);
}

/// Follows docs/operations/grow-and-shrink.md, 'From `--single` to three'.
#[tokio::test]
async fn a_single_master_becomes_three_with_what_it_has() {
    let mut cluster = Cluster::builder().masters(3).prepare();
    cluster.masters[0].replace_flag("--peers", 1, ["--single"]);
    cluster.masters[0].start();
    cluster.stores[0].start();
    cluster.ready().await;
    cluster.client().await.put("early", b"value").await.unwrap();

    cluster.masters[0].terminate().await;
    let itself = cluster.master_raft(0).to_owned();
    cluster.masters[0].replace_flag("--single", 0, ["--peers", &itself]);
    cluster.masters[0].start();
    cluster.ready().await;
    let (code, said) = mcctl(&cluster, &["members", "list"]).await;
    assert!(code == 0 && said.contains(&itself), "{code}: {said}");
    let running = load(&cluster, 34).await;
    for master in 1..3 {
        add(&mut cluster, master).await;
        running.acknowledged(50).await;
    }
    assert_eq!(voters(&cluster).await, raft(&cluster, &[0, 1, 2]));

    // The whole list at its next start, as the guide says, while the others go on.
    let everyone = [0, 1, 2].map(|master| cluster.master_raft(master).to_owned()).join(",");
    cluster.masters[0].set_arg("--peers", &everyone);
    cluster.masters[0].terminate().await;
    running.acknowledged(50).await;
    let early = cluster.client().await.get("early").await.unwrap();
    assert_eq!(early.as_deref(), Some(&b"value"[..]), "the others have what it had alone");
    cluster.masters[0].start();
    cluster.ready().await;
    running.acknowledged(50).await;
    running.stop().await.assert_nothing_lost(&cluster);
}

#[tokio::test]
async fn three_masters_become_one_that_restarts_alone_and_three_again_under_load() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let killed = faults.plan("the only master is killed");
    let client = cluster.client().await;
    for n in 0..20 {
        client.put(format!("early-{n}"), format!("value-{n}").as_bytes()).await.unwrap();
    }
    let running = load(&cluster, 33).await;
    running.acknowledged(50).await;

    // The leader leaves, to two others and then to the only one.
    let first = cluster.leader().await;
    let said = remove(&cluster, first).await;
    assert!(!said.contains("one master is left"), "{said}");
    cluster.masters[first].kill9();
    running.acknowledged(50).await;
    let second = cluster.leader().await;
    let alone = 3 - first - second;
    let said = remove(&cluster, second).await;
    assert!(said.contains("one master is left"), "{said}");
    assert_eq!(voters(&cluster).await, raft(&cluster, &[alone]));
    let kept = node_id(&cluster, second).await;
    running.acknowledged(50).await;

    // It still lists three: one that is down, and one that runs, has its data and was removed.
    kill(&mut cluster, alone, &killed);
    cluster.masters[alone].start();
    until("it leads alone", async || cluster.find_leader().await == Some(alone)).await;
    let client = cluster.client().await;
    for n in 0..20 {
        let value = format!("value-{n}");
        until(format!("early-{n} is read"), async || {
            let got = client.get(format!("early-{n}")).await;
            got.is_ok_and(|got| got.as_deref() == Some(value.as_bytes()))
        })
        .await;
    }
    running.acknowledged(50).await;
    cluster.masters[second].kill9();

    // Of two the leader removes the other one.
    cluster.wipe_master(first);
    add(&mut cluster, first).await;
    assert_eq!(voters(&cluster).await, raft(&cluster, &[first, alone]));
    let stays = cluster.leader().await;
    let goes = if stays == first { alone } else { first };
    remove(&cluster, goes).await;
    assert_eq!(voters(&cluster).await, raft(&cluster, &[stays]));
    running.acknowledged(50).await;
    cluster.masters[goes].kill9();

    // Of two that were removed, one has lost its disk and the other one comes back with its data.
    cluster.wipe_master(goes);
    for master in [goes, second] {
        add(&mut cluster, master).await;
        running.acknowledged(50).await;
    }
    assert_eq!(node_id(&cluster, second).await, kept, "the same node");
    assert_eq!(voters(&cluster).await, raft(&cluster, &[0, 1, 2]));
    running.stop().await.assert_nothing_lost(&cluster);
}

#[tokio::test]
async fn what_would_break_the_cluster_is_refused_with_the_reason() {
    let mut cluster = Cluster::builder().stores(0).start().await;
    let leader = cluster.leader().await;
    let (down, up) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.masters[down].kill9();
    let address = cluster.master_raft(up).to_owned();
    let gone = cluster.master_raft(down).to_owned();
    until("the leader has missed it", async || {
        let (_, said) = mcctl(&cluster, &["--json", "members", "list"]).await;
        let listed: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let members = listed["members"].as_array().unwrap();
        let dead = members.iter().find(|member| member["raft"] == gone.as_str()).unwrap();
        dead["silent_ms"].as_u64().is_none_or(|silent| silent > 1_500)
    })
    .await;
    let refused = async |args: &[&str], why: &str| {
        let (code, said) = mcctl(&cluster, args).await;
        assert!(code == 2 && said.contains(why), "{args:?}: {code}: {said}");
    };
    refused(&["members", "remove", &address], "2 voters remain of which 1 is up, no majority").await;
    refused(&["members", "remove", "nobody"], "no member is `nobody`; the members are").await;
    refused(&["members", "add", "127.0.0.1:9"], "no master answers at the Raft address 127.0.0.1:9").await;
    assert_eq!(voters(&cluster).await.len(), 3);
    // The dead one can go: both others are up.
    let (code, said) = mcctl(&cluster, &["members", "remove", &gone]).await;
    assert!(code == 0, "{said}");
    assert_eq!(voters(&cluster).await, raft(&cluster, &[leader, up]));
}

#[tokio::test]
async fn a_survivor_of_a_lost_majority_becomes_a_cluster_of_one_and_grows_again() {
    let mut cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let lost = faults.plan_times("a master loses its disk", 4);
    let mut keys = Vec::new();
    // What the first rescue has kept the second one keeps, too.
    for round in 0..2 {
        let client = cluster.client().await;
        for n in 0..50 {
            let key = format!("key-{round}-{n}");
            client.put(&key, key.as_bytes()).await.unwrap();
            keys.push(key);
        }
        rescue(&mut cluster, keys.len(), || lost.happened()).await;
        let client = cluster.client().await;
        for key in &keys {
            assert_eq!(client.get(key).await.unwrap().as_deref(), Some(key.as_bytes()), "{key}");
        }
    }
}

/// All masters but the leader lose their disks; of what it has on its own a cluster is made, which grows to three again.
async fn rescue(cluster: &mut Cluster, keys: usize, lost: impl Fn()) {
    let survivor = cluster.leader().await;
    let before = cluster.status(survivor).await.expect("it answers");
    cluster.masters.iter_mut().for_each(Process::kill9);
    let others = [(survivor + 1) % 3, (survivor + 2) % 3];
    for other in others {
        cluster.wipe_master(other);
        lost();
    }

    let dir = cluster.dir().join(format!("master-{}", survivor + 1));
    let rescue = ["members", "rescue", "--data-dir", dir.to_str().unwrap()];
    let (code, said) = mcctl(cluster, &rescue).await;
    let has = format!("has {keys} keys");
    assert!(code == 1 && said.contains(&has) && said.contains("Nothing has been changed"), "{said}");
    let (code, said) = mcctl(cluster, &[&rescue[..], &["--yes"]].concat()).await;
    assert!(code == 0 && said.contains("a cluster of one now"), "{code}: {said}");

    cluster.masters[survivor].start();
    until("the survivor leads alone", async || cluster.find_leader().await == Some(survivor)).await;
    let status = cluster.status(survivor).await.expect("it answers");
    assert_ne!(status.cluster_id, before.cluster_id);
    assert_eq!((status.keys, status.masters.len()), (keys as u64, 1));

    for other in others {
        cluster.masters[other].start();
        let address = cluster.master_raft(other).to_owned();
        until(format!("{address} answers"), async || cluster.status(other).await.is_some()).await;
        let (code, said) = mcctl(cluster, &["members", "add", &address]).await;
        assert!(code == 0, "{code}: {said}");
    }
    // The store has kept its memory, and follows once most of its list is of the new cluster.
    cluster.ready().await;
}

#[tokio::test]
async fn settings_are_changed_for_all_masters_and_survive_the_leader() {
    let mut cluster = Cluster::builder().start().await;
    let run = async |args: &[&str]| mcctl(&cluster, args).await;
    let (code, said) = run(&["config", "set", "read-lease", "7s"]).await;
    assert!(code == 0 && said.contains("read-lease: 10s -> 7s"), "{code}: {said}");
    let (code, said) = run(&["config", "set", "read-lease", "7s"]).await;
    assert!(code == 0 && said.contains("is 7s already"), "{code}: {said}");
    let (code, said) = run(&["config", "set", "read-lease", "1s"]).await;
    assert!(code == 2 && said.contains("read-lease can't be `1s`: it can be 5s to 60s"), "{code}: {said}");
    let (code, said) = run(&["config", "set", "lease", "7s"]).await;
    assert!(code == 2 && said.contains("there is no setting `lease`"), "{code}: {said}");
    let (code, said) = run(&["config", "set", "read-policy", "read-index"]).await;
    assert!(code == 0, "{code}: {said}");

    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    until("another leads", async || cluster.find_leader().await.is_some_and(|now| now != leader)).await;
    let run = async |args: &[&str]| mcctl(&cluster, args).await;
    let (code, said) = run(&["--json", "config", "show"]).await;
    assert_eq!(code, 0, "{said}");
    let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let value = |name: &str| {
        let settings = shown["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["name"] == name).unwrap()["value"].clone()
    };
    assert_eq!((value("read-lease"), value("read-policy")), ("7s".into(), "read-index".into()));

    // Not all masters answer: what they support is not known.
    let (code, said) = run(&["upgrade", "finish"]).await;
    assert!(code == 2 && said.contains("does not answer"), "{code}: {said}");
    let (code, said) = run(&["upgrade", "status"]).await;
    let shown = format!("cluster version {CLUSTER_VERSION}");
    assert!(code == 1 && said.contains(&shown), "{code}: {said}");
    cluster.masters[leader].start();
    cluster.ready().await;
    let (code, said) = mcctl(&cluster, &["upgrade", "finish"]).await;
    let already = format!("the cluster version is {CLUSTER_VERSION} already");
    assert!(code == 0 && said.contains(&already), "{code}: {said}");
}

#[tokio::test]
async fn clients_and_stores_of_older_builds_are_named_to_the_operator_who_upgrades() {
    let cluster = Cluster::builder().masters(1).start().await;
    let (code, said) = mcctl(&cluster, &["upgrade", "status"]).await;
    assert!(code == 0 && !said.contains("OLDER BUILD"), "{code}: {said}");

    let mut master = by_hand::master_at(cluster.master_address(0));
    let newest = *mc_proto::VERSIONS.end();
    let old = || v1::Caller { version_max: newest - 1, ..by_hand::caller() };
    let client = old();
    let start = v1::BatchPutStartRequest { caller: Some(client.clone()), ..Default::default() };
    master.batch_put_start(start).await.unwrap();
    let id = StoreId(0x5708e);
    let store = v1::Caller { client_id: u128::from(id.0).to_be_bytes().to_vec().into(), ..old() };
    let mount = v1::MountStoreRequest {
        caller: Some(store.clone()),
        store_id: id.to_bytes().to_vec().into(),
        name: "of-an-older-build".into(),
        epoch: SegmentEpoch::random().to_bytes().to_vec().into(),
        grant_key: vec![7; 32].into(),
        endpoints: vec![v1::Endpoint {
            transport: "tcp".into(),
            address: "127.0.0.1:1".into(),
            ..v1::Endpoint::default()
        }],
        segment_bytes: vec![1 << 20],
        ..v1::MountStoreRequest::default()
    };
    let (store_id, epoch) = (mount.store_id.clone(), mount.epoch.clone());
    master.mount_store(mount).await.unwrap();
    let beat = v1::StoreHeartbeat { caller: Some(store.clone()), store_id, epoch, ..Default::default() };
    let beats = futures::stream::iter([beat]);
    let reply = master.heartbeat(beats).await.unwrap().into_inner().message().await.unwrap();
    assert!(reply.is_some_and(|reply| reply.mounted));

    let (code, said) = mcctl(&cluster, &["--json", "upgrade", "status"]).await;
    assert_eq!(code, 1, "{said}");
    let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let id = |caller: &v1::Caller| ClientId::from_bytes(&caller.client_id).unwrap().to_string();
    for (caller, name) in [(client, None), (store, Some("of-an-older-build"))] {
        let outdated = shown["outdated"].as_array().unwrap();
        let outdated = outdated.iter().find(|outdated| outdated["id"] == id(&caller)).expect("it is named");
        assert_eq!(
            (outdated["store"].as_str(), outdated["host"].as_str(), outdated["protocol"].as_u64()),
            (name, Some("127.0.0.1"), Some(u64::from(newest - 1)))
        );
    }
    let (_, said) = mcctl(&cluster, &["upgrade", "status"]).await;
    assert!(said.contains("OLDER BUILD") && said.contains("store of-an-older-build  127.0.0.1"), "{said}");
}
