//! Transfers by RDMA. They need a verbs device: see tests/rdma/run.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_transfer::{
    Checksum, HostMemory, LentMemory, Rdma, RdmaDevices, RdmaOptions, ReadBuffer, ReadOp, Seal, TcpOptions,
    TcpTransport, Timeouts, TransferError, Transport as _, WriteOp, Written,
};
use mc_types::{Access, Grant};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::common::{
    KEY, Store, grant, pattern, range, read, receipt_of, refusal, sealed, soon, until, write,
};

const LEN: u64 = 64 << 20;

fn devices() -> Arc<Rdma> {
    Rdma::open(&RdmaDevices::Auto, &RdmaOptions::default()).unwrap()
}

async fn store() -> Store {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rdma = devices();
    let store = Store::start_full(listener, LEN, Timeouts::default(), 512 << 20, 1_000, Some(rdma.clone()));
    store.segment.register(&rdma).unwrap();
    store
}

/// A client, and the bytes that it moved by RDMA.
fn client(only: bool) -> (TcpTransport, Arc<AtomicU64>) {
    let moved = Arc::new(AtomicU64::new(0));
    let count = moved.clone();
    let on_moved = Box::new(move |_, bytes| {
        count.fetch_add(bytes, Ordering::SeqCst);
    });
    (TcpTransport::with_rdma(TcpOptions::default(), &HostMemory::new(), devices(), only, on_moved), moved)
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn bytes_go_both_ways_by_rdma_whatever_their_number() {
    let store = store().await;
    let (client, moved) = client(true);
    let mut total = 0;
    for (index, len) in
        (1..).zip([1, 4_095, 70_000, 256 << 10, (256 << 10) + 1, 1 << 20, (4 << 20) + 5, 20 << 20])
    {
        let bytes = pattern(len, index);
        let sum = write(&client, &store.peer(), &sealed(Access::Write, 4_096, LEN / 2, index), &bytes).await;
        assert_eq!(sum.unwrap(), Checksum::of(&bytes));
        assert!(store.bytes(4_096, len) == bytes, "{len} bytes are in the store");
        let grant = sealed(Access::Read, 4_096, LEN / 2, index);
        let (back, sum) = read(&client, &store.peer(), &grant, len).await.unwrap();
        assert!(back == bytes && sum == Checksum::of(&bytes), "{len} bytes came back");
        total += 2 * len as u64;
        assert_eq!(moved.load(Ordering::SeqCst), total);
    }
    let counters = store.counters();
    let by_rdma = [&counters.rdma_bytes_read, &counters.rdma_bytes_written].map(|n| n.load(Ordering::SeqCst));
    assert_eq!(by_rdma, [total / 2; 2]);
    assert_eq!(counters.bytes_read.load(Ordering::SeqCst) + counters.bytes_written.load(Ordering::SeqCst), 0);
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_batch_of_scattered_buffers_is_sealed_with_its_last_byte() {
    let store = store().await;
    let (client, moved) = client(true);
    let lens = [[3usize, 0, 70_000], [1, 2, 3], [300_000, 5 << 20, 1], [0, 0, 0]];
    let bytes: Vec<Vec<Vec<u8>>> = lens
        .iter()
        .map(|op| op.iter().enumerate().map(|(nth, len)| pattern(*len, nth as u64)).collect())
        .collect();
    let len = |op: &[usize; 3]| op.iter().sum::<usize>() as u64;
    let ranges: Vec<_> = (0..).zip(&lens).map(|(nth, op)| range(nth * (8 << 20), len(op), 7)).collect();
    let grants = [Access::Write, Access::Read].map(|access| grant(access, ranges.clone()).seal(&common::KEY));
    let ops: Vec<_> = (0..)
        .zip(&bytes)
        .map(|(range, op)| WriteOp {
            range,
            offset: 0,
            from: op.iter().map(|part| part.as_slice().into()).collect(),
        })
        .collect();
    let answers = client.write(&store.peer(), &grants[0], &ops, Seal::Yes, soon()).await;
    for ((answer, op), range) in answers.into_iter().zip(&bytes).zip(&ranges) {
        let receipt = Some(receipt_of(range.offset, range.len, 7));
        assert_eq!(answer.unwrap(), Written { checksum: Checksum::of(&op.concat()), receipt });
    }
    let mut back: Vec<Vec<Vec<u8>>> =
        lens.iter().map(|op| op.iter().map(|len| vec![0; *len]).collect()).collect();
    let mut ops: Vec<_> = (0..)
        .zip(&mut back)
        .map(|(range, op)| ReadOp { range, offset: 0, into: op.iter_mut().map(ReadBuffer::from).collect() })
        .collect();
    let answers = client.read(&store.peer(), &grants[1], &mut ops, soon()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    drop(ops);
    assert!(back == bytes);
    assert_eq!(moved.load(Ordering::SeqCst), 2 * lens.iter().flatten().sum::<usize>() as u64);
    let late = write(&client, &store.peer(), &grants[0], &pattern(70_003, 9)).await;
    assert!(refusal(late).contains("sealed"));
    assert!(store.bytes(0, 3) == bytes[0][0], "nothing has changed");
}

/// Both ends chose the address when they were opened, and lose it.
#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn pairs_follow_an_address_that_is_renewed() {
    let (store, (client, _)) = (store().await, client(true));
    let ip = |what: &str, address: &str| {
        let done = std::process::Command::new("ip").args(["addr", what, address, "dev", "eth0"]).status();
        assert!(done.unwrap().success());
    };
    let (before, after) = ("10.9.0.1/24", "10.8.0.1/24");
    ip("add", after);
    ip("del", before);
    let bytes = pattern(1 << 20, 1);
    let until = Instant::now() + Duration::from_secs(60);
    for index in 1.. {
        assert!(Instant::now() < until, "no pair is made over the new address");
        let grant = sealed(Access::Write, 0, LEN / 2, index);
        // Until both have heard of it. A way that failed is left for a while.
        match write(&client, &store.peer(), &grant, &bytes).await {
            Ok(_) => break,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    ip("add", before);
    ip("del", after);
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn what_is_outside_the_grant_or_superseded_is_refused() {
    let store = store().await;
    let (client, _) = client(true);
    let outside =
        write(&client, &store.peer(), &sealed(Access::Write, 0, 50_000, 1), &pattern(50_001, 1)).await;
    let outside = refusal(outside);
    assert!(outside.contains("granted range"), "{outside}");
    let beyond =
        write(&client, &store.peer(), &sealed(Access::Write, LEN - 10, 50_000, 1), &pattern(50_000, 1)).await;
    assert!(refusal(beyond).contains("not in this store's memory"));
    let (old, new) = (pattern(100_000, 2), pattern(100_000, 3));
    write(&client, &store.peer(), &sealed(Access::Write, 0, 100_000, 5), &old).await.unwrap();
    write(&client, &store.peer(), &sealed(Access::Write, 0, 100_000, 6), &new).await.unwrap();
    let late = write(&client, &store.peer(), &sealed(Access::Write, 0, 100_000, 5), &old).await;
    assert!(refusal(late).contains("superseded"));
    let stale = read(&client, &store.peer(), &sealed(Access::Read, 0, 100_000, 5), 100_000).await;
    assert!(refusal(stale).contains("superseded"));
    assert!(store.bytes(0, 100_000) == new);
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_refused_grant_is_a_refusal_and_blames_no_way() {
    let store = store().await;
    let (client, _) = client(true);
    let bytes = pattern(300_000, 1);
    let expired = |access| {
        let grant = grant(access, vec![range(0, 1 << 20, 1)]);
        mc_types::Grant { expires: mc_types::ClusterTime(0), ..grant }.seal(&common::KEY)
    };
    // Before there is a pair, and with one.
    for _ in 0..2 {
        let began = Instant::now();
        let late = write(&client, &store.peer(), &expired(Access::Write), &bytes).await;
        assert!(refusal(late).contains("expired"));
        let late = read(&client, &store.peer(), &expired(Access::Read), 300_000).await;
        assert!(refusal(late).contains("expired"));
        println!("refused after {:?}", began.elapsed());
        write(&client, &store.peer(), &sealed(Access::Write, 0, 1 << 20, 1), &bytes).await.unwrap();
    }
    assert_eq!(store.counters().rdma_pairs.load(Ordering::SeqCst), 1, "the pair is kept");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn bytes_of_a_tenant_that_avoids_rdma_go_over_tcp_or_not_at_all() {
    let store = store().await;
    let avoiding =
        |access| Grant { avoids_rdma: true, ..grant(access, vec![range(0, LEN / 2, 1)]) }.seal(&KEY);
    let (transport, moved) = client(false);
    let bytes = pattern(1 << 20, 1);
    write(&transport, &store.peer(), &avoiding(Access::Write), &bytes).await.unwrap();
    let (back, _) = read(&transport, &store.peer(), &avoiding(Access::Read), 1 << 20).await.unwrap();
    assert!(back == bytes && moved.load(Ordering::SeqCst) == 0);
    let (only, _) = client(true);
    let refused = read(&only, &store.peer(), &avoiding(Access::Read), 1 << 20).await;
    assert_eq!(refused.map(drop), Err(TransferError::RdmaOff));
    assert_eq!(store.counters().rdma_pairs.load(Ordering::SeqCst), 0, "no pair was asked for");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_segment_that_is_not_registered_goes_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rdma = devices();
    let store = Store::start_full(listener, LEN, Timeouts::default(), 512 << 20, 1_000, Some(rdma.clone()));
    let (client, moved) = client(false);
    let bytes = pattern(9 << 20, 1);
    let grants = [Access::Write, Access::Read].map(|access| sealed(access, 0, LEN, 1));
    write(&client, &store.peer(), &grants[0], &bytes).await.unwrap();
    assert!(read(&client, &store.peer(), &grants[1], 9 << 20).await.unwrap().0 == bytes);
    assert_eq!(moved.load(Ordering::SeqCst), 0);
    assert!(client.peers()[0].transports[0].how.contains("registered with no RDMA device"));
    store.segment.register(&rdma).unwrap();
    // The client left the way for a while.
    let until = Instant::now() + Duration::from_secs(60);
    while moved.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < until, "its bytes still go over TCP");
        write(&client, &store.peer(), &grants[0], &bytes).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A newer write comes over TCP while an older one is under way by RDMA. Without `FenceMap::check_drained` bytes of the older
/// one still land after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn no_byte_of_an_older_write_lands_after_a_newer_one_was_admitted() {
    let store = store().await;
    let tcp = TcpTransport::default();
    let mut ended = 0;
    for round in 0..16u8 {
        let (client, _) = client(false);
        let (old, new) = (2 * u64::from(round) + 1, 2 * u64::from(round) + 2);
        let (peer, bytes) = (store.peer(), vec![round + 1; 16 << 20]);
        let late = tokio::spawn(async move {
            write(&client, &peer, &sealed(Access::Write, 0, 16 << 20, old), &bytes).await
        });
        until("the older one is under way", || store.bytes(u64::from(round) << 19, 1) == [round + 1]).await;
        // It takes the whole range, and writes one byte of it.
        write(&tcp, &store.peer(), &sealed(Access::Write, 0, 16 << 20, new), &[0xff]).await.unwrap();
        let then = store.bytes(0, 16 << 20);
        ended += u64::from(late.await.unwrap().is_err());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(store.bytes(0, 16 << 20) == then, "bytes came in after it, in round {round}");
        assert_eq!(then[0], 0xff);
    }
    assert!(ended > 0, "none was cut off in the middle");
}

/// A newer write comes over TCP while an older object is read by RDMA. Without the card's hold on the pass of the read, newer bytes
/// come along with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn no_byte_of_a_newer_write_comes_with_an_older_read() {
    const SIZE: usize = 16 << 20;
    let store = store().await;
    let tcp = TcpTransport::default();
    let (older, newer) = (vec![1; SIZE], vec![2; SIZE]);
    let mut refused = 0;
    for round in 0..16 {
        let (client, _) = client(false);
        let (old, new) = (2 * round + 1, 2 * round + 2);
        write(&tcp, &store.peer(), &sealed(Access::Write, 0, SIZE as u64, old), &older).await.unwrap();
        let (peer, granted) = (store.peer(), sealed(Access::Read, 0, SIZE as u64, old));
        let late = tokio::spawn(async move {
            let mut bytes = vec![0; SIZE];
            let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
            let answer = client.read(&peer, &granted, &mut ops, soon()).await.remove(0);
            (answer.is_ok(), bytes)
        });
        // At another moment of the read in each round.
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        write(&tcp, &store.peer(), &sealed(Access::Write, 0, SIZE as u64, new), &newer).await.unwrap();
        let (is_good, bytes) = late.await.unwrap();
        assert!(!bytes.contains(&2), "newer bytes came, in round {round}");
        assert!(!is_good || bytes == older, "round {round}");
        refused += u64::from(!is_good);
    }
    println!("{refused} of 16 reads were refused");
    assert!(refused > 0, "none was cut off");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_store_without_rdma_is_used_over_tcp_or_not_at_all() {
    let store = Store::start(1 << 20).await;
    let (auto, moved) = client(false);
    let bytes = pattern(200_000, 1);
    write(&auto, &store.peer(), &sealed(Access::Write, 0, 1 << 20, 1), &bytes).await.unwrap();
    assert!(store.bytes(0, 200_000) == bytes);
    assert_eq!(moved.load(Ordering::SeqCst), 0);
    let (only, _) = client(true);
    let refused = write(&only, &store.peer(), &sealed(Access::Write, 0, 1 << 20, 1), &bytes).await;
    assert!(
        matches!(&refused, Err(TransferError::NoRdma { reason, .. }) if reason.contains("offers none")),
        "{refused:?}"
    );
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn a_store_that_stops_in_mid_transfer_is_an_error_within_bounds() {
    let store = store().await;
    let (client, moved) = client(false);
    let (peer, bytes) = (store.peer(), pattern(32 << 20, 1));
    let began = Instant::now();
    let writing = tokio::spawn(async move {
        loop {
            write(&client, &peer, &sealed(Access::Write, 0, LEN, 1), &bytes).await?;
        }
        #[expect(unreachable_code, reason = "names the type")]
        Ok::<(), TransferError>(())
    });
    until("it is under way", || moved.load(Ordering::SeqCst) > 0).await;
    store.stop();
    let error = writing.await.unwrap().unwrap_err();
    println!("{error} after {:?}", began.elapsed());
    assert!(error.is_of_the_store(), "{error}");
}

/// Buffers of a call that was dropped are not used by others as long as the store may write to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn calls_that_are_dropped_leave_nothing_behind() {
    let store = store().await;
    let (client, _) = client(true);
    let both = [pattern(8 << 20, 1), pattern(8 << 20, 2)];
    let grant = |access, nth: u64| sealed(access, nth * (8 << 20), 8 << 20, 1 + nth);
    for (nth, bytes) in (0..).zip(&both) {
        write(&client, &store.peer(), &grant(Access::Write, nth), bytes).await.unwrap();
    }
    let [first, second] = [0, 1].map(|nth| grant(Access::Read, nth));
    for round in 0..40 {
        let (peer, patience) = (store.peer(), Duration::from_micros(500 * round));
        let dropped = tokio::time::timeout(patience, read(&client, &peer, &first, 8 << 20)).await;
        drop(dropped);
        let (back, sum) = read(&client, &store.peer(), &second, 8 << 20).await.unwrap();
        assert!(back == both[1] && sum == Checksum::of(&back), "in round {round}");
    }
}

/// Memory of one allocation, and how it is used: `true` for those parts that stores reach.
const PARTS: [(usize, bool); 6] =
    [(300_000, true), (7, false), (1 << 20, true), (20_000, true), (4_000, false), (2 << 20, true)];

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn memory_of_the_transport_is_reached_where_it_is() {
    let store = store().await;
    let rdma = devices();
    let client = TcpTransport::with_rdma(
        TcpOptions::default(),
        &HostMemory::new(),
        rdma.clone(),
        true,
        Box::new(|_, _| ()),
    );
    let len: usize = PARTS.iter().map(|(len, _)| len).sum();
    let bytes = pattern(len, 1);
    let buffers = || !format!("{rdma:?}").contains("free_buffer_bytes: 0");
    // With all parts reached, no buffer is allocated at all.
    for only_reached in [true, false] {
        let index = 1 + u64::from(!only_reached);
        let mut memory = client.allocate(len).unwrap();
        memory.as_mut_slice().copy_from_slice(&bytes);
        let (mut from, mut into, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        let mut back = client.allocate(len).unwrap();
        for (len, reached) in PARTS.iter().filter(|(_, reached)| *reached || !only_reached) {
            let (rest, rest_back) = (memory.split_off(*len), back.split_off(*len));
            let (part, mut place) =
                (std::mem::replace(&mut memory, rest), std::mem::replace(&mut back, rest_back));
            expected.extend_from_slice(part.as_slice());
            if *reached {
                place.as_mut_slice().fill(0xee);
            }
            from.push(part);
            into.push(place.lend());
        }
        let grant = |access| sealed(access, 5, expected.len() as u64, index);
        let ops =
            [WriteOp { range: 0, offset: 0, from: from.iter().map(|part| part.as_slice().into()).collect() }];
        let answer =
            client.write(&store.peer(), &grant(Access::Write), &ops, Seal::Yes, soon()).await.remove(0);
        assert_eq!(answer.unwrap().checksum, Checksum::of(&expected));
        assert!(store.bytes(5, expected.len()) == expected);
        let into_parts = into.iter_mut().map(LentMemory::buffer).collect();
        let mut ops = [ReadOp { range: 0, offset: 0, into: into_parts }];
        let answer = client.read(&store.peer(), &grant(Access::Read), &mut ops, soon()).await.remove(0);
        assert_eq!(answer.unwrap(), Checksum::of(&expected));
        let back: Vec<_> = into.into_iter().map(|lent| lent.take_back().unwrap()).collect();
        let back: Vec<u8> = back.iter().flat_map(|part| part.as_slice()).copied().collect();
        assert!(back == expected);
        assert_eq!(buffers(), !only_reached, "{rdma:?}");
    }
}

/// A store's device still reads the memory of a put when its call is dropped and the caller uses the memory for something else.
/// Without the end of the queue pair, bytes of that get to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn nothing_is_read_from_memory_after_its_call_was_dropped() {
    const SIZE: usize = 16 << 20;
    let store = store().await;
    let mut in_the_middle = 0;
    for round in 0..12u8 {
        let (client, _) = client(true);
        let mut memory = client.allocate(SIZE).unwrap();
        memory.as_mut_slice().fill(round + 1);
        let index = 1 + u64::from(round);
        let (peer, grant) = (store.peer(), sealed(Access::Write, 0, LEN, index));
        let writing = write(&client, &peer, &grant, memory.as_slice());
        let begun = until("it is under way", || store.bytes(u64::from(round) << 18, 1) == [round + 1]);
        tokio::select! {
            biased;
            () = begun => {}
            done = writing => drop(done.unwrap()),
        }
        memory.as_mut_slice().fill(0xff);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let there = store.bytes(0, SIZE);
        assert!(!there.contains(&0xff), "in round {round}");
        in_the_middle += u64::from(there[SIZE - 1] != round + 1);
    }
    assert!(in_the_middle > 0, "none was dropped in the middle");
}

/// Without the end of the queue pair, bytes come into memory whose read was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn nothing_is_written_to_memory_after_its_read_was_dropped() {
    const SIZE: usize = 16 << 20;
    let store = store().await;
    let (writer, _) = client(true);
    write(&writer, &store.peer(), &sealed(Access::Write, 0, LEN, 1), &vec![7; SIZE]).await.unwrap();
    let (peer, grant, mut in_the_middle) = (store.peer(), sealed(Access::Read, 0, LEN, 1), 0);
    // More rounds, with more patience, where the guest is so slow that none of the first got that far.
    for round in 0..60 {
        if round >= 12 && in_the_middle > 0 {
            break;
        }
        let (client, _) = client(true);
        let mut lent = client.allocate(SIZE).unwrap().lend();
        let mut ops = [ReadOp { range: 0, offset: 0, into: vec![lent.buffer()] }];
        let patience = Duration::from_micros(2_000 + 2_000 * round);
        let reading = client.read(&peer, &grant, &mut ops, soon());
        drop(tokio::time::timeout(patience, reading).await);
        let mut memory = lent.take_back().unwrap();
        in_the_middle += u64::from(memory.as_slice()[0] == 7 && memory.as_slice()[SIZE - 1] == 0);
        memory.as_mut_slice().fill(0xff);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(memory.as_slice().iter().all(|byte| *byte == 0xff), "in round {round}");
    }
    assert!(in_the_middle > 0, "none was dropped in the middle");
}

/// A device may write to memory of a read that is not even dropped, so that memory is never given out again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn memory_of_a_leaked_read_is_lost() {
    const SIZE: usize = 16 << 20;
    let store = store().await;
    // A call uses one connection: the leaked one keeps it, and the others need one.
    let options = TcpOptions { stripe_bytes: LEN, ..TcpOptions::default() };
    let client = TcpTransport::with_rdma(options, &HostMemory::new(), devices(), true, Box::new(|_, _| ()));
    write(&client, &store.peer(), &sealed(Access::Write, 0, LEN, 1), &vec![7; SIZE]).await.unwrap();
    let (peer, grant) = (store.peer(), sealed(Access::Read, 0, LEN, 1));
    let mut whole = client.allocate(2 * SIZE).unwrap();
    let mut other = whole.split_off(SIZE).lend();
    let mut lent = whole.lend();
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![lent.buffer()] }];
    let mut reading = client.read(&peer, &grant, &mut ops, soon());
    let begun = tokio::time::timeout(Duration::from_millis(20), &mut reading).await;
    assert!(begun.is_err(), "it has ended already");
    std::mem::forget(reading);
    assert!(lent.buffer().fill(&vec![1; SIZE]).is_err());
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![lent.buffer()] }];
    let refused = client.read(&peer, &grant, &mut ops, soon()).await.remove(0).unwrap_err();
    assert!(refused.to_string().contains("did not release"), "{refused}");
    assert_eq!(lent.take_back().map(drop), Err(mc_transfer::LostMemory { len: SIZE }));
    // The other part of the allocation is well.
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![other.buffer()] }];
    client.read(&peer, &grant, &mut ops, soon()).await.remove(0).unwrap();
    assert_eq!(other.take_back().unwrap().as_slice(), vec![7; SIZE]);
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn a_small_limit_of_pinned_memory_is_explained_and_bytes_go_over_tcp() {
    let me = std::env::current_exe().unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .args(["prlimit", "--memlock=1048576:1048576"])
        .arg(me)
        .args(["--exact", "limited", "--ignored", "--nocapture"])
        .output()
        .expect("setpriv and prlimit of util-linux");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
}

