//! Bytes go in and out under grants, health tells of it, and a damaged byte is never passed on as good.

use std::time::Duration;

use mc_store::StartError;
use mc_store_server::StoreArgs;
use mc_transfer::{ReadOp, Seal, TcpOptions, TcpTransport, Transport as _, WriteOp};
use mc_types::{Access, GrantKey, GrantedRange};
use tokio::time::Instant;

use crate::common::{FakeCluster, config, grant, http, mounted, peer_of, start, try_start};

const RANGE: GrantedRange = GrantedRange { segment: 0, offset: 64, len: 4096, index: 7 };

#[tokio::test]
async fn bytes_are_served_under_grants_of_the_mounted_epoch_and_damage_shows() {
    let cluster = FakeCluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let store = mounted(&cluster, dir.path()).await;
    let (peer, key) = peer_of(&store, &cluster);
    let transport = TcpTransport::new(TcpOptions::default());
    let deadline = Instant::now() + Duration::from_secs(10);
    let value: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&value).into()] }];
    let written =
        transport.write(&peer, &grant(&peer, &key, Access::Write, RANGE), &ops, Seal::No, deadline).await;
    let written = written[0].clone().unwrap();

    let read_grant = grant(&peer, &key, Access::Read, RANGE);
    let mut back = vec![0; 4096];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut back).into()] }];
    let read = transport.read(&peer, &read_grant, &mut ops, deadline).await;
    assert_eq!(read[0], Ok(written.checksum));
    assert_eq!(back, value);

    store.store().memory().segment(0).unwrap().corrupt(100).unwrap();
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut back).into()] }];
    let read = transport.read(&peer, &read_grant, &mut ops, deadline).await;
    assert_ne!(read[0], Ok(written.checksum), "the checksum tells");

    let forged = grant(&peer, &GrantKey([0; 32]), Access::Read, RANGE);
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut back).into()] }];
    assert!(transport.read(&peer, &forged, &mut ops, deadline).await[0].is_err());

    let (_, metrics) = http("GET", store.http_address(), "/metrics").await;
    for line in [
        "mc_store_capacity_bytes 2097152",
        "mc_store_transferred_bytes_total{op=\"write\"} 4096",
        "mc_store_transferred_bytes_total{op=\"read\"} 8192",
        "mc_store_transfer_seconds_count{op=\"write\"} 1",
        "mc_store_transfer_seconds_count{op=\"read\"} 3",
        "mc_store_refusals_total 1",
        "mc_store_fence_limit_bytes 4194304",
        "mc_store_fence_waits_total 0",
        "mc_store_ready 1",
        "mc_store_leader_term 1",
        "mc_store_mounts_total 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let (_, status) = http("GET", store.http_address(), "/status").await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["id"], store.store().id().to_string());
    assert_eq!(status["leader"], cluster.addresses()[0]);
    assert_eq!(status["ready"], true);
    let transports: Vec<_> = status["transports"].as_array().unwrap().iter().collect();
    let shown = |nth: usize| (&transports[nth]["name"], &transports[nth]["offered"], &transports[nth]["how"]);
    assert_eq!(shown(0), (&"tcp".into(), &true.into(), &"always".into()));
    assert_eq!(shown(1), (&"shm".into(), &true.into(), &"same-uid".into()));
    assert_eq!((shown(2).0, shown(2).1), (&"rdma".into(), &false.into()), "{status}");
}

#[tokio::test]
async fn what_cannot_be_had_is_one_sentence_that_names_the_flag() {
    async fn refused(config: StoreArgs) -> String {
        let err = try_start(config).await.unwrap_err();
        let text = mc_store_server::with_flags(&err);
        assert!(!text.contains('\n'), "{text}");
        text
    }
    let masters = ["127.0.0.1:1".to_owned()];
    let dir = tempfile::tempdir().unwrap();
    let good = || config(&masters, dir.path());

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut port = good();
    port.listen = taken.local_addr().unwrap();
    let text = refused(port).await;
    assert!(text.contains("--listen: ") && text.contains("in use"), "{text}");

    let mut huge = good();
    huge.segment = vec![mc_types::ByteSize(1 << 50)];
    let text = refused(huge).await;
    assert!(text.contains("--segment") && text.contains("does not fit"), "{text}");

    let file = tempfile::NamedTempFile::new().unwrap();
    let mut no_dir = good();
    no_dir.data_dir = file.path().into();
    let text = refused(no_dir).await;
    assert!(text.contains("--data-dir"), "{text}");

    let running = start(good()).await;
    let text = refused(good()).await;
    assert!(text.contains("in use by another process"), "{text}");
    drop(running);
    let mut again = Err(StartError::Config(mc_store::InvalidConfig::NoMasters));
    // The heartbeat thread ends by itself a moment after the store was dropped, and its lock with it.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while again.is_err() && std::time::Instant::now() < deadline {
        again = try_start(good()).await;
    }
    again.unwrap();
}
