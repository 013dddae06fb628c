//! Refusals of a store, and their words.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use mc_transfer::{
    Peer, PeerEndpoint, ReadBuffer, ReadOp, Seal, TcpTransport, TransferError, Transport, WriteBuffer,
    WriteOp,
};
use mc_types::{Access, ClusterId, ClusterTime, Grant, GrantKey, SealedGrant, SegmentEpoch, StoreId};

use crate::common::{
    EPOCH, KEY, LIFETIME, STORE, Store, grant, pattern, range, read, refusal, sealed, soon, write,
};

const LEN: u64 = 1 << 20;

fn one_range() -> Vec<mc_types::GrantedRange> {
    vec![range(0, LEN, 5)]
}

#[tokio::test]
async fn a_grant_that_does_not_fit_is_refused_and_changes_nothing() {
    let store = Store::start(2 * LEN).await;
    let (transport, peer, bytes) = (TcpTransport::default(), store.peer(), pattern(LEN as usize, 1));
    let good = grant(Access::Write, one_range());
    let flipped = |at: usize| {
        let mut sealed = good.seal(&KEY).bytes.to_vec();
        let at = at % sealed.len();
        sealed[at] ^= 0x20;
        SealedGrant::from(Bytes::from(sealed))
    };
    let cases = [
        ("permits to read", grant(Access::Read, one_range()).seal(&KEY)),
        ("serves cluster", Grant { cluster: ClusterId(9), ..good.clone() }.seal(&KEY)),
        ("means store", Grant { store: StoreId(9), ..good.clone() }.seal(&KEY)),
        ("means epoch", Grant { epoch: SegmentEpoch(9), ..good.clone() }.seal(&KEY)),
        ("expired", Grant { expires: ClusterTime(0), ..good.clone() }.seal(&KEY)),
        ("has no range 0", grant(Access::Write, vec![]).seal(&KEY)),
        ("not inside the granted range", grant(Access::Write, vec![range(0, LEN - 1, 5)]).seal(&KEY)),
        ("not in this store's memory", grant(Access::Write, vec![range(LEN + 1, LEN, 5)]).seal(&KEY)),
        ("not in this store's memory", grant(Access::Write, vec![range(u64::MAX, LEN, 5)]).seal(&KEY)),
        ("wrong key", good.seal(&GrantKey([9; 32]))),
        ("format", flipped(0)),
        ("wrong key", flipped(8)),
        ("wrong key", flipped(usize::MAX)),
        ("cannot be decoded", SealedGrant::default()),
        ("longer than", SealedGrant::from(Bytes::from(vec![1; 1 << 20]))),
    ];
    for (expected, sealed) in &cases {
        let reason = refusal(write(&transport, &peer, sealed, &bytes).await);
        assert!(reason.contains(expected), "`{expected}` is not in `{reason}`");
    }
    assert!(store.bytes(0, 2 * LEN as usize).iter().all(|byte| *byte == 0), "nothing was written");
    // The refusals of all but the one that the client made itself came over one connection, which is still good.
    assert_eq!(store.counters().refusals.load(Ordering::Relaxed), cases.len() as u64 - 1);
    assert_eq!(store.counters().connections_opened.load(Ordering::Relaxed), 1);
    assert!(write(&transport, &peer, &good.seal(&KEY), &bytes).await.is_ok());
}

#[tokio::test]
async fn a_grant_expires_by_the_clusters_time() {
    let store = Store::start(LEN).await;
    let (transport, granted) = (TcpTransport::default(), sealed(Access::Read, 0, LEN, 5));
    let lifetime_ms = LIFETIME.as_millis() as u64;
    store.clock_ms.store(lifetime_ms - 1, Ordering::SeqCst);
    assert!(read(&transport, &store.peer(), &granted, 100).await.is_ok());
    store.clock_ms.store(lifetime_ms, Ordering::SeqCst);
    let reason = refusal(read(&transport, &store.peer(), &granted, 100).await);
    assert!(reason.contains("expired at 10000"), "{reason}");
    // The cluster had no leader meanwhile, and its time stood still.
    store.authority.learn(crate::common::CLUSTER, ClusterTime(10));
    assert!(read(&transport, &store.peer(), &granted, 100).await.is_ok());
}

#[tokio::test]
async fn one_bad_operation_does_not_spoil_its_batch() {
    let store = Store::start(LEN).await;
    let (transport, bytes) = (TcpTransport::default(), pattern(1000, 1));
    let granted = sealed(Access::Write, 0, LEN, 5);
    let op = |range, offset| WriteOp { range, offset, from: vec![(&bytes).into()] };
    let ops = [op(0, 0), op(7, 0), op(0, LEN - 10), op(0, 5000)];
    let answers = transport.write(&store.peer(), &granted, &ops, Seal::No, soon()).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    assert!(store.bytes(0, 1000) == bytes && store.bytes(5000, 1000) == bytes);

    let (mut a, mut b, mut c) = (vec![0; 1000], vec![0; 1000], vec![0; 1000]);
    let mut ops = [
        ReadOp { range: 0, offset: 0, into: vec![(&mut a).into()] },
        ReadOp { range: 0, offset: u64::MAX - 3, into: vec![(&mut b).into()] },
        ReadOp { range: 0, offset: 5000, into: vec![(&mut c).into()] },
    ];
    let granted = sealed(Access::Read, 0, LEN, 5);
    let answers = transport.read(&store.peer(), &granted, &mut ops, soon()).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(a == bytes && c == bytes);
}

