use std::time::Duration;

use bytes::Bytes;
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::v1;
use mc_tests::{Cluster, Faults, until, value};
use mc_transfer::{Peer, PeerEndpoint, TcpOptions, TcpTransport, TransferError, Transport as _, WriteOp};
use mc_types::{ClientId, ClusterId, Code, PutId, SegmentEpoch, StoreId};
use tokio::time::Instant;

const SIZE: usize = 3_000_000;

fn raw(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

#[tokio::test]
async fn a_writer_that_wakes_up_after_its_slot_was_reused_does_no_damage() {
    let cluster = Cluster::builder().masters(1).segment("64mb").start().await;
    let mut faults = Faults::new();
    let fault = faults.plan("a write under an ended put, to a slot that another object has now");

    // A client that starts a put, and is stopped before it writes: its calls, made by hand.
    let channel = TcpNetwork.channel(cluster.master_address(0), ChannelOptions::default()).unwrap();
    let mut sleeper = v1::master_client::MasterClient::new(channel);
    let hello = v1::HelloRequest { version_min: 1, version_max: 1, software: "test".into() };
    let hello = sleeper.hello(hello).await.unwrap().into_inner();
    let caller = v1::Caller {
        cluster_id: hello.cluster_id.clone(),
        node_id: hello.node_id.clone(),
        client_id: raw(&ClientId::random().to_bytes()),
        version_min: 1,
        version_max: 1,
    };
    let put_id = raw(&PutId::random().to_bytes());
    let item = v1::PutStartItem {
        put_id: put_id.clone(),
        key: raw(b"sleeper"),
        size: SIZE as u64,
        deadline_ms: 300,
        ..v1::PutStartItem::default()
    };
    let start =
        v1::BatchPutStartRequest { caller: Some(caller.clone()), items: vec![item], ..Default::default() };
    let started = sleeper.batch_put_start(start).await.unwrap().into_inner();
    let (place, granted) = (started.results[0].replicas[0].clone(), started.grants[0].clone());

    // The put ends at its deadline, and its slot goes to somebody else.
    let client = cluster.client().await;
    let mut puts = 0;
    let mut owner = String::new();
    until("the slot is reused", async || {
        puts += 1;
        owner = format!("owner-{puts}");
        // The pool may be full of the tries before.
        let stored = client.put(&owner, &value(&owner, 1, SIZE)).await.is_ok();
        let now = client.admin().lookup(&owner).await.unwrap().filter(|_| stored);
        let reused = now.is_some_and(|now| now.replicas[0].offset == place.offset);
        if stored && !reused {
            client.remove(&owner, true).await.unwrap();
        }
        reused
    })
    .await;

    // It wakes up, within the life of its grant, and writes.
    let peer = Peer {
        cluster: ClusterId::from_bytes(&hello.cluster_id).unwrap(),
        store: StoreId::from_bytes(&granted.store_id).unwrap(),
        epoch: SegmentEpoch::from_bytes(&granted.epoch).unwrap(),
        endpoints: vec![PeerEndpoint {
            transport: "tcp".into(),
            address: granted.endpoints[0].address.clone(),
            attributes: vec![],
        }],
    };
    let garbage = vec![0xee; SIZE];
    let ops = [WriteOp { range: place.range, offset: 0, from: vec![&garbage] }];
    let deadline = Instant::now() + Duration::from_secs(10);
    let transport = TcpTransport::new(TcpOptions::default());
    let written = transport.write(&peer, &granted.grant, &ops, deadline).await;
    assert!(matches!(&written[0], Err(TransferError::Refused { .. })), "{written:?}");
    fault.happened();
    assert!(client.get(&owner).await.unwrap().as_deref() == Some(&value(&owner, 1, SIZE)[..]), "damaged");

    let end = v1::PutEndItem { put_id, key: raw(b"sleeper"), ..v1::PutEndItem::default() };
    let end = v1::BatchPutEndRequest { caller: Some(caller), items: vec![end], ..Default::default() };
    let ended = sleeper.batch_put_end(end).await.unwrap().into_inner();
    assert_eq!(ended.results[0].code, Code::PutGone as i32, "it is told that its put is gone");
    assert_eq!(client.get("sleeper").await.unwrap(), None);
    faults.assert_happened();
}