#[tokio::test]
#[ignore = "run by another test under a small limit"]
async fn limited() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rdma = devices();
    let store = Store::start_full(listener, LEN, Timeouts::default(), 512 << 20, 1_000, Some(rdma.clone()));
    let why = store.segment.register(&rdma).unwrap_err().to_string();
    for said in ["67108864 bytes", "1048576 bytes (memlock)", "LimitMEMLOCK=infinity"] {
        assert!(why.contains(said), "{said} is not in: {why}");
    }
    // The client is under the same limit.
    let (auto, moved) = client(false);
    let (bytes, grant) = (pattern(9 << 20, 1), sealed(Access::Write, 0, LEN, 1));
    write(&auto, &store.peer(), &grant, &bytes).await.unwrap();
    assert!(store.bytes(0, 9 << 20) == bytes);
    assert_eq!(moved.load(Ordering::SeqCst), 0);
    // It is allocated nevertheless.
    assert_eq!(auto.allocate(1 << 20).unwrap().lend().take_back().unwrap().as_slice(), vec![0; 1 << 20]);
    let (only, _) = client(true);
    let refused = write(&only, &store.peer(), &grant, &bytes).await.unwrap_err().to_string();
    assert!(refused.contains("LimitMEMLOCK=infinity"), "{refused}");
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn nothing_is_left_of_five_hundred_connections() {
    let store = store().await;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let pinned = || mc_verbs::PinLimit::of_this_process().pinned;
    let grant = sealed(Access::Write, 0, 1 << 20, 1);
    let rdma = devices();
    let connect = async || {
        let client = TcpTransport::with_rdma(
            TcpOptions::default(),
            &HostMemory::new(),
            rdma.clone(),
            true,
            Box::new(|_, _| ()),
        );
        write(&client, &store.peer(), &grant, &pattern(1 << 10, 1)).await.unwrap();
    };
    let counters = store.counters();
    let closed = || {
        counters.connections_closed.load(Ordering::SeqCst)
            == counters.connections_opened.load(Ordering::SeqCst)
    };
    connect().await;
    until("it is closed", closed).await;
    let before = (open(), pinned());
    for _ in 0..500 {
        connect().await;
    }
    until("all are closed", closed).await;
    // Another thread gives back the resources of the last ones.
    until("no more is held than after the first", || open() <= before.0 && pinned() <= before.1).await;
    assert_eq!(counters.rdma_pairs.load(Ordering::SeqCst), 501);
}

