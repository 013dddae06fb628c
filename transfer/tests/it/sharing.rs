//! Small calls that share a connection, because all others are taken.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use mc_transfer::{Checksum, Peer, ReadOp, Seal, TcpOptions, TcpTransport, Transport as _, WriteOp, Written};
use mc_types::Access;
use tokio::time::{Instant, timeout};

use crate::common::relay::Relay;
use crate::common::{
    Store, grant, pattern, peer_at, range, read, receipt_of, refusal, sealed, soon, until, write,
};

pub(crate) const LEN: u64 = 64 << 20;
/// First byte of what a large call reads.
const LARGE: u64 = 32 << 20;

fn one_connection() -> TcpTransport {
    // A test that starves must not take the store for unreachable.
    let connect_timeout = Duration::from_secs(10);
    TcpTransport::new(TcpOptions { connections_per_peer: 1, connect_timeout, ..TcpOptions::default() })
}

/// Makes `small` calls while a large one has the only connection, and does nothing with it. Returns what they do, and whether the
/// large one is well.
pub(crate) async fn beside_a_large_call<T>(
    store: &Store,
    peer: &Peer,
    transport: &TcpTransport,
    small: impl Future<Output = T>,
) -> (T, bool) {
    let granted = sealed(Access::Read, LARGE, 16 << 20, 1);
    let mut large = std::pin::pin!(read(transport, peer, &granted, 16 << 20));
    let connected = || store.counters().connections_opened.load(Ordering::SeqCst) > 0;
    tokio::select! {
        biased;
        done = &mut large => panic!("it has ended: {}", done.is_ok()),
        () = until("it has a connection", connected) => {}
    }
    let done = small.await;
    (done, large.await.is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_kinds_get_their_own_answers() {
    let store = Store::start(LEN).await;
    let transport = one_connection();
    let one = async |nth: u64| {
        let (len, at) = ([0, 1, 100, 4096, 20_000, 32_000][nth as usize % 6], nth * (64 << 10));
        let bytes = pattern(len, nth);
        let (head, tail) = bytes.split_at(len / 3);
        let ranges = vec![range(at, 5, 7), range(at + (32 << 10), len as u64, 7)];
        let [granted, reading] = [Access::Write, Access::Read]
            .map(|access| grant(access, ranges.clone()).seal(&crate::common::KEY));
        let ops = [
            WriteOp { range: 1, offset: 0, from: vec![head.into(), (&[]).into(), tail.into()] },
            WriteOp { range: 0, offset: 0, from: vec![b"hello".into()] },
        ];
        let answers = transport.write(&store.peer(), &granted, &ops, Seal::Yes, soon()).await;
        let receipts = [receipt_of(at + (32 << 10), len as u64, 7), receipt_of(at, 5, 7)];
        let written = |(checksum, receipt)| Ok(Written { checksum, receipt: Some(receipt) });
        let sums = [Checksum::of(&bytes), Checksum::of(b"hello")];
        assert_eq!(answers, sums.into_iter().zip(receipts).map(written).collect::<Vec<_>>());
        let late = write(&transport, &store.peer(), &granted, b"late").await;
        assert!(refusal(late).contains("sealed"));
        let (mut first, mut second, mut beyond, mut hello) =
            (vec![0; len / 2], vec![0; len - len / 2], [0; 9], [0; 5]);
        let mut ops = [
            ReadOp { range: 1, offset: 0, into: vec![(&mut first).into(), (&mut second).into()] },
            ReadOp { range: 0, offset: 4, into: vec![(&mut beyond).into()] },
            ReadOp { range: 0, offset: 0, into: vec![(&mut hello).into()] },
        ];
        let answers = transport.read(&store.peer(), &reading, &mut ops, soon()).await;
        assert_eq!(answers[0], Ok(Checksum::of(&bytes)));
        assert!(refusal(answers[1].clone()).contains("granted range"));
        assert_eq!(answers[2], Ok(Checksum::of(b"hello")));
        assert!([first, second].concat() == bytes && &hello == b"hello");
    };
    let (_, well) = beside_a_large_call(&store, &store.peer(), &transport, join_all((0..400).map(one))).await;
    assert!(well);
    assert_eq!(
        store.counters().connections_opened.load(Ordering::SeqCst),
        3,
        "one for reads, one for writes"
    );
    drop(transport);
    let counters = store.counters();
    until("all are closed", || counters.connections_closed.load(Ordering::SeqCst) == 3).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_the_others_their_answers() {
    let store = Store::start(LEN).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer, bytes) = (one_connection(), peer_at(&relay.address), pattern(20_000, 1));
    let small = async {
        let [granted, reading] = [Access::Write, Access::Read].map(|access| sealed(access, 0, 20_000, 1));
        write(&transport, &peer, &granted, &bytes).await.unwrap();
        for round in 0..10 {
            relay.hold_down_after(100 * round);
            let read = |nth: usize| read(&transport, &peer, &reading, 100 * nth);
            // Their answers are under way, or were not asked for yet.
            let dropped = timeout(Duration::from_millis(round), join_all((1..80).map(read))).await;
            assert!(dropped.is_err() || round > 0);
            let release = async {
                tokio::task::yield_now().await;
                relay.release();
            };
            let (others, ()) = tokio::join!(join_all((1..200).map(read)), release);
            for (nth, other) in (1..).zip(others) {
                assert!(other.unwrap().0 == bytes[..100 * nth]);
            }
        }
    };
    assert!(beside_a_large_call(&store, &peer, &transport, small).await.1);
}

#[tokio::test]
async fn a_refused_request_does_not_spoil_those_behind_it() {
    let store = Store::start(LEN).await;
    let (transport, bytes) = (one_connection(), pattern(9_000, 1));
    let one = async |nth: u64| {
        let at = nth * 10_000;
        let [granted, reading] = [Access::Write, Access::Read].map(|access| {
            let grant = grant(access, vec![range(at, 10_000, 1)]);
            // Every third one is of another memory.
            let key = if nth.is_multiple_of(3) { mc_types::GrantKey([9; 32]) } else { crate::common::KEY };
            grant.seal(&key)
        });
        let written = write(&transport, &store.peer(), &granted, &bytes).await;
        let back = read(&transport, &store.peer(), &reading, 9_000).await;
        if nth.is_multiple_of(3) {
            assert!(refusal(written).contains("wrong key") && refusal(back).contains("wrong key"));
        } else {
            assert!(written == Ok(Checksum::of(&bytes)) && back.unwrap().0 == bytes);
        }
    };
    let small = join_all((0..60).map(one));
    assert!(beside_a_large_call(&store, &store.peer(), &transport, small).await.1);
}

#[tokio::test]
async fn a_connection_that_breaks_under_shared_calls_is_replaced() {
    const EACH: u64 = 10_000;
    let store = Store::start(LEN).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer) = (one_connection(), peer_at(&relay.address));
    for round in 1..5 {
        let bytes = |nth: u64| pattern(EACH as usize, 1_000 * round + nth);
        relay.hold_up_after(20 * EACH);
        let write_one = async |nth: u64| {
            write(&transport, &peer, &sealed(Access::Write, nth * EACH, EACH, round), &bytes(nth)).await
        };
        let cut = async {
            relay.held().await;
            relay.cut();
            relay.release();
        };
        let (answers, ()) = tokio::join!(join_all((0..100).map(write_one)), cut);
        for (nth, answer) in (0..).zip(answers) {
            // The first one may have had a new connection of its own, which is not replaced when it breaks.
            if nth > 0 {
                answer.unwrap();
                assert!(store.bytes(nth * EACH, EACH as usize) == bytes(nth), "{nth} in round {round}");
            }
        }
    }
}

#[tokio::test]
async fn shared_calls_find_out_that_a_store_is_silent() {
    for patience in [Duration::from_millis(3_500), Duration::from_secs(20)] {
        let store = Store::start(LEN).await;
        let relay = Relay::to(&store.address).await;
        let options = TcpOptions {
            connections_per_peer: 1,
            stall_timeout: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(10),
            ..TcpOptions::default()
        };
        let (transport, peer) = (TcpTransport::new(options), peer_at(&relay.address));
        let granted = sealed(Access::Read, 0, LEN, 1);
        let one = async || {
            let mut bytes = [0; 1_000];
            let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
            transport.read(&peer, &granted, &mut ops, Instant::now() + patience).await.remove(0)
        };
        let small = async {
            read(&transport, &peer, &granted, 1_000).await.unwrap();
            // From here on nothing is answered on the connection that they share.
            relay.hold_down_after(0);
            // The relay may have waited for one more answer already.
            drop(timeout(Duration::from_millis(100), one()).await);
            let answers = timeout(Duration::from_secs(15), join_all((0..50).map(|_| one()))).await;
            relay.release();
            answers.expect("none waits for its deadline of 20 s")
        };
        let (answers, _) = beside_a_large_call(&store, &peer, &transport, small).await;
        for answer in answers {
            let said = answer.as_ref().is_err_and(mc_transfer::TransferError::is_of_the_store);
            assert!(said, "{patience:?}: {answer:?}");
        }
        assert!(read(&transport, &peer, &granted, 1_000).await.is_ok());
    }
}
