//! Bytes are read as they were written, whatever their size and however they are scattered.

use std::sync::atomic::Ordering;

use mc_transfer::{
    Checksum, ReadBuffer, ReadOp, Seal, TcpOptions, TcpTransport, Timeouts, Transport, WriteBuffer, WriteOp,
};
use mc_types::Access;
use tokio::net::TcpListener;

use crate::common::{Store, grant, pattern, peer_at, range, read, sealed, soon, sums, write};

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_equal_from_one_byte_to_64_mib_both_ways() {
    let store = Store::start(65 * MIB as u64).await;
    let transport = TcpTransport::default();
    let sizes = [1, 2, 63, 4096, 65_535, 128 << 10, 658_432, MIB, MIB + 1, 3_274_752, 9 * MIB + 7, 64 * MIB];
    for (i, size) in sizes.into_iter().enumerate() {
        // Not at the start, and each as a later owner of the same bytes.
        let (offset, index) = (192, i as u64 + 1);
        let bytes = pattern(size, index);
        let wrote =
            write(&transport, &store.peer(), &sealed(Access::Write, offset, size as u64, index), &bytes)
                .await;
        assert_eq!(wrote, Ok(Checksum::of(&bytes)), "{size} bytes written");
        assert!(store.bytes(offset, size) == bytes, "{size} bytes in the store");
        let got =
            read(&transport, &store.peer(), &sealed(Access::Read, offset, size as u64, index), size).await;
        let (back, checksum) = got.unwrap();
        assert!(back == bytes, "{size} bytes read");
        assert_eq!(checksum, Checksum::of(&bytes), "{size} bytes read");
    }
    let expected: usize = sizes.iter().sum();
    assert_eq!(store.counters().bytes_written.load(Ordering::Relaxed), expected as u64);
    assert_eq!(store.counters().bytes_read.load(Ordering::Relaxed), expected as u64);
    assert_eq!(store.counters().refusals.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn scattered_buffers_and_parts_of_ranges_meet_their_bytes() {
    let store = Store::start(8 * MIB as u64).await;
    // Stripes as small as they get, so that operations and buffers are cut.
    let transport = TcpTransport::new(TcpOptions { stripe_bytes: 1 << 20, ..TcpOptions::default() });
    let ranges = vec![range(0, 3 * MIB as u64, 5), range(4 * MIB as u64, 4 * MIB as u64, 6)];
    let (first, second) = (pattern(3 * MIB, 1), pattern(4 * MIB, 2));

    let granted = grant(Access::Write, ranges.clone()).seal(&crate::common::KEY);
    let pieces = first.chunks(100_003).map(Into::into).collect();
    let ops = [
        WriteOp {
            range: 1,
            offset: 0,
            from: vec![(&second[..7]).into(), (&[]).into(), (&second[7..]).into()],
        },
        WriteOp { range: 0, offset: 0, from: pieces },
    ];
    let answers = transport.write(&store.peer(), &granted, &ops, Seal::No, soon()).await;
    let expected = [Ok(Checksum::of(&second)), Ok(Checksum::of(&first))];
    assert_eq!(sums(answers), expected, "one answer each, in order");
    assert!(store.bytes(0, 3 * MIB) == first && store.bytes(4 * MIB as u64, 4 * MIB) == second);

    let granted = grant(Access::Read, ranges).seal(&crate::common::KEY);
    let (mut head, mut tail, mut part) = (vec![0; 11], vec![0; 3 * MIB - 11], vec![0; 2 * MIB]);
    let mut many: Vec<Vec<u8>> = (0..100).map(|_| vec![0; 97]).collect();
    let mut ops = [
        ReadOp { range: 0, offset: 0, into: vec![(&mut head).into(), (&mut []).into(), (&mut tail).into()] },
        ReadOp { range: 1, offset: 12_345, into: vec![(&mut part).into()] },
        ReadOp { range: 1, offset: 0, into: many.iter_mut().map(ReadBuffer::from).collect() },
        ReadOp { range: 1, offset: 4 * MIB as u64, into: vec![] },
    ];
    let answers = transport.read(&store.peer(), &granted, &mut ops, soon()).await;
    let part_of_second = &second[12_345..12_345 + 2 * MIB];
    assert_eq!(
        answers,
        [
            Ok(Checksum::of(&first)),
            Ok(Checksum::of(part_of_second)),
            Ok(Checksum::of(&second[..9_700])),
            Ok(Checksum::of(&[])),
        ]
    );
    assert!([head, tail].concat() == first && part == part_of_second && many.concat() == second[..9_700]);
}

#[tokio::test]
async fn a_batch_of_more_operations_than_a_request_holds_is_cut() {
    let store = Store::start(MIB as u64).await;
    let transport = TcpTransport::default();
    let bytes = pattern(10_000 * 16, 3);
    let granted = sealed(Access::Write, 0, bytes.len() as u64, 1);
    let op = |(i, from)| WriteOp { range: 0, offset: i as u64 * 16, from: vec![from] };
    let ops: Vec<WriteOp<'_>> = bytes.chunks(16).map(WriteBuffer::from).enumerate().map(op).collect();
    let answers = transport.write(&store.peer(), &granted, &ops, Seal::No, soon()).await;
    let expected: Vec<_> = bytes.chunks(16).map(|part| Ok(Checksum::of(part))).collect();
    assert!(sums(answers) == expected);
    assert!(store.bytes(0, bytes.len()) == bytes);
    assert!(transport.write(&store.peer(), &granted, &[], Seal::No, soon()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_share_them() {
    let store = Store::start(64 << 20).await;
    let transport = TcpTransport::default();
    let peer = store.peer();
    let calls = (0..32u64).map(|i| {
        let (transport, peer) = (&transport, &peer);
        async move {
            let bytes = pattern(MIB + i as usize, i);
            let (offset, len) = (i * 2 * MIB as u64, bytes.len() as u64);
            write(transport, peer, &sealed(Access::Write, offset, len, 1), &bytes).await.unwrap();
            let (back, _) =
                read(transport, peer, &sealed(Access::Read, offset, len, 1), bytes.len()).await.unwrap();
            assert!(back == bytes, "caller {i}");
        }
    });
    futures::future::join_all(calls).await;
    let opened = store.counters().connections_opened.load(Ordering::Relaxed);
    assert!((1..=4).contains(&opened), "{opened} connections");
}

#[tokio::test]
async fn a_store_is_reached_over_ipv6_and_by_name() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let store = Store::start_on(listener, 4096, Timeouts::default());
    let (granted, bytes) = (sealed(Access::Write, 0, 100, 1), pattern(100, 1));
    let transport = TcpTransport::default();
    assert!(write(&transport, &store.peer(), &granted, &bytes).await.is_ok());

    let by_name = Store::start(4096).await;
    let address = by_name.address.replace("127.0.0.1", "localhost");
    assert!(write(&transport, &peer_at(&address), &granted, &bytes).await.is_ok());
}
