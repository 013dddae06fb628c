use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use mc_client::{Code, Put, PutOptions};
use mc_proto::{
    detail_of,
    v1::{self, master_client::MasterClient},
};
use mc_tests::{Cluster, Faults, Link, Machine, by_hand, passed_over, until, until_within};
use mc_types::PutId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// One flood at a time: two at once would be too much for this machine, whatever the masters do.
static FLOODS: Mutex<()> = Mutex::const_new(());

/// Callers with a connection of their own, where the limit of open files has room for them.
const CONNECTIONS: usize = 3_000;
/// Fewer of them show nothing of scale.
const FEWEST_CONNECTIONS: usize = 1_000;
/// Open files besides, here and in the master that they connect to.
const OTHER_FILES: usize = 1_000;
/// Connections that are made at a time.
const CONNECTING: usize = 64;
/// How long a caller with a connection of its own slows down after a refusal.
const SLOW_DOWN: Duration = Duration::from_millis(100);
const CLIENTS: usize = 12;
const CALLERS_OF_EACH: usize = 100;
/// Clients and their callers where the flood is one of what the masters commit, not of callers.
const FEW_CLIENTS: usize = 4;
const FEW_CALLERS_OF_EACH: usize = 32;
const BATCH: usize = 8;
const KEY_BYTES: usize = 200;
const PUT_DEADLINE: Duration = Duration::from_secs(5);
const FLOOD: Duration = Duration::from_secs(6);
/// How long a flood goes on with all masters well, and then as long past a follower that takes little or nothing of it.
const PHASE: Duration = Duration::from_secs(5);
/// One part in so many of what is stored with all masters well is stored past such a follower, at least. A majority does not
/// wait for it, so it should be about all; the rest is left to what else this machine does.
const ONE_IN: usize = 8;
/// A master's memory may grow by so much: the proposals in flight, a few times over, and what the flood has put.
const GROWTH: u64 = 512 << 20;
/// And by so much for each connection: its task, and what is buffered both ways.
const GROWTH_OF_EACH: u64 = 128 << 10;
/// Connections that take nothing of the replies they asked for, and how many of these they ask for: each of as many keys
/// as one call may have, half a GiB of them if all were kept.
const STALLED_CONNECTIONS: usize = 32;
const STALLED_GETS_OF_EACH: usize = 64;
const STALLED_KEY: &[u8] = b"stalled";
/// A leader's memory may grow by so much because of them: the bound on its calls, and half as much again.
const STALLED_GROWTH: u64 = 384 << 20;
/// Bytes a second of a link on which heartbeats get through, and few of a flood's entries.
const NARROW: u64 = 16 << 10;
/// How long a flood may take to be over.
const OVER: Duration = Duration::from_secs(30);
/// A leader that can't run for so long has lost its lease, whatever it is busy with: the default setting.
const LEASE: Duration = Duration::from_millis(300);

/// How the calls of the callers with a connection of their own were answered.
#[derive(Debug, Default)]
struct Answers {
    taken: AtomicU64,
    exhausted: AtomicU64,
    failed: AtomicU64,
}

fn is_exhausted(status: &Status) -> bool {
    detail_of(status).is_some_and(|why| why.code == Code::ResourceExhausted as i32)
}