/// Memory of the caller's own, at an address.
struct Foreign {
    base: std::ptr::NonNull<u8>,
    len: usize,
}

#[allow(unsafe_code, reason = "the calls under test take addresses")]
impl Foreign {
    fn new(len: usize) -> Self {
        let base = Box::leak(vec![0_u8; len].into_boxed_slice());
        Self { base: std::ptr::NonNull::from(base).cast(), len }
    }

    fn register(&self, memory: &HostMemory) {
        // SAFETY: it is never freed, and reached by copies alone.
        unsafe { memory.register(self.base.as_ptr(), self.len).unwrap() };
    }

    fn raw(&self) -> mc_transfer::RawBytes {
        // SAFETY: as above.
        unsafe { mc_transfer::RawBytes::new(self.base, self.len) }
    }

    fn set(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len);
        // SAFETY: inside.
        unsafe { self.base.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), self.len) };
    }

    /// Returns when one of its bytes is no longer zero.
    async fn changed(&self) {
        // SAFETY: inside.
        let byte = |at| unsafe { self.base.as_ptr().add(at).read_volatile() };
        while (0..self.len).step_by(64 << 10).all(|at| byte(at) == 0) {
            tokio::task::yield_now().await;
        }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: no call is under way.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }.to_vec()
    }
}

