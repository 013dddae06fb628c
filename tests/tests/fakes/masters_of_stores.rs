//! As a store sees them.

use bytes::Bytes;
use mc_proto::v1;
use mc_tests::Cluster;
use mc_types::{Code, SegmentEpoch, StoreId};

use crate::store_fakes::FakeCluster;
use crate::{Asked, refusal};

const STORE: StoreId = StoreId(0xfeed);

fn mount(caller: v1::Caller, epoch: SegmentEpoch) -> v1::MountStoreRequest {
    v1::MountStoreRequest {
        caller: Some(caller),
        store_id: Bytes::copy_from_slice(&STORE.to_bytes()),
        name: "by hand".into(),
        epoch: Bytes::copy_from_slice(&epoch.to_bytes()),
        grant_key: vec![7; 32].into(),
        endpoints: vec![v1::Endpoint {
            transport: "tcp".into(),
            address: "127.0.0.1:1".into(),
            ..Default::default()
        }],
        segment_bytes: vec![16 << 20],
        ..Default::default()
    }
}

/// The answer to one heartbeat of a stream of its own.
async fn beat(asked: &Asked, epoch: SegmentEpoch, sequence: u64) -> v1::StoreHeartbeatReply {
    let beat = v1::StoreHeartbeat {
        caller: asked.caller(),
        store_id: Bytes::copy_from_slice(&STORE.to_bytes()),
        epoch: Bytes::copy_from_slice(&epoch.to_bytes()),
        sequence,
        ..Default::default()
    };
    // The stream stays open: its end could be taken for that of the store.
    let beats = futures::StreamExt::chain(futures::stream::iter([beat]), futures::stream::pending());
    let mut replies = asked.master.clone().heartbeat(beats).await.unwrap().into_inner();
    replies.message().await.unwrap().expect("an answer")
}

async fn check(leader: &str, follower: &str) {
    let mut asked = Asked::at(leader).await;
    let other = Asked::at(follower).await;
    let (epoch, unknown) = (SegmentEpoch(rand_epoch()), SegmentEpoch(rand_epoch()));
    for (stranger, code) in asked.strangers() {
        assert_eq!(refusal(asked.master.mount_store(mount(stranger, epoch)).await).0, code);
    }
    let (code, named) = refusal(other.master.clone().mount_store(mount(other.caller.clone(), epoch)).await);
    assert_eq!((code, named.unwrap().node_id), (Code::NotLeader, asked.caller.node_id.clone()));

    let mounted = asked.master.mount_store(mount(asked.caller.clone(), epoch)).await.unwrap().into_inner();
    assert!(mounted.heartbeat_ms > 0 && mounted.cluster_id == asked.caller.cluster_id, "{mounted:?}");
    let reply = beat(&asked, epoch, 41).await;
    assert_eq!((reply.sequence, reply.mounted, reply.dead), (41, true, false));
    assert!(reply.cluster_id == asked.caller.cluster_id && reply.term > 0, "{reply:?}");
    let reply = beat(&asked, unknown, 1).await;
    assert_eq!((reply.mounted, reply.dead), (false, false), "an epoch that was never mounted");
    // The same mount again.
    asked.master.mount_store(mount(asked.caller.clone(), epoch)).await.unwrap();

    let unmount = v1::UnmountStoreRequest {
        caller: asked.caller(),
        store_id: Bytes::copy_from_slice(&STORE.to_bytes()),
        epoch: Bytes::copy_from_slice(&epoch.to_bytes()),
    };
    asked.master.unmount_store(unmount).await.unwrap();
    assert!(!beat(&asked, epoch, 1).await.mounted, "it was unmounted");
    let (code, _) = refusal(asked.master.mount_store(mount(asked.caller.clone(), epoch)).await);
    assert_eq!(code, Code::StoreEpochDead, "an epoch that was unmounted is not mounted again");
}

/// Another one for each run: real masters may remember.
fn rand_epoch() -> u64 {
    mc_types::PutId::random().0 as u64 | 1
}

#[tokio::test]
async fn fake_masters_answer_stores_as_masters_do() {
    let fake = FakeCluster::start(2);
    let [leader, follower] = fake.addresses() else { unreachable!() };
    for address in [leader, follower] {
        let listens = async || tokio::net::TcpStream::connect(address).await.is_ok();
        mc_tests::until("the fake listens", listens).await;
    }
    check(leader, follower).await;

    let cluster = Cluster::builder().start().await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    check(cluster.master_address(leader), cluster.master_address(follower)).await;
}
