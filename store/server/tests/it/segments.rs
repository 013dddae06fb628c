//! Segments that come and go while the store serves.

use std::time::Duration;

use mc_store::SegmentError;
use mc_testkit::until;
use mc_transfer::{Seal, TcpOptions, TcpTransport, Transport as _, WriteOp};
use mc_types::{Access, ByteSize, Code, GrantedRange};
use tokio::time::Instant;

use crate::common::{Event, FakeCluster, grant, mounted, peer_of};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn segments_are_mounted_served_and_released() {
    let cluster = FakeCluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let store = mounted(&cluster, dir.path()).await;
    let segments = store.store().segments();
    let lists = || -> Vec<Vec<u64>> {
        let of = |event| match event {
            Event::Mount { segments, .. } => segments,
            _ => unreachable!("a mount"),
        };
        cluster.mounts().into_iter().map(of).collect()
    };
    assert_eq!(segments.mount(ByteSize(3 * MIB), LONG).await.unwrap(), 1);
    assert_eq!(lists(), [vec![2 * MIB], vec![2 * MIB, 3 * MIB]]);
    assert_eq!(store.store().status().report().capacity, ByteSize(5 * MIB));

    let (peer, key) = peer_of(&store, &cluster);
    let transport = TcpTransport::new(TcpOptions::default());
    let write = async |segment, index| {
        let range = GrantedRange { segment, offset: 0, len: 4096, index };
        let grant = grant(&peer, &key, Access::Write, range);
        let ops = [WriteOp { range: 0, offset: 0, from: vec![(&[7; 4096]).into()] }];
        let by = Instant::now() + Duration::from_secs(10);
        transport.write(&peer, &grant, &ops, Seal::No, by).await.remove(0)
    };
    for (segment, index) in [(0, 1), (1, 2)] {
        write(segment, index).await.unwrap();
    }
    let fence = store.store().status().report().fence_bytes;
    assert!(fence > 0);

    segments.unmount(0, LONG).await.unwrap();
    assert_eq!(lists().last(), Some(&vec![0, 3 * MIB]));
    assert_eq!(segments.list(), [0, 3 * MIB]);
    let report = || store.store().status().report();
    assert_eq!(report().capacity, ByteSize(3 * MIB));
    until("its record of writes is gone", async || report().fence_bytes < fence).await;
    let refused = write(0, 3).await.unwrap_err().to_string();
    assert!(refused.contains("not in this store's memory"), "{refused}");
    write(1, 4).await.unwrap();
    assert!(matches!(segments.unmount(0, LONG).await, Err(SegmentError::Unknown(0))));
    assert!(matches!(segments.unmount(1, LONG).await, Err(SegmentError::Last(1))));

    // Without a leader nothing is confirmed; it is done as soon as there is one.
    cluster.agreed().leader = None;
    assert!(matches!(segments.mount(ByteSize(MIB), SOON).await, Err(SegmentError::Pending { .. })));
    assert!(matches!(segments.unmount(1, SOON).await, Err(SegmentError::Pending { .. })));
    assert!(matches!(segments.unmount(1, SOON).await, Err(SegmentError::Pending { number: 1, .. })), "again");
    assert_eq!(segments.list(), [0, 3 * MIB, MIB], "no memory is released before the masters know it");
    cluster.agreed().leader = Some(0);
    until("the change is mounted", async || lists().last() == Some(&vec![0, 0, MIB])).await;
    until("the memory is released", async || segments.list() == [0, 0, MIB]).await;

    // Given up for dead, the memory is offered under a new epoch as it is now.
    let epoch = store.store().epoch();
    cluster.agreed().dead.insert(epoch);
    until("there is a new epoch", async || store.store().epoch() != epoch && store.store().ready()).await;
    assert_eq!(lists().last(), Some(&vec![0, 0, MIB]));
    assert_eq!(segments.mount(ByteSize(2 * MIB), LONG).await.unwrap(), 3);
    store.stop(Duration::ZERO).await;
    assert!(matches!(segments.mount(ByteSize(MIB), LONG).await, Err(SegmentError::Stopped)));
    assert!(segments.list().is_empty(), "a handle that lives on keeps no memory");
}

/// A leader that can't commit a mount, because its disk is slow for example, still believes the store.
#[tokio::test]
async fn a_store_whose_change_is_refused_beats_on() {
    let cluster = FakeCluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let store = mounted(&cluster, dir.path()).await;
    cluster.agreed().mounts_refused = Some(Code::ResourceExhausted);
    let segments = store.store().segments();
    assert!(matches!(segments.mount(ByteSize(MIB), SOON).await, Err(SegmentError::Pending { .. })));
    let streams = cluster.agreed().streams;
    let beats = cluster.beats(0);
    until("it beats on", async || cluster.beats(0) > beats + 20).await;
    assert_eq!(cluster.agreed().streams, streams, "on the same stream");
    cluster.agreed().mounts_refused = None;
    let mounted = |event: &Event| matches!(event, Event::Mount { segments, .. } if segments.len() == 2);
    until("the change is mounted", async || cluster.count(mounted) > 0).await;
}