#[tokio::test]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn registered_memory_is_read_where_it_is_and_let_go() {
    const SIZE: usize = 3 << 20;
    let store = store().await;
    let (rdma, memory, foreign) = (devices(), HostMemory::new(), Foreign::new(SIZE));
    let pinned = || mc_verbs::PinLimit::of_this_process().pinned;
    // Some of it before there are devices, and some after.
    let late = Foreign::new(SIZE);
    foreign.register(&memory);
    let client =
        TcpTransport::with_rdma(TcpOptions::default(), &memory, rdma.clone(), true, Box::new(|_, _| ()));
    let before = pinned();
    late.register(&memory);
    assert!(pinned() >= before + SIZE as u64);
    late.set(&pattern(SIZE, 1));
    let ops = [WriteOp { range: 0, offset: 0, from: vec![late.raw().into()] }];
    let grant = sealed(Access::Write, 0, SIZE as u64, 1);
    let answer = client.write(&store.peer(), &grant, &ops, Seal::Yes, soon()).await.remove(0);
    assert_eq!(answer.unwrap().checksum, Checksum::of(&pattern(SIZE, 1)));
    assert!(store.bytes(0, SIZE) == pattern(SIZE, 1));
    assert!(format!("{rdma:?}").contains("free_buffer_bytes: 0"), "no buffer was needed: {rdma:?}");

    // The other one is registered in the background.
    foreign.set(&pattern(SIZE, 2));
    let ops = [WriteOp { range: 0, offset: 0, from: vec![foreign.raw().into()] }];
    let grant = sealed(Access::Write, 0, SIZE as u64, 2);
    let answer = client.write(&store.peer(), &grant, &ops, Seal::Yes, soon()).await.remove(0);
    assert_eq!(answer.unwrap().checksum, Checksum::of(&pattern(SIZE, 2)));
    until("it is registered as well", || pinned() >= before + 2 * SIZE as u64).await;
    let both = pinned();
    for registered in [&late, &foreign] {
        until("it is let go", || memory.unregister(registered.base.as_ptr()).is_ok()).await;
    }
    assert!(pinned() + 2 * SIZE as u64 <= both);
    late.register(&memory);
    let there = pinned();
    drop(client);
    until("it ends with the last client", || pinned() + SIZE as u64 <= there).await;
}

