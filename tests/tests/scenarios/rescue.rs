//! Places of objects that lost entries of the log have given to other objects. The index does not know, the store may have
//! forgotten, and the bytes are another object's.

use mc_client::{ByteRange, Client};
use mc_proto::v1;
use mc_tests::{Cluster, Faults, by_hand, mcctl, until, value};
use mc_types::Code;

/// Of 64 MiB, so that two objects can't be there at once.
const SIZE: usize = 40 << 20;

fn part() -> ByteRange {
    ByteRange { offset: 20 << 20, len: 1 << 20 }
}

/// One master and one store, which serves TCP alone.
async fn start(args: [&str; 2]) -> Cluster {
    let cluster = Cluster::builder().masters(1).segment("64mb").master_args(args);
    cluster.store_args(["--transport", "tcp"]).start().await
}

async fn offset(client: &Client, key: &str) -> u64 {
    client.admin().lookup(key).await.unwrap().expect("it was put").replicas[0].offset
}

/// The leader's answer about a key to a caller that does or does not read doubtful objects whole.
async fn asked(cluster: &Cluster, key: &str, reads_doubtful: bool) -> v1::GetResult {
    let mut master = by_hand::master_at(cluster.master_address(0));
    let caller = by_hand::greeted(&mut master).await;
    let keys = vec![key.as_bytes().to_vec().into()];
    let request =
        v1::BatchGetRequest { caller: Some(caller), keys, reads_doubtful, ..v1::BatchGetRequest::default() };
    master.batch_get(request).await.unwrap().into_inner().results.remove(0)
}

#[tokio::test]
async fn after_a_rescue_no_read_returns_the_bytes_of_an_object_that_was_lost_with_the_majority() {
    let mut cluster = start(["--log-sync", "fdatasync"]).await;
    let mut faults = Faults::new();
    let reused = faults.plan("the lost masters gave an object's place to another one");
    let client = cluster.client().await;
    client.put("x", &value("x", 1, SIZE)).await.unwrap();
    let place = offset(&client, "x").await;

    // The survivor is stopped here. What follows is committed by the others, which are lost.
    cluster.masters[0].kill9();
    let (dir, survivor) = (cluster.master_dir(0), cluster.dir().join("survivor"));
    copy(&dir, &survivor);
    cluster.masters[0].start();
    cluster.ready().await;
    let client = cluster.client().await;
    client.remove("x", true).await.unwrap();
    client.put("y", &value("y", 1, SIZE)).await.unwrap();
    if offset(&client, "y").await == place {
        reused.happened();
    }
    cluster.masters[0].kill9();
    std::fs::remove_dir_all(&dir).unwrap();
    copy(&survivor, &dir);
    let (code, said) =
        mcctl(&cluster, &["members", "rescue", "--yes", "--data-dir", dir.to_str().unwrap()]).await;
    assert_eq!(code, 0, "{said}");
    cluster.masters[0].start();
    cluster.ready().await;
    // The fence forgets old writes while it admits new ones, and the cluster's time has jumped by a day.
    let client = cluster.client().await;
    for small in 0..4 {
        let key = format!("small {small}");
        until("the store serves the new cluster", async || client.put(&key, b"a few bytes").await.is_ok())
            .await;
    }

    for checks in [true, false] {
        let client = cluster.client_builder().checksum(checks).connect().await.unwrap();
        assert_eq!(client.get_range("x", part()).await.unwrap(), None, "checksums compared: {checks}");
        assert_eq!(client.get("x").await.unwrap(), None, "checksums compared: {checks}");
        let session = client.get_session("x").await.unwrap().expect("the leader knows the key");
        assert!(session.read(part()).await.is_err(), "checksums compared: {checks}");
    }
    assert!(asked(&cluster, "x", true).await.doubtful);
    let withheld = asked(&cluster, "x", false).await;
    assert_eq!((withheld.code, withheld.replicas), (Code::ReplicaIsNotReady as i32, vec![]));

    // The new cluster's own objects are read as ever.
    let client = cluster.client().await;
    let new = value("x", 2, SIZE);
    client.remove("x", true).await.unwrap();
    client.put("x", &new).await.unwrap();
    assert!(!asked(&cluster, "x", false).await.doubtful);
    assert_eq!(client.get_range("x", part()).await.unwrap().unwrap(), new[20 << 20..21 << 20]);
}

/// A loss of power may have taken the end of the log from a majority. A restart of the only master stands for it here: it
/// loses nothing and the leader can't tell.
#[tokio::test]
async fn without_syncs_what_an_earlier_term_allocated_is_doubtful() {
    for (sync, doubtful) in [("none", true), ("fdatasync", false)] {
        let mut cluster = start(["--log-sync", sync]).await;
        let before = value("before", 1, 1 << 20);
        cluster.client().await.put("before", &before).await.unwrap();
        assert!(!asked(&cluster, "before", true).await.doubtful, "{sync}: of this term");
        cluster.masters[0].kill9();
        cluster.masters[0].start();
        cluster.ready().await;
        let client = cluster.client().await;
        client.put("after", &before).await.unwrap();
        assert_eq!(asked(&cluster, "before", true).await.doubtful, doubtful, "{sync}");
        assert!(!asked(&cluster, "after", true).await.doubtful, "{sync}");
        let range = ByteRange { offset: 7, len: 100 };
        assert_eq!(client.get_range("before", range).await.unwrap().unwrap(), before[7..107], "{sync}");
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "cp -a {} {}", from.display(), to.display());
}
