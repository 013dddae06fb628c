//! Memory that outlives its process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use mc_store::{MemoryStart, StartError};
use mc_store_server::{Server, StoreArgs};
use mc_testkit::until;
use mc_transfer::{Peer, ReadOp, Seal, TcpOptions, TcpTransport, Transport as _, WriteOp};
use mc_types::{Access, ByteSize, Code, GrantKey, GrantedRange, SegmentEpoch};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::common::{Event, FakeCluster, SEGMENT, config, grant, http, start, try_start};

const MIB: u64 = 1 << 20;
const WITHIN: Duration = Duration::from_secs(2);
/// A range that was allocated before any mount here.
const RANGE: GrantedRange = GrantedRange { segment: 0, offset: 64, len: 4096, index: 7 };

/// A data directory, and one for the memory on a tmpfs.
struct Dirs {
    data: TempDir,
    memory: TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { data: tempfile::tempdir().unwrap(), memory: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn memory(&self) -> &Path {
        self.memory.path()
    }

    fn args(&self, cluster: &FakeCluster) -> StoreArgs {
        StoreArgs { segment_dir: Some(self.memory().into()), ..config(cluster.addresses(), self.data.path()) }
    }

    /// Starts a store, and waits until it is mounted.
    async fn start(&self, cluster: &FakeCluster) -> Server {
        ready(start(self.args(cluster)).await).await
    }
}

async fn ready(store: Server) -> Server {
    until("mounted", async || store.store().ready()).await;
    store
}

/// The epoch, the incarnation and the key of each mount.
fn mounts(cluster: &FakeCluster) -> Vec<(SegmentEpoch, Option<String>, GrantKey)> {
    let of = |event| match event {
        Event::Mount { epoch, incarnation, key, .. } => (epoch, incarnation, key),
        _ => unreachable!("a mount"),
    };
    cluster.mounts().into_iter().map(of).collect()
}

/// The sizes in the last mount.
fn sizes(cluster: &FakeCluster) -> Vec<u64> {
    let Some(Event::Mount { segments, .. }) = cluster.mounts().pop() else { panic!("a mount") };
    segments
}

/// A client of a store under the key of its last mount.
struct Client(Peer, GrantKey);

impl Client {
    fn of(store: &Server, cluster: &FakeCluster) -> Self {
        let Some(Event::Mount { key, tcp, .. }) = cluster.mounts().pop() else { panic!("a mount") };
        let peer = Peer {
            cluster: cluster.agreed().cluster,
            store: store.store().id(),
            epoch: store.store().epoch(),
            endpoints: vec![mc_transfer::PeerEndpoint {
                transport: "tcp".into(),
                address: tcp,
                attributes: vec![],
            }],
        };
        Self(peer, key)
    }

    async fn write(&self, range: GrantedRange, byte: u8) -> Result<(), String> {
        let bytes = [byte; 4096];
        let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
        let grant = grant(&self.0, &self.1, Access::Write, range);
        let by = Instant::now() + Duration::from_secs(10);
        let written =
            TcpTransport::new(TcpOptions::default()).write(&self.0, &grant, &ops, Seal::Yes, by).await;
        written[0].clone().map(|_| ()).map_err(|error| error.to_string())
    }

    async fn read(&self, range: GrantedRange) -> Result<u8, String> {
        let mut bytes = vec![0; 4096];
        let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
        let grant = grant(&self.0, &self.1, Access::Read, range);
        let by = Instant::now() + Duration::from_secs(10);
        let read = TcpTransport::new(TcpOptions::default()).read(&self.0, &grant, &mut ops, by).await;
        read[0].clone().map_err(|error| error.to_string())?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "of one write");
        Ok(bytes[0])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_process_serves_what_the_last_one_has_left_under_another_key() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    let store = dirs.start(&cluster).await;
    let before = Client::of(&store, &cluster);
    before.write(RANGE, 9).await.unwrap();
    let events = cluster.agreed().events.len();
    store.stop(WITHIN).await;
    let unmounts =
        cluster.agreed().events[events..].iter().any(|event| matches!(event, Event::Unmount { .. }));
    assert!(!unmounts, "the masters keep what it holds");