/// A read of one request is copied out of buffers at once, so some bytes without the others have come straight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a verbs device: tests/rdma/run"]
async fn nothing_is_written_to_registered_memory_after_its_read_was_dropped() {
    const SIZE: usize = 4 << 20;
    let store = store().await;
    let (writer, _) = client(true);
    write(&writer, &store.peer(), &sealed(Access::Write, 0, LEN, 1), &vec![7; SIZE]).await.unwrap();
    let (peer, grant, mut in_the_middle) = (store.peer(), sealed(Access::Read, 0, LEN, 1), 0);
    let (rdma, memory, foreign) = (devices(), HostMemory::new(), Foreign::new(SIZE));
    foreign.register(&memory);
    let pinned = || mc_verbs::PinLimit::of_this_process().pinned;
    // The last bytes may come in between the first one and the look at it, so there are rounds to spare.
    for round in 0..60 {
        if round >= 12 && in_the_middle > 0 {
            break;
        }
        let client =
            TcpTransport::with_rdma(TcpOptions::default(), &memory, rdma.clone(), true, Box::new(|_, _| ()));
        let read = async || {
            let mut ops = [ReadOp { range: 0, offset: 0, into: vec![foreign.raw().into()] }];
            client.read(&peer, &grant, &mut ops, soon()).await.remove(0)
        };
        let before = pinned();
        assert_eq!(read().await, Ok(Checksum::of(&vec![7; SIZE])), "through buffers");
        until("it is registered for reads", || pinned() >= before + SIZE as u64).await;
        foreign.set(&vec![0; SIZE]);
        tokio::select! {
            biased;
            () = foreign.changed() => {}
            _ = read() => {}
        }
        let there = foreign.bytes();
        in_the_middle += u64::from(there.contains(&7) && there.contains(&0));
        foreign.set(&vec![0xff; SIZE]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(foreign.bytes().iter().all(|byte| *byte == 0xff), "in round {round}");
    }
    assert!(in_the_middle > 0, "none was dropped in the middle, or none came straight");
}
