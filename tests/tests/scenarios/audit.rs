//! Who changed the cluster and who was refused stays known, whichever master dies.

use std::collections::BTreeMap;
use std::path::Path;

use mc_client::Bytes;
use mc_tests::{Cluster, mcctl, mcctl_as, network_of, until};
use mc_types::Code;
use serde_json::Value;

/// A key of a user, which no log may have.
const KEY: &str = "a-key-that-nobody-may-see";

/// Returns the lines of a master's logs of changes by their indexes.
fn changes(cluster: &Cluster, master: usize) -> BTreeMap<u64, String> {
    let read = |file| std::fs::read_to_string(cluster.master_dir(master).join("audit").join(file)).unwrap();
    let text = read("changes.jsonl") + &read("changes-by-users.jsonl");
    // The last line may be about to be written.
    let lines: Vec<_> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
    let by_index: BTreeMap<_, _> = lines
        .iter()
        .filter_map(|line| {
            let record: Value = serde_json::from_str(line).ok()?;
            Some((record["place"][1].as_u64()?, (*line).to_owned()))
        })
        .collect();
    assert_eq!(by_index.len(), lines.len(), "each change has one whole line: {text}");
    by_index
}

fn has(log: &BTreeMap<u64, String>, parts: &[&str]) -> bool {
    log.values().any(|line| parts.iter().all(|part| line.contains(part)))
}

async fn is_ok(cluster: &Cluster, args: &[&str]) {
    let (code, said) = mcctl(cluster, args).await;
    assert_eq!(code, 0, "{args:?}: {said}");
}

fn folder(cluster: &Cluster, id: &str) -> std::path::PathBuf {
    cluster.certificates().expect("a pool with certificates").of(id)
}

async fn audit(cluster: &Cluster, args: &[&str]) -> Vec<Value> {
    let (code, said) = mcctl(cluster, &[&["audit", "--json"], args].concat()).await;
    assert_eq!(code, 0, "{said}");
    // Notes on standard error follow the document.
    let mut documents = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
    let document = documents.next().expect("a document").unwrap_or_else(|error| panic!("{error}: {said}"));
    document["records"].as_array().expect("records").clone()
}

fn holds(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir)
        .unwrap()
        .any(|file| std::fs::read_to_string(file.unwrap().path()).unwrap().contains(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_master_has_each_change_once_with_its_caller_whoever_dies() {
    let mut cluster = Cluster::builder().stores(1).tls().start().await;
    // A store that mounts while the cluster forms may be before the cluster version, from which on calls are named.
    assert_eq!(cluster.stores[0].terminate().await.code(), Some(0));
    cluster.stores[0].start();
    cluster.ready().await;
    let writer = cluster
        .client_builder()
        .network(network_of(&folder(&cluster, "tenant/a/rw/w")))
        .connect()
        .await
        .unwrap();
    writer.put(KEY, &Bytes::from_static(b"value")).await.unwrap();
    is_ok(&cluster, &["tenants", "set", "a", "--bytes", "1gb"]).await;
    is_ok(&cluster, &["config", "set", "eviction-high-watermark", "0.93"]).await;
    is_ok(&cluster, &["members", "transfer-leader"]).await;
    // The leader that made these changes dies.
    let leader = cluster.leader().await;
    cluster.masters[leader].kill9();
    is_ok(&cluster, &["principals", "deny", "tenant/b/rw/engine"]).await;
    assert_eq!(writer.remove_by_regex(KEY, true).await.unwrap().objects, 1);

    let quota =
        ["\"who\":\"admin/mcctl\"", "SetTenant", "\"tenant\":\"a\"", "\"result\":\"OK\"", "127.0.0.1"];
    let removed = ["\"who\":\"tenant/a/rw/w\"", "RemoveAll"];
    let left: Vec<_> = (0..3).filter(|master| *master != leader).collect();
    until("the others have all changes", async || {
        left.iter().all(|master| {
            let log = changes(&cluster, *master);
            has(&log, &quota)
                && has(&log, &["TransferLeader", "\"result\":\"BEGUN\""])
                && has(&log, &["SetConfig", "eviction-high-watermark=0.93"])
                && has(&log, &["SetSecurity", "tenant/b/rw/engine denied"])
                && has(&log, &["MountStore", "\"who\":\"store/"])
                && has(&log, &removed)
        })
    })
    .await;

    // A restart applies the log again, and a master that comes back catches up: each line is there once.
    cluster.masters[left[0]].kill9();
    cluster.masters[left[0]].start();
    cluster.masters[leader].start();
    cluster.ready().await;
    until("all logs are the same", async || {
        changes(&cluster, leader) == changes(&cluster, left[0])
            && changes(&cluster, left[0]) == changes(&cluster, left[1])
    })
    .await;

    let shown = audit(&cluster, &[]).await;
    let calls: Vec<_> = shown.iter().map(|record| record["call"].as_str().unwrap()).collect();
    assert_eq!(calls.iter().filter(|call| **call == "SetTenant").count(), 1, "{calls:?}");
    let indexes: Vec<_> = shown.iter().map(|record| record["index"].as_u64().unwrap()).collect();
    assert!(indexes.is_sorted() && !indexes.is_empty(), "{indexes:?}");
    for master in 0..3 {
        assert!(!holds(&cluster.master_dir(master).join("audit"), KEY));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_who_asked_for_what_and_only_an_admin_reads_it() {
    let cluster = Cluster::builder().tls().start().await;
    let reader = folder(&cluster, "tenant/a/ro/r");
    for _ in 0..3 {
        assert_ne!(mcctl_as(&cluster, &reader, &["tenants", "list"]).await.0, 0);
    }
    until("the refusals are written", async || {
        let refusals = audit(&cluster, &["--refusals"]).await;
        let of_reader = |it: &&Value| it["who"] == "tenant/a/ro/r" && it["call"] == "ListTenants";
        let times: u64 = refusals.iter().filter(of_reader).map(|it| it["times"].as_u64().unwrap()).sum();
        times >= 3 && refusals.iter().find(of_reader).unwrap()["result"] == "role"
    })
    .await;
    let (code, said) = mcctl_as(&cluster, &reader, &["audit"]).await;
    assert!(code != 0 && said.contains(Code::PermissionDenied.name()), "{said}");
}
