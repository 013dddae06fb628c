use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use mc_base::{ClientId, PutId};
use mc_client::{Code, Put, PutOptions};
use mc_proto::v1::master_client::MasterClient;
use mc_proto::{detail_of, v1};
use mc_tests::{Cluster, Faults, until_within};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// Callers with a connection of their own, where the limit of open files has room for them.
const CONNECTIONS: usize = 3_000;
/// Open files besides, here and in the master that they connect to.
const OTHER_FILES: usize = 1_000;
/// Connections that are made at a time.
const CONNECTING: usize = 64;
/// How long a caller with a connection of its own slows down after a refusal.
const SLOW_DOWN: Duration = Duration::from_millis(100);
const CLIENTS: usize = 12;
const CALLERS_OF_EACH: usize = 100;
const BATCH: usize = 8;
const KEY_BYTES: usize = 200;
const FLOOD: Duration = Duration::from_secs(6);
/// A master's memory may grow by so much: the proposals in flight, a few times over, and what the flood has put.
const GROWTH: u64 = 512 << 20;
/// And by so much for each connection: its task, and what is buffered both ways.
const GROWTH_OF_EACH: u64 = 128 << 10;
/// A leader that can't run for so long has lost its lease, whatever it is busy with: the default setting.
const LEASE: Duration = Duration::from_millis(300);
/// What [`watch_the_machine`] sleeps.
const NAP: Duration = Duration::from_millis(10);

/// How the calls of the callers with a connection of their own were answered.
#[derive(Debug, Default)]
struct Answers {
    taken: AtomicU64,
    exhausted: AtomicU64,
    failed: AtomicU64,
}

/// A figure of memory in the kernel's account of a process, in bytes: `VmRSS` is what it has in use, `VmHWM` the most that
/// it ever had.
fn memory(pid: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kib = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {figure} in {status}")) << 10
}

/// Sleeps again and again on a thread of its own, until what it returns is dropped: the longest time, in milliseconds, that
/// a sleep took longer than asked for. For so long no process of this machine can count on having run.
fn watch_the_machine() -> Arc<AtomicU64> {
    let longest = Arc::new(AtomicU64::new(0));
    let says = Arc::downgrade(&longest);
    std::thread::spawn(move || {
        while let Some(longest) = says.upgrade() {
            let asked = Instant::now();
            std::thread::sleep(NAP);
            let late = asked.elapsed().saturating_sub(NAP);
            longest.fetch_max(late.as_millis() as u64, Ordering::Relaxed);
        }
    });
    longest
}

/// Lets this process, and those that it starts from now on, open as many files as the connections take, or as many as the
/// system permits. How many connections that is.
fn room_for_connections() -> usize {
    let wanted = (CONNECTIONS + OTHER_FILES) as u64;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < most) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })
            .expect("a limit that is allowed");
    }
    let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |current| current as usize);
    let connections = CONNECTIONS.min(files.saturating_sub(OTHER_FILES));
    println!("{connections} of {CONNECTIONS} connections: each process may open {files} files");
    connections
}

async fn connect(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address").tcp_nodelay(true);
    endpoint.connect().await.expect("the leader takes one more connection")
}

/// Starts puts over a connection of its own, one after the other, until `end`; none of them is ever finished.
async fn start_puts(
    channel: Channel,
    caller: v1::Caller,
    number: usize,
    end: Instant,
    answers: Arc<Answers>,
) {
    let mut master = MasterClient::new(channel);
    for call in 0.. {
        if Instant::now() > end {
            return;
        }
        let item = v1::PutStartItem {
            put_id: Bytes::copy_from_slice(&PutId::random().to_bytes()),
            key: format!("started/{number}/{call}").into(),
            size: 1,
            deadline_ms: 1_000,
            ..v1::PutStartItem::default()
        };
        let request = v1::BatchPutStartRequest {
            caller: Some(caller.clone()),
            items: vec![item],
            ..v1::BatchPutStartRequest::default()
        };
        let Err(status) = master.batch_put_start(request).await else {
            answers.taken.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let exhausted = detail_of(&status).is_some_and(|why| why.code == Code::ResourceExhausted as i32);
        let answer = if exhausted { &answers.exhausted } else { &answers.failed };
        answer.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(SLOW_DOWN).await;
    }
}

/// What the callers of the library met.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    stored: usize,
    exhausted: usize,
    late: usize,
    slowest: Duration,
}