#[tokio::test]
async fn small_operations_that_share_system_calls_have_answers_of_their_own() {
    const LEN: u64 = 1 << 20;
    let store = Store::start(LEN).await;
    let transport = TcpTransport::default();
    // Hundreds of small ones; one that is larger than a receive, one of no bytes; every seventh lies past its range.
    let len = |at: usize| match at {
        150 => 300 << 10,
        151 => 0,
        _ => 100 + at,
    };
    let values: Vec<_> = (0..300).map(|at| pattern(len(at), at as u64)).collect();
    let is_good = |at: usize| at % 7 != 3;
    let mut end = 0;
    let mut offset = |at: usize| {
        end += len(at) as u64;
        if is_good(at) { end - len(at) as u64 } else { LEN }
    };
    let offsets: Vec<_> = (0..300).map(&mut offset).collect();

    let places = || offsets.iter().copied();
    let op = |(offset, from)| WriteOp { range: 0, offset, from: vec![from] };
    let ops: Vec<WriteOp<'_>> = places().zip(values.iter().map(WriteBuffer::from)).map(op).collect();
    let granted = sealed(Access::Write, 0, LEN, 5);
    let answers = transport.write(&store.peer(), &granted, &ops, Seal::No, soon()).await;
    assert!(answers.iter().enumerate().all(|(at, answer)| answer.is_ok() == is_good(at)), "{answers:?}");

    let mut buffers: Vec<_> = (0..300).map(|at| vec![0; len(at)]).collect();
    let op = |(offset, into)| ReadOp { range: 0, offset, into: vec![into] };
    let mut ops: Vec<ReadOp<'_>> = places().zip(buffers.iter_mut().map(ReadBuffer::from)).map(op).collect();
    let granted = sealed(Access::Read, 0, LEN, 5);
    let answers = transport.read(&store.peer(), &granted, &mut ops, soon()).await;
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), is_good(at), "{at}: {answer:?}");
        assert!(!is_good(at) || buffers[at] == values[at], "{at}: other bytes");
    }
}

#[tokio::test]
async fn a_superseded_grant_is_refused() {
    let store = Store::start(LEN).await;
    let (transport, peer, bytes) = (TcpTransport::default(), store.peer(), pattern(1000, 1));
    write(&transport, &peer, &sealed(Access::Write, 0, 1000, 6), &bytes).await.unwrap();
    for access in [Access::Write, Access::Read] {
        let granted = sealed(access, 500, 1000, 5);
        let reason = match access {
            Access::Write => refusal(write(&transport, &peer, &granted, &bytes).await),
            Access::Read => refusal(read(&transport, &peer, &granted, 1000).await),
        };
        assert!(reason.contains("superseded") && reason.contains("number 6"), "{reason}");
    }
    assert!(store.bytes(0, 1000) == bytes);
    assert!(store.bytes(1000, 1000).iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_hello_for_other_memory_is_refused_with_both_names() {
    let store = Store::start(LEN).await;
    let transport = TcpTransport::default();
    let right = store.peer();
    let cases = [
        (Peer { cluster: ClusterId(0xc), ..right.clone() }, format!("{}", ClusterId(0xc))),
        (Peer { store: StoreId(0x5), ..right.clone() }, format!("this is store {STORE}")),
        (Peer { epoch: SegmentEpoch(0xe), ..right.clone() }, format!("has epoch {EPOCH}")),
    ];
    for (peer, expected) in cases {
        let reason = refusal(read(&transport, &peer, &sealed(Access::Read, 0, 10, 1), 10).await);
        assert!(reason.contains(&expected), "`{expected}` is not in `{reason}`");
    }
}

#[tokio::test]
async fn a_store_without_a_way_to_it_is_an_error_that_says_what_it_offers() {
    let endpoint = |transport: &str, address: &str| PeerEndpoint {
        transport: transport.to_owned(),
        address: address.to_owned(),
        attributes: Vec::new(),
    };
    let peer = |endpoints| Peer { endpoints, ..crate::common::peer_at("") };
    let (transport, granted) = (TcpTransport::default(), sealed(Access::Read, 0, 10, 1));
    let rdma = peer(vec![endpoint("rdma", "a:1")]);
    let error = read(&transport, &rdma, &granted, 10).await.unwrap_err();
    assert!(
        matches!(&error, TransferError::NoEndpoint { offered, .. } if offered == "rdma://a:1"),
        "{error}"
    );

    // A port that was free a moment ago, then a store: the second address is used.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = peer(vec![endpoint("tcp", &free)]);
    let error = read(&transport, &nobody, &granted, 10).await.unwrap_err();
    assert!(matches!(&error, TransferError::Connect { address, .. } if *address == free), "{error}");
    let store = Store::start(LEN).await;
    let both = peer(vec![endpoint("tcp", &free), endpoint("tcp", &store.address)]);
    assert!(read(&transport, &both, &granted, 10).await.is_ok());
}
