//! The list of masters changes while the store runs: all masters have moved, and nothing could tell the store where to.

use std::fs;

use mc_testkit::{Daemon, until};

use crate::common::{Event, FakeCluster, http, mounted};

/// The same cluster at another address, where a later term is led. It knows nothing of the store's memory.
fn moved(cluster: &mut FakeCluster) -> FakeCluster {
    cluster.kill(0);
    let elsewhere = FakeCluster::start(1);
    elsewhere.elect(0);
    elsewhere
}

fn epoch_of_mount(cluster: &FakeCluster) -> mc_types::SegmentEpoch {
    let Event::Mount { epoch, .. } = cluster.mounts()[0].clone() else { panic!("a mount") };
    epoch
}

#[tokio::test]
async fn a_list_set_over_http_is_followed_with_the_same_memory() {
    let (mut cluster, dir) = (FakeCluster::start(1), tempfile::tempdir().unwrap());
    let store = mounted(&cluster, dir.path()).await;
    let elsewhere = moved(&mut cluster);
    for bad in ["", "a:port", ","] {
        let (code, why) = http("PUT", store.http_address(), &format!("/masters?list={bad}")).await;
        assert_eq!(code, 400, "{bad}: {why}");
    }
    let (_, list) = http("GET", store.http_address(), "/masters").await;
    assert_eq!(list, format!("[\"{}\"]", cluster.addresses()[0]), "it stays as it is");

    let list = &elsewhere.addresses()[0];
    let (code, shown) = http("PUT", store.http_address(), &format!("/masters?list={list}")).await;
    assert_eq!((code, shown), (200, format!("[\"{list}\"]")));
    until("mounted there", async || !elsewhere.mounts().is_empty() && store.store().ready()).await;
    assert_eq!(epoch_of_mount(&elsewhere), epoch_of_mount(&cluster), "what it holds is still there");
}

#[tokio::test]
async fn a_list_in_the_file_is_read_again_at_sighup() {
    let (mut cluster, dir) = (FakeCluster::start(1), tempfile::tempdir().unwrap());
    let file = dir.path().join("mc.toml");
    let write =
        |masters: &str| fs::write(&file, format!("segment = \"2mb\"\nmasters = \"{masters}\"\n")).unwrap();
    write(&cluster.addresses()[0]);
    let (any, path) = ("127.0.0.1:0", file.to_str().unwrap());
    let args = ["--config", path, "--listen", any, "--http-listen", any];
    let mut store = Daemon::start(env!("CARGO_BIN_EXE_mc-store"), &dir.path().join("store"), &args);
    until("mounted", async || !cluster.mounts().is_empty() && cluster.beats(0) > 0).await;
    let elsewhere = moved(&mut cluster);

    fs::write(&file, "segment = 1.5\n").unwrap();
    store.hang_up();
    until("a bad file is refused", async || store.output().contains("stays as it is")).await;
    write(&elsewhere.addresses()[0]);
    store.hang_up();
    until("mounted there", async || !elsewhere.mounts().is_empty() && elsewhere.beats(0) > 0).await;
    assert_eq!(epoch_of_mount(&elsewhere), epoch_of_mount(&cluster), "what it holds is still there");
    assert_eq!(store.terminate().await.code(), Some(0), "{}", store.output());
}