    let store = dirs.start(&cluster).await;
    let told = mounts(&cluster);
    assert_eq!(told[1].0, told[0].0);
    assert_eq!([&told[0].1, &told[1].1].map(Option::as_deref), [None, Some("2")]);
    assert!(told[0].2 != told[1].2);
    let client = Client::of(&store, &cluster);
    assert_eq!(client.read(RANGE).await, Ok(9));
    let why = Client(client.0.clone(), before.1).read(RANGE).await.unwrap_err();
    assert!(why.contains("grant"), "{why}");
    // The put that has sealed it can't write there again, though this process knows of no seal.
    let why = client.write(RANGE, 8).await.unwrap_err();
    assert!(why.contains("restarted"), "{why}");
    assert_eq!(client.read(RANGE).await, Ok(9));
    let later = GrantedRange { index: cluster.agreed().order + 1, ..RANGE };
    client.write(later, 8).await.unwrap();
    assert_eq!(client.read(later).await, Ok(8));
    let (_, metrics) = http("GET", store.http_address(), "/metrics").await;
    assert!(metrics.contains("mc_store_start{how=\"warm\"} 1"), "{metrics}");
    assert!(metrics.contains("mc_store_start{how=\"new\"} 0"), "{metrics}");

    // As killed: nothing is said to anybody.
    drop(store);
    cluster.agreed().order += 1 << 32;
    let store = dirs.start(&cluster).await;
    assert_eq!(mounts(&cluster)[2].1.as_deref(), Some("3"));
    assert_eq!(Client::of(&store, &cluster).read(later).await, Ok(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_the_masters_refuse_is_emptied_and_mounted_under_a_new_epoch() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    let mut store = dirs.start(&cluster).await;
    let wrong: [(&str, &dyn Fn()); 5] = [
        ("its epoch is dead", &|| {
            let last = mounts(&cluster).last().unwrap().0;
            cluster.agreed().dead.insert(last);
        }),
        ("the leader is of an older build", &|| cluster.agreed().order = 0),
        ("the index was restored from a copy", &|| cluster.agreed().order = RANGE.index),
        ("the index was restored from an older copy, and is in a newer term", &|| {
            let mut agreed = cluster.agreed();
            (agreed.order, agreed.time_ms) = (9 << 32, 0);
        }),
        ("it has other segments there", &|| cluster.agreed().mounts_refused = Some(Code::InvalidParams)),
    ];
    for (what, break_it) in wrong {
        {
            let mut agreed = cluster.agreed();
            (agreed.order, agreed.time_ms, agreed.mounts_refused) = (8 << 32, 90_000, None);
        }
        Client::of(&store, &cluster).write(GrantedRange { index: 8 << 32 | 7, ..RANGE }, 9).await.unwrap();
        // The time of a mount is learned by then.
        let epoch = store.store().epoch();
        drop(store);
        break_it();
        store = start(dirs.args(&cluster)).await;
        until("another epoch", async || store.store().epoch() != epoch).await;
        cluster.agreed().mounts_refused = None;
        store = ready(store).await;
        let (now, incarnation, _) = mounts(&cluster).pop().unwrap();
        assert_eq!((now, incarnation), (store.store().epoch(), None), "{what}");
        let report = store.store().status().report();
        assert_eq!(
            (report.start, report.dead_epochs),
            (Some(MemoryStart::Warm), 1),
            "{what}: it was taken up first"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_that_came_and_went_stay_so_and_more_memory_is_one_segment_more() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    let store = dirs.start(&cluster).await;
    assert_eq!(store.store().segments().mount(ByteSize(3 * MIB), WITHIN).await.unwrap(), 1);
    drop(store);
    let store = dirs.start(&cluster).await;
    assert_eq!(sizes(&cluster), [SEGMENT, 3 * MIB], "as many as were asked for before");
    store.store().segments().unmount(0, WITHIN).await.unwrap();
    until("its memory is freed", async || !dirs.memory().join("segment-0").exists()).await;
    drop(store);
    let store = dirs.start(&cluster).await;
    assert_eq!(sizes(&cluster), [0, 3 * MIB], "the flags ask for nothing new");
    drop(store);

    let with = |mib: u64| StoreArgs { segment: vec![ByteSize(mib * MIB)], ..dirs.args(&cluster) };
    let store = ready(start(with(5)).await).await;
    assert_eq!(sizes(&cluster), [0, 3 * MIB, 2 * MIB]);
    assert_eq!(store.store().status().report().capacity, ByteSize(5 * MIB));
    drop(store);
    let refused = try_start(with(4)).await.unwrap_err();
    let why = mc_store_server::with_flags(&refused);
    assert!(matches!(refused, StartError::Smaller { .. }), "{why}");
    assert!(why.starts_with("--segment: ") && why.contains("--release") && why.contains("5MiB"), "{why}");
    let all: Vec<_> = mounts(&cluster).into_iter().map(|(epoch, ..)| epoch).collect();
    assert!(all.iter().all(|epoch| *epoch == all[0]), "of one epoch");
}

/// A segment that the store was told to unmount may be unmounted already when the store dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_was_being_unmounted_is_not_mounted_again() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    let store = dirs.start(&cluster).await;
    store.store().segments().mount(ByteSize(3 * MIB), WITHIN).await.unwrap();
    cluster.agreed().mounts_refused = Some(Code::NoLeader);
    store.store().segments().unmount(1, Duration::from_millis(20)).await.unwrap_err();
    drop(store);
    cluster.agreed().mounts_refused = None;
    drop(dirs.start(&cluster).await);
    assert_eq!(sizes(&cluster), [SEGMENT, 0]);
    assert!(!dirs.memory().join("segment-1").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_as_it_was_left_is_not_served() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    let path = |name: &str| dirs.memory().join(name);
    drop(dirs.start(&cluster).await);
    let segment = path("segment-0");
    let copied = || {
        fs::copy(&segment, path("copy")).unwrap();
        fs::rename(path("copy"), &segment).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 5] = [
        ("changed", &copied),
        ("changed", &|| fs::remove_file(&segment).unwrap()),
        ("changed", &|| {
            let file = fs::File::options().write(true).open(&segment).unwrap();
            file.set_len(0).unwrap();
            file.set_len(SEGMENT).unwrap();
        }),
        ("unreadable", &|| {
            let page = fs::read(path("page")).unwrap();
            fs::write(path("page"), vec![1; page.len()]).unwrap();
        }),
        ("new", &|| fs::remove_file(path("page")).unwrap()),
    ];
    for (how, change) in changes {
        let epoch = mounts(&cluster).pop().unwrap().0;
        change();
        let store = dirs.start(&cluster).await;
        let (now, incarnation, _) = mounts(&cluster).pop().unwrap();
        assert!(now != epoch && incarnation.is_none(), "{how}");
        let (_, metrics) = http("GET", store.http_address(), "/metrics").await;
        assert!(metrics.contains(&format!("mc_store_start{{how=\"{how}\"}} 1")), "{how}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_can_not_keep_memory_is_refused_by_name() {
    let (cluster, dirs) = (FakeCluster::start(1), Dirs::new());
    drop(dirs.start(&cluster).await);
    let refused = async |args: StoreArgs| {
        let why = try_start(args).await.unwrap_err();
        let why = mc_store_server::with_flags(&why);
        assert!(why.starts_with("--segment-dir: "), "{why}");
        why
    };
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let why = refused(StoreArgs { segment_dir: Some(on_disk.path().into()), ..dirs.args(&cluster) }).await;
    assert!(why.contains("tmpfs"), "{why}");
    let other = tempfile::tempdir().unwrap();
    let why = refused(StoreArgs { data_dir: other.path().into(), ..dirs.args(&cluster) }).await;
    assert!(why.contains("--release") && why.contains(dirs.memory().to_str().unwrap()), "{why}");
    drop(dirs.start(&cluster).await);
    assert_eq!(mounts(&cluster)[1].1.as_deref(), Some("2"), "nothing was lost by that");
}