/// Puts batches of new keys with the library, one after the other, until `end`.
async fn put_batches(client: mc_client::Client, name: String, end: Instant) -> Met {
    let mut met = Met::default();
    for call in 0.. {
        if Instant::now() > end {
            break;
        }
        let key = |n| format!("{name}/{call}/{n:0>width$}", width = KEY_BYTES - 20);
        let keys: Vec<String> = (0..BATCH).map(key).collect();
        let puts: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), &b"v"[..])).collect();
        let options = PutOptions { deadline: Duration::from_secs(5), ..PutOptions::default() };
        let asked = Instant::now();
        for answer in client.batch_put(&puts, &options).await {
            match answer {
                Ok(Put::Stored) => met.stored += 1,
                Ok(other) => panic!("a new key was put, and the answer is {other:?}"),
                // Refused until the deadline.
                Err(error) if error.code == Code::ResourceExhausted => met.exhausted += 1,
                // Begun, and too late: nothing is promised.
                Err(_) => met.late += 1,
            }
        }
        met.slowest = met.slowest.max(asked.elapsed());
    }
    met
}

/// Far more callers than a master takes proposals of at once, thousands of them on connections of their own. What is too
/// much is refused, memory is bounded, and nobody takes the leader for dead because request work keeps it from its
/// heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_proposals_is_refused_in_part_and_costs_neither_leadership_nor_memory() {
    let connections = room_for_connections();
    let cluster = Cluster::builder().faulty().segment("1gb").start().await;
    let mut faults = Faults::new();
    let connected = faults.plan("all connections are open at the leader");
    let refused = faults.plan("callers are answered RESOURCE_EXHAUSTED");
    let leader = cluster.leader().await;
    let before = cluster.status(leader).await.expect("the leader answers");
    let resident: Vec<u64> = cluster.masters.iter().map(|master| memory(master.pid(), "VmRSS")).collect();
    let longest_stall = watch_the_machine();

    let address = cluster.master_address(leader);
    let channels = futures::stream::iter((0..connections).map(|_| connect(address)));
    let channels: Vec<Channel> = channels.buffer_unordered(CONNECTING).collect().await;
    if cluster.masters[leader].descriptors() >= connections {
        connected.happened();
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client().await);
    }

    let caller = v1::Caller {
        client_id: Bytes::copy_from_slice(&ClientId::random().to_bytes()),
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        ..v1::Caller::default()
    };
    let (end, answers) = (Instant::now() + FLOOD, Arc::new(Answers::default()));
    let mut starters = JoinSet::new();
    for (number, channel) in channels.into_iter().enumerate() {
        starters.spawn(start_puts(channel, caller.clone(), number, end, answers.clone()));
    }
    let mut callers = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for one in 0..CALLERS_OF_EACH {
            callers.spawn(put_batches(client.clone(), format!("{number}/{one}"), end));
        }
    }
    // Nothing is committed for a moment, whatever this machine's speed: proposals pile up to the bound.
    let followers = cluster.links().other_masters(leader);
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(true));
    until_within(Duration::from_secs(30), "callers are refused", async || {
        answers.exhausted.load(Ordering::Relaxed) > 0
    })
    .await;
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(false));
    refused.happened();
    let met = callers.join_all().await;
    starters.join_all().await;
    let stall = Duration::from_millis(longest_stall.load(Ordering::Relaxed));

    println!("over {connections} connections of their own: {answers:?}");
    let stored: usize = met.iter().map(|met| met.stored).sum();
    println!(
        "{stored} keys stored by {} callers of the library, {} refused, {} too late, slowest {:?}",
        met.len(),
        met.iter().map(|met| met.exhausted).sum::<usize>(),
        met.iter().map(|met| met.late).sum::<usize>(),
        met.iter().map(|met| met.slowest).max().unwrap_or_default()
    );
    assert!(stored > 0 && answers.taken.load(Ordering::Relaxed) > 0, "what is not too much is taken");
    let counted = cluster.metric(leader, "mc_master_proposals_refused_total").await.unwrap_or(0.0);
    assert!(counted >= 1.0, "the refusals are counted");

    let after = cluster.status(cluster.leader().await).await.expect("the leader answers");
    let leads_on = (after.term, &after.node_id) == (before.term, &before.node_id);
    println!("the longest stall of this machine took {stall:?}; the same master leads on: {leads_on}");
    assert!(
        leads_on || stall > LEASE,
        "the leadership was lost, and no stall of this machine accounts for it"
    );

    let bound = GROWTH + connections as u64 * GROWTH_OF_EACH;
    for (master, before) in cluster.masters.iter().zip(resident) {
        let grown = memory(master.pid(), "VmHWM").saturating_sub(before);
        println!("{} grew by {} MiB at most, of {}", master.name(), grown >> 20, bound >> 20);
        assert!(grown < bound, "{} grew by {grown} bytes", master.name());
    }
    let client = cluster.client().await;
    until_within(Duration::from_secs(30), "a put is taken again", async || {
        matches!(client.put("after", b"value").await, Ok(Put::Stored | Put::AlreadyExists))
    })
    .await;
    faults.assert_happened();
}