impl Answers {
    /// Counts one; whether the call was taken.
    fn note<T>(&self, answer: &Result<T, Status>) -> bool {
        let counter = match answer {
            Ok(_) => &self.taken,
            Err(status) if is_exhausted(status) => &self.exhausted,
            Err(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer.is_ok()
    }
}

/// State before a flood that must not change it.
struct Before {
    leader: v1::StatusReply,
    /// Memory that each master has in use.
    resident: Vec<u64>,
    began: Instant,
    machine: Machine,
}

impl Before {
    async fn of(cluster: &Cluster) -> Self {
        Self {
            leader: cluster.status(cluster.leader().await).await.expect("the leader answers"),
            resident: cluster.masters.iter().map(|master| memory(master.pid(), "VmRSS")).collect(),
            began: Instant::now(),
            machine: Machine::watch(cluster.dir()),
        }
    }

    /// The same master leads on, if it could run all the time, and no master grew by more than `most` bytes.
    async fn assert_outlived(&self, cluster: &Cluster, most: u64) {
        let (stall, _) = self.machine.stalls_since(self.began);
        let after = cluster.status(cluster.leader().await).await.expect("the leader answers");
        let leads_on = (after.term, &after.node_id) == (self.leader.term, &self.leader.node_id);
        println!("the longest stall of this machine took {stall:?}; the same master leads on: {leads_on}");
        assert!(
            leads_on || stall > LEASE,
            "the leadership was lost, and no stall of this machine accounts for it"
        );
        for (master, before) in cluster.masters.iter().zip(&self.resident) {
            let grown = memory(master.pid(), "VmHWM").saturating_sub(*before);
            println!("{} grew by {} MiB at most, of {}", master.name(), grown >> 20, most >> 20);
            assert!(grown < most, "{} grew by {grown} bytes", master.name());
        }
    }
}

/// A figure of memory in the kernel's account of a process, in bytes: `VmRSS` is what it has in use, `VmHWM` the most that
/// it ever had.
fn memory(pid: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kib = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {figure} in {status}")) << 10
}

/// Lets this process, and those that it starts from now on, open as many files as the connections take, or as many as the
/// hard limit permits. How many connections that is; says so where they are too few to show what thousands do.
fn room_for_connections() -> usize {
    let wanted = (CONNECTIONS + OTHER_FILES) as u64;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < most) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })
            .expect("a limit that is allowed");
    }
    let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |current| current as usize);
    // A master takes its hard limit, and keeps a quarter of its connections for stores.
    let of_master = limit.maximum.map_or(usize::MAX, |maximum| maximum as usize);
    let connections = [files, of_master / 3 * 2].map(|files| files.saturating_sub(OTHER_FILES));
    let connections = connections.into_iter().fold(CONNECTIONS, usize::min);
    println!("{connections} of {CONNECTIONS} connections: each process may open {files} files");
    if connections < FEWEST_CONNECTIONS {
        passed_over(&format!(
            "thousands of connections: the hard limit of open files (`ulimit -Hn`) would have to be {} or more",
            FEWEST_CONNECTIONS + OTHER_FILES
        ));
    }
    connections
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").tcp_nodelay(true)
}

async fn connect(endpoint: Endpoint) -> Channel {
    endpoint.connect().await.expect("the leader takes one more connection")
}

/// Gets a key as often as one call may, over a connection that takes nothing of the reply. Only a refusal, which has no
/// body, ends that.
async fn get_and_stall(channel: Channel, caller: v1::Caller, answers: Arc<Answers>) {
    let keys = vec![Bytes::from_static(STALLED_KEY); mc_types::MAX_ITEMS];
    let request = v1::BatchGetRequest { caller: Some(caller), keys, ..v1::BatchGetRequest::default() };
    answers.note(&MasterClient::new(channel).batch_get(request).await);
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
        if !answers.note(&master.batch_put_start(request).await) {
            tokio::time::sleep(SLOW_DOWN).await;
        }
    }
}

/// Outcomes of the library's callers.
#[derive(Clone, Debug, Default)]
struct Met {
    stored: usize,
    exhausted: usize,
    late: usize,
    /// Errors, in words, that came long before the deadline and were no refusal.
    failed: Vec<String>,
    /// The last key that was stored.
    last: Option<String>,
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
        let options = PutOptions::default().with_deadline(PUT_DEADLINE);
        let asked = Instant::now();
        for (key, answer) in keys.iter().zip(client.batch_put(&puts, &options).await) {
            match answer {
                Ok(Put::Stored) => {
                    met.stored += 1;
                    met.last = Some(key.clone());
                }
                Ok(other) => panic!("a new key was put, and the answer is {other:?}"),
                // Refused until the deadline.
                Err(error) if error.code == Code::ResourceExhausted => met.exhausted += 1,
                // Begun, and too late: nothing is promised.
                Err(_) if asked.elapsed() + SLOW_DOWN >= PUT_DEADLINE => met.late += 1,
                Err(error) => met.failed.push(format!("after {:?}: {error}", asked.elapsed())),
            }
        }
        met.slowest = met.slowest.max(asked.elapsed());
    }
    met
}

