use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mc_client::{Mode, Put};
use mc_tests::{Cluster, Process, http_get, mcctl, mcctl_exe, until};
use tokio::process::{Child, Command};

/// Every process says again for whom it waits after so many seconds.
const REMINDER_S: u64 = 10;

/// `mcctl put KEY FILE` with a long patience. All that it says goes to `log`.
fn start_put(cluster: &Cluster, key: &str, file: &Path, log: &Path) -> Child {
    let log = File::create(log).unwrap();
    let mut command = Command::new(mcctl_exe());
    command.args(["put", "--timeout", "10m", key]).arg(file);
    command.env("MC_MASTERS", cluster.addresses()).env_remove("MC_CONFIG").kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

/// For whom a process has said that it waits, line by line.
fn waiting(process: &Process) -> Vec<String> {
    let output = process.output();
    let said = output.lines().filter_map(|line| Some(line.split_once("waiting: ")?.1.to_owned()));
    said.collect()
}

/// A process that was started at `since` has said something once, and again only to remind.
fn assert_said_once(process: &Process, times: usize, since: Instant) {
    let reminders = since.elapsed().as_secs() / REMINDER_S;
    assert!(
        (1..=1 + reminders).contains(&(times as u64)),
        "{} said {times} times for whom it waits, with {reminders} reminders due: {:#?}",
        process.name(),
        waiting(process)
    );
}

#[tokio::test]
async fn everything_started_in_reverse_order_waits_visibly_and_forms_a_pool() {
    let mut cluster = Cluster::builder().prepare();
    let client = cluster.client_builder().connect().await.unwrap();
    assert_eq!(client.mode(), Mode::LocalOnly);

    let (file, log) = (cluster.dir().join("file"), cluster.dir().join("mcctl.log"));
    std::fs::write(&file, b"from a file").unwrap();
    let mut put = start_put(&cluster, "from mcctl", &file, &log);
    let mcctl_said = || std::fs::read_to_string(&log).unwrap();
    until("mcctl says that it waits", async || mcctl_said().contains("waiting up to 600s for a leader"))
        .await;

    let store_started = Instant::now();
    cluster.stores[0].start();
    let store = cluster.store_http(0).to_owned();
    let masters = cluster.addresses();
    until("the store says for whom it waits", async || {
        let answer = http_get(&store, "/readyz").await;
        answer.is_ok_and(|(code, why)| code == 503 && masters.split(',').all(|master| why.contains(master)))
    })
    .await;

    let masters_started = Instant::now();
    cluster.masters[2].start();
    cluster.masters[1].start();
    for (master, other) in [(1, 2), (2, 1)] {
        let (missing, there) = (cluster.master_raft(0), cluster.master_raft(other));
        let third = |why: &str| why.contains(missing) && !why.contains(there);
        cluster.master_waits(master, "for the third, and for it alone", third).await;
    }
    assert_eq!(cluster.find_leader().await, None, "two of three do not form a cluster");
    assert_said_once(&cluster.stores[0], waiting(&cluster.stores[0]).len(), store_started);
    for master in [1, 2] {
        let said = waiting(&cluster.masters[master]);
        // News are said at once: what is counted is the same line again.
        let again = said.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert_said_once(&cluster.masters[master], 1 + again, masters_started);
    }
    assert!(put.try_wait().unwrap().is_none(), "mcctl waits as long as it was told to: {}", mcctl_said());

    cluster.masters[0].start();
    cluster.ready().await;
    until("the client goes on by itself", async || client.mode() == Mode::Connected).await;
    assert_eq!(client.put("k", b"value").await.unwrap(), Put::Stored);
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(&b"value"[..]));

    let ended = tokio::time::timeout(Duration::from_secs(60), put.wait()).await;
    let ended = ended.expect("mcctl goes on by itself").unwrap().code();
    let said = mcctl_said();
    assert_eq!(said.matches("waiting up to").count(), 1, "{said}");
    if ended == Some(1) {
        // The leader was there before its first store.
        assert!(said.contains("NO_AVAILABLE_HANDLE"), "{said}");
        println!("the put that waited for a leader came before the first store was mounted");
        let (code, said) = mcctl(&cluster, &["put", "from mcctl", file.to_str().unwrap()]).await;
        assert_eq!(code, 0, "{said}");
    } else {
        assert_eq!(ended, Some(0), "{said}");
    }
    assert_eq!(client.get("from mcctl").await.unwrap().as_deref(), Some(&b"from a file"[..]));
}

#[tokio::test]
async fn processes_end_with_the_test_runner_that_started_them() {
    let mut cluster = Cluster::builder().masters(1).segment("16mb").start().await;
    cluster.masters[0].abandon();
    cluster.stores[0].abandon();
    cluster.masters[0].ended().await;
    cluster.stores[0].ended().await;
}
