use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_client::{Code, Put};
use mc_tests::{Cluster, is_ready, mcctl, until};
use mc_types::NodeId;

#[tokio::test]
async fn a_reserve_that_the_disk_does_not_have_refuses_puts_and_nothing_else() {
    let mut cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("kept", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.put("removed", b"value").await.unwrap(), Put::Stored);

    cluster.masters[0].terminate().await;
    cluster.masters[0].add_args(["--disk-reserve", "100000tb"]);
    cluster.masters[0].start();
    cluster.ready().await;
    assert!(client.connected(Duration::from_secs(60)).await);
    // The first look at the disk may come a moment after the first call.
    let mut refused = None;
    until("a put is refused", async || {
        match client.put("refused", b"value").await {
            Err(error) => refused = Some(error),
            Ok(_) => drop(client.remove("refused", true).await),
        }
        refused.is_some()
    })
    .await;
    let refused = refused.unwrap();
    assert!(refused.code == Code::DiskNearlyFull && !refused.is_unknown(), "{refused}");
    let said = refused.to_string();
    let dir = cluster.dir().join("master-1").display().to_string();
    for part in ["starts no puts", &dir, "are needed (--disk-reserve)", "make room"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let log = cluster.masters[0].output();
    assert!(log.contains("is nearly full"), "it is logged, too");

    assert_eq!(client.get("kept").await.unwrap().as_deref(), Some(&b"value"[..]));
    assert!(client.remove("removed", true).await.unwrap());
    assert!(!client.exist("removed").await.unwrap());
    assert!(is_ready(cluster.master_http(0)).await);
}

#[tokio::test]
async fn puts_are_refused_while_no_majority_of_the_disks_has_room() {
    let mut cluster = Cluster::builder().segment("16mb").start().await;
    let client = cluster.client().await;
    assert_eq!(client.put("kept", b"value").await.unwrap(), Put::Stored);
    let leader = cluster.leader().await;
    let followers: Vec<_> = (0..3).filter(|master| *master != leader).collect();
    for (n, follower) in followers.iter().enumerate() {
        cluster.masters[*follower].terminate().await;
        cluster.masters[*follower].add_args(["--disk-reserve", "100000tb"]);
        cluster.masters[*follower].start();
        cluster.ready().await;
        leads(&cluster, leader).await;
        if n == 0 {
            // A busy machine can keep the other follower from saying in time that it has room.
            until("puts are taken with one full disk", async || {
                leads(&cluster, leader).await;
                matches!(client.put("with one full disk", b"value").await, Ok(Put::Stored))
            })
            .await;
        }
    }

    let names = {
        let mut names = Vec::new();
        for follower in &followers {
            let node = cluster.status(*follower).await.unwrap().node_id;
            names.push(NodeId::from_bytes(&node).unwrap().to_string());
        }
        names
    };
    let mut refused = None;
    until("a put is refused", async || {
        leads(&cluster, leader).await;
        match client.put("refused", b"value").await {
            Err(error) if error.code == Code::DiskNearlyFull => refused = Some(error),
            Err(_) => {}
            Ok(_) => drop(client.remove("refused", true).await),
        }
        let said = refused.as_ref().map(ToString::to_string).unwrap_or_default();
        said.contains("no majority") && names.iter().all(|node| said.contains(node))
    })
    .await;
    assert!(!refused.unwrap().is_unknown());
    assert_eq!(client.get("kept").await.unwrap().as_deref(), Some(&b"value"[..]));

    let fixed = &mut cluster.masters[followers[0]];
    fixed.terminate().await;
    fixed.replace_flag("--disk-reserve", 1, ["--disk-reserve", "1mb"]);
    fixed.start();
    cluster.ready().await;
    until("a put is taken", async || client.put("taken", b"value").await.is_ok()).await;
}

/// Hands leadership back where a busy machine has taken it from `master`.
async fn leads(cluster: &Cluster, master: usize) {
    until("the master leads", async || {
        if cluster.find_leader().await == Some(master) {
            return true;
        }
        let to = cluster.master_raft(master);
        println!("{:?}", mcctl(cluster, &["members", "transfer-leader", to]).await);
        false
    })
    .await;
}

/// The log has the keys of the stores' grants.
#[tokio::test]
async fn nobody_else_can_read_what_masters_and_stores_keep() {
    let cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    assert_eq!(cluster.client().await.put("key", b"value").await.unwrap(), Put::Stored);

    let below = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut kept = below(cluster.dir());
    kept.retain(|path| path.is_dir());
    assert_eq!(kept.len(), 2, "of a master and a store: {kept:?}");
    let mut files = 0;
    while let Some(path) = kept.pop() {
        let metadata = std::fs::metadata(&path).unwrap();
        let mode = metadata.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
        match metadata.is_dir() {
            true => kept.extend(below(&path)),
            false => files += 1,
        }
    }
    assert!(files > 3, "{files} files were looked at");
}