/// Callers of the library that put until `end`; `flood` tells their keys from those of another flood.
fn put_with(
    clients: &[mc_client::Client],
    callers_of_each: usize,
    flood: &str,
    end: Instant,
) -> JoinSet<Met> {
    let mut callers = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for one in 0..callers_of_each {
            callers.spawn(put_batches(client.clone(), format!("{flood}/{number}/{one}"), end));
        }
    }
    callers
}

/// Prints what the callers of the library met; how many keys they stored.
fn stored(met: &[Met]) -> usize {
    let stored: usize = met.iter().map(|met| met.stored).sum();
    println!(
        "{stored} keys stored by {} callers of the library, {} refused, {} too late, {} failed, slowest {:?}",
        met.len(),
        met.iter().map(|met| met.exhausted).sum::<usize>(),
        met.iter().map(|met| met.late).sum::<usize>(),
        met.iter().map(|met| met.failed.len()).sum::<usize>(),
        met.iter().map(|met| met.slowest).max().unwrap_or_default()
    );
    stored
}

/// Asserts that the last key that each caller stored is there.
async fn what_was_stored_is_there(client: &mc_client::Client, met: &[Met]) {
    let keys: Vec<_> = met.iter().filter_map(|met| met.last.as_ref()).collect();
    for (key, found) in keys.iter().zip(client.batch_peek(&keys).await) {
        assert!(found.expect("the leader answers").is_there(), "{key} was stored, and is gone");
    }
}

async fn a_put_is_taken(client: &mc_client::Client, key: &str) {
    until_within(OVER, format!("a put is taken {key}"), async || {
        matches!(client.put(key, b"value").await, Ok(Put::Stored | Put::AlreadyExists))
    })
    .await;
}

/// One phase of a flood of puts: how many keys it stores.
async fn one_phase(clients: &[mc_client::Client], flood: &str) -> usize {
    let met = put_with(clients, FEW_CALLERS_OF_EACH, flood, Instant::now() + PHASE).join_all().await;
    let stored = stored(&met);
    assert!(met.iter().all(|met| met.stored > 0), "a majority takes puts of everybody");
    let failed: Vec<_> = met.iter().flat_map(|met| &met.failed).collect();
    assert!(failed.is_empty(), "{} puts failed, the first {}", failed.len(), failed[0]);
    what_was_stored_is_there(&clients[0], &met).await;
    stored
}

/// A flood of puts with all masters well, until all have all of it: how many keys it stores.
async fn undisturbed_flood(cluster: &Cluster, clients: &[mc_client::Client]) -> usize {
    let stored = one_phase(clients, "undisturbed").await;
    let leader = cluster.leader().await;
    let committed = cluster.status(leader).await.expect("the leader answers").committed;
    for master in 0..cluster.masters.len() {
        catches_up(cluster, master, committed).await;
    }
    stored
}

/// A flood of puts while one follower takes little or nothing of them, which does not hold the others back from storing
/// what they stored `undisturbed`, or not by much; up to where the leader has committed then.
async fn flood_past_a_follower(
    cluster: &Cluster,
    leader: usize,
    clients: &[mc_client::Client],
    undisturbed: usize,
) -> u64 {
    let stored = one_phase(clients, "past").await;
    println!("{PHASE:?} each: {undisturbed} keys stored with all masters well, {stored} past the follower");
    assert!(
        stored * ONE_IN >= undisturbed,
        "the follower holds the others back: {stored} keys are stored, {undisturbed} in the same time without that"
    );
    cluster.status(leader).await.expect("the leader answers").committed
}

