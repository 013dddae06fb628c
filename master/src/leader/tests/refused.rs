//! Evictions that a leader can't write for a while.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use mc_index::{Command, KeyHash, Op, PutEndItem, PutStartItem, Settings, Stamp};
use mc_log::Proposal;
use mc_raft::testing::Pool;
use mc_raft::{RaftTiming, SnapshotLimits};
use mc_testkit::until;
use mc_types::{ClusterTime, PutId};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::mount;
use super::upgrade::services;
use crate::leader::{LeaseMode, keep_room};

/// Objects that fill the pool, of which a few are to be evicted.
const OBJECTS: u64 = 100;

fn key(n: u64) -> Bytes {
    n.to_string().into()
}

/// Fills a pool that keeps 92 objects once it has more than 95.
fn filling() -> [Op; 4] {
    // No read keeps an object from being evicted for longer than the test waits, and no store is suspect.
    let settings = Settings {
        max_objects: OBJECTS,
        read_lease_ms: 1,
        store_suspect_ms: 600_000,
        store_ttl_ms: 600_000,
        ..Settings::default()
    };
    let id = |n: u64| PutId(n.into());
    let start = |n| PutStartItem::new(id(n), &key(n), 64, ClusterTime(60_000));
    let end = |n| PutEndItem::new(id(n), KeyHash::of("", &key(n)), 0);
    [
        Op::MountStore(mount(1, &[], &[1 << 20])),
        Op::SetSettings(settings),
        Op::PutStart { tenant: String::new(), items: (0..OBJECTS).map(start).collect() },
        Op::PutEnd { items: (0..OBJECTS).map(end).collect() },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_whose_eviction_is_refused_are_read_and_evicted_later() {
    // Given a leader of a full pool whose disk is behind, so that it refuses all proposals.
    let mut pool = Pool::formed_with(1, SnapshotLimits::default(), RaftTiming::LAN).await;
    let leads = pool.leader().await;
    let term = pool.node(leads).presumed_term().unwrap().0;
    for op in filling() {
        let command = Command { stamp: Stamp { term, ..Stamp::default() }, op };
        let last = pool.propose(Proposal(command.encode())).await;
        pool.converge(last).await;
    }
    let (unwritten, proposed) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicUsize::new(0)));
    // The first proposal waits until the test lets it go.
    let (let_go, go) = mpsc::channel::<()>();
    let behind = {
        let (unwritten, proposed, go) = (unwritten.clone(), proposed.clone(), Mutex::new(go));
        move || {
            proposed.fetch_add(1, Ordering::Relaxed);
            // Another thread takes over this worker's tasks and timers meanwhile.
            let _let_go_by_a_drop = tokio::task::block_in_place(|| go.lock().recv());
            unwritten.load(Ordering::Relaxed)
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let leader = services(pool.take(leads), &dir, Box::new(behind), stop.clone());
    let objects = || leader.coordinator.read(|applied| applied.state.objects());
    assert_eq!(objects(), OBJECTS);

    // When it proposes to evict some of them, and a reader waits for the outcome.
    let room = tokio::spawn(keep_room(leader.objects.clone()));
    until("objects are chosen", async || proposed.load(Ordering::Relaxed) > 0).await;
    let keys: Vec<_> = (0..OBJECTS).map(key).collect();
    let (keys, all): (Vec<&[u8]>, _) = (keys.iter().map(|key| &key[..]).collect(), vec![Ok(64); keys.len()]);
    let read = || leader.objects.exist("", &keys, &[OBJECTS as usize], LeaseMode::Grant);
    let mut reader = pin!(read());
    tokio::select! {
        biased;
        found = &mut reader => panic!("some are being evicted: {found:?}"),
        () = std::future::ready(()) => {}
    }
    drop(let_go);

    // Then they are read as soon as the eviction is refused.
    assert_eq!(reader.await.unwrap(), all);

    // And after as many refusals as it takes to choose each of them.
    until("evictions were refused", async || proposed.load(Ordering::Relaxed) > 20).await;
    assert_eq!(read().await.unwrap(), all);

    // And they go once the disk takes entries again.
    unwritten.store(0, Ordering::Relaxed);
    until("the pool is below its watermark", async || objects() <= OBJECTS * 95 / 100).await;
    stop.cancel();
    room.await.unwrap();
}