async fn catches_up(cluster: &Cluster, master: usize, to: u64) {
    until(format!("{} has caught up", cluster.masters[master].name()), async || {
        cluster.status(master).await.is_some_and(|status| status.applied >= to)
    })
    .await;
}

async fn few_clients(cluster: &Cluster) -> Vec<mc_client::Client> {
    let mut clients = Vec::new();
    for _ in 0..FEW_CLIENTS {
        clients.push(cluster.client().await);
    }
    clients
}

/// Far more callers than a master takes proposals of at once, thousands of them on connections of their own. What is too
/// much is refused, memory is bounded, and nobody takes the leader for dead because request work keeps it from its
/// heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_proposals_is_refused_in_part_and_costs_neither_leadership_nor_memory() {
    let _alone = FLOODS.lock().await;
    let connections = room_for_connections();
    let cluster = Cluster::builder().faulty().segment("1gb").start().await;
    let mut faults = Faults::new();
    let connected = faults.plan("all connections are open at the leader");
    let refused = faults.plan("callers are answered RESOURCE_EXHAUSTED");
    let leader = cluster.leader().await;
    let before = Before::of(&cluster).await;

    let endpoint = endpoint(cluster.master_address(leader));
    let channels = futures::stream::iter((0..connections).map(|_| connect(endpoint.clone())));
    let channels: Vec<Channel> = channels.buffer_unordered(CONNECTING).collect().await;
    // A connection is open at this end when the kernel has queued it; the leader takes it from there.
    until_within(OVER, "all connections are open at the leader", async || {
        cluster.masters[leader].descriptors() >= connections
    })
    .await;
    connected.happened();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client().await);
    }

    let (caller, answers) = (by_hand::caller(), Arc::new(Answers::default()));
    let end = Instant::now() + FLOOD;
    let mut starters = JoinSet::new();
    for (number, channel) in channels.into_iter().enumerate() {
        starters.spawn(start_puts(channel, caller.clone(), number, end, answers.clone()));
    }
    let callers = put_with(&clients, CALLERS_OF_EACH, "flood", end);
    // Nothing is committed for a moment, whatever this machine's speed: proposals pile up to the bound.
    let followers = cluster.links().other_masters(leader);
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(true));
    until_within(OVER, "callers are refused", async || answers.exhausted.load(Ordering::Relaxed) > 0).await;
    followers.iter().for_each(|master| cluster.faulty(*master).stick_syncs(false));
    refused.happened();
    let met = callers.join_all().await;
    starters.join_all().await;

    println!("over {connections} connections of their own: {answers:?}");
    let stored = stored(&met);
    assert!(stored > 0 && answers.taken.load(Ordering::Relaxed) > 0, "what is not too much is taken");
    let counted = cluster.metric(leader, "mc_master_proposals_refused_total").await.unwrap_or(0.0);
    assert!(counted >= 1.0, "the refusals are counted");

    before.assert_outlived(&cluster, GROWTH + connections as u64 * GROWTH_OF_EACH).await;
    let client = cluster.client().await;
    a_put_is_taken(&client, "after the flood").await;
    what_was_stored_is_there(&client, &met).await;
}

/// Many large replies that nobody reads. They are kept up to a bound, then reads are refused, and puts go on; reads do, too,
/// once those who did not read are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_who_do_not_read_cost_reads_and_neither_leadership_nor_memory() {
    let _alone = FLOODS.lock().await;
    let cluster = Cluster::builder().start().await;
    let mut faults = Faults::new();
    let refused = faults.plan("gets are refused because others' replies are not read");
    let client = cluster.client().await;
    assert_eq!(client.put(STALLED_KEY, b"value").await.expect("a put"), Put::Stored);
    let leader = cluster.leader().await;
    let before = Before::of(&cluster).await;

    let mut channels = Vec::new();
    for _ in 0..STALLED_CONNECTIONS {
        // Nothing of a reply but its headers is sent into such a window.
        let endpoint = endpoint(cluster.master_address(leader)).initial_stream_window_size(0_u32);
        channels.push(connect(endpoint).await);
    }
    let (caller, answers) = (by_hand::caller(), Arc::new(Answers::default()));
    let mut readers = JoinSet::new();
    for _ in 0..STALLED_GETS_OF_EACH {
        for channel in &channels {
            readers.spawn(get_and_stall(channel.clone(), caller.clone(), answers.clone()));
        }
        until_within(OVER, "the leader has answered or refused them", async || {
            let worked_on = cluster.metric(leader, "mc_master_rpc_seconds_count{rpc=\"batch_get\"}").await;
            let ended = answers.exhausted.load(Ordering::Relaxed) + answers.failed.load(Ordering::Relaxed);
            worked_on.unwrap_or(0.0) as u64 + ended >= readers.len() as u64
        })
        .await;
    }
    println!("{} gets by readers who do not read: {answers:?}", readers.len());
    if cluster.metric(leader, "mc_master_requests_refused_total").await.unwrap_or(0.0) >= 1.0 {
        refused.happened();
    }
    assert!(answers.exhausted.load(Ordering::Relaxed) > 0, "readers hear why they are refused");
    a_put_is_taken(&client, "while replies wait").await;

    readers.shutdown().await;
    drop(channels);
    until_within(OVER, "a get is answered again", async || {
        matches!(client.get(STALLED_KEY).await, Ok(Some(_)))
    })
    .await;
    a_put_is_taken(&client, "after the readers").await;
    before.assert_outlived(&cluster, STALLED_GROWTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_puts_goes_on_past_a_follower_that_stands_still() {
    let _alone = FLOODS.lock().await;
    let cluster = Cluster::builder().segment("1gb").start().await;
    let mut faults = Faults::new();
    let stands_still = faults.plan("a follower stands still");
    let clients = few_clients(&cluster).await;
    let undisturbed = undisturbed_flood(&cluster, &clients).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % cluster.masters.len();
    let before = Before::of(&cluster).await;

    cluster.masters[follower].pause().await;
    stands_still.happened();
    let committed = flood_past_a_follower(&cluster, leader, &clients, undisturbed).await;
    before.assert_outlived(&cluster, GROWTH).await;

    cluster.masters[follower].resume();
    catches_up(&cluster, follower, committed).await;
    a_put_is_taken(&clients[0], "after the flood").await;
    before.assert_outlived(&cluster, GROWTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_puts_goes_on_past_a_follower_behind_a_narrow_link() {
    let _alone = FLOODS.lock().await;
    let cluster = Cluster::builder().faulty().segment("1gb").start().await;
    let mut faults = Faults::new();
    let left_behind = faults.plan("a follower lacks more than half of the flood");
    let clients = few_clients(&cluster).await;
    let undisturbed = undisturbed_flood(&cluster, &clients).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % cluster.masters.len();
    let before = Before::of(&cluster).await;

    let links = cluster.links();
    links.between(&[leader], &[follower], Link::Narrow { bytes_per_second: NARROW });
    let committed = flood_past_a_follower(&cluster, leader, &clients, undisturbed).await;
    let applied = cluster.status(follower).await.expect("the follower answers").applied;
    println!("of entries {} to {committed} the follower has up to {applied}", before.leader.committed);
    if applied < before.leader.committed.midpoint(committed) {
        left_behind.happened();
    }
    before.assert_outlived(&cluster, GROWTH).await;

    // Cut the connections: bytes that are still queued on the narrow link would arrive slowly.
    let open = links.open();
    links.between(&[leader], &[follower], Link::Cut);
    until("the connections between them have ended", async || links.open() < open).await;
    links.heal();
    catches_up(&cluster, follower, committed).await;
    a_put_is_taken(&clients[0], "after the flood").await;
    before.assert_outlived(&cluster, GROWTH).await;
}
