//! Small calls that share a connection, because all others are taken.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use mc_transfer::{Checksum, ReadOp, Seal, TcpOptions, TcpTransport, Transport as _, WriteOp};
use mc_types::Access;
use tokio::time::timeout;

use crate::common::relay::Relay;
use crate::common::{Store, grant, pattern, peer_at, range, read, refusal, sealed, soon, until, write};

const LEN: u64 = 64 << 20;
/// First byte of what a large call reads.
const LARGE: u64 = 32 << 20;

fn one_connection() -> TcpTransport {
    TcpTransport::new(TcpOptions { connections_per_peer: 1, ..TcpOptions::default() })
}

/// Makes `small` calls while a large one has the only connection, and does nothing with it.
async fn beside_a_large_call<T>(
    store: &Store,
    transport: &TcpTransport,
    small: impl Future<Output = T>,
) -> T {
    let (peer, granted) = (store.peer(), sealed(Access::Read, LARGE, 16 << 20, 1));
    let mut large = std::pin::pin!(read(transport, &peer, &granted, 16 << 20));
    tokio::select! {
        biased;
        done = &mut large => panic!("it has ended: {}", done.is_ok()),
        () = until("it has a connection", || store.counters().connections_opened.load(Ordering::SeqCst) > 0) => {}
    }
    let done = small.await;
    assert!(large.await.is_ok());
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_kinds_get_their_own_answers() {
    let store = Store::start(LEN).await;
    let transport = one_connection();
    let one = async |nth: u64| {
        let (len, at) = ([0, 1, 100, 4096, 20_000, 32_000][nth as usize % 6], nth * (64 << 10));
        let bytes = pattern(len, nth);
        let (head, tail) = bytes.split_at(len / 3);
        let ranges = vec![range(at, 32 << 10, 7), range(at + (32 << 10), 32 << 10, 7)];
        let [granted, reading] = [Access::Write, Access::Read]
            .map(|access| grant(access, ranges.clone()).seal(&crate::common::KEY));
        let ops = [
            WriteOp { range: 0, offset: 0, from: vec![head, &[], tail] },
            WriteOp { range: 1, offset: 5, from: vec![b"hello"] },
        ];
        let answers = transport.write(&store.peer(), &granted, &ops, Seal::Yes, soon()).await;
        assert_eq!(answers, [Ok(Checksum::of(&bytes)), Ok(Checksum::of(b"hello"))]);
        let late = write(&transport, &store.peer(), &granted, b"late").await;
        assert!(refusal(late).contains("sealed"));
        let (mut first, mut second, mut beyond, mut hello) =
            (vec![0; len / 2], vec![0; len - len / 2], [0; 9], [0; 5]);
        let mut ops = [
            ReadOp { range: 0, offset: 0, into: vec![&mut first, &mut second] },
            ReadOp { range: 1, offset: (32 << 10) - 1, into: vec![&mut beyond] },
            ReadOp { range: 1, offset: 5, into: vec![&mut hello] },
        ];
        let answers = transport.read(&store.peer(), &reading, &mut ops, soon()).await;
        assert_eq!(answers[0], Ok(Checksum::of(&bytes)));
        assert!(refusal(answers[1].clone()).contains("granted range"));
        assert_eq!(answers[2], Ok(Checksum::of(b"hello")));
        assert!([first, second].concat() == bytes && &hello == b"hello");
    };
    beside_a_large_call(&store, &transport, join_all((0..400).map(one))).await;
    // Some waited for the only connection, when too many shared the other.
    assert_eq!(store.counters().connections_opened.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_leaves_the_others_their_answers() {
    let store = Store::start(LEN).await;
    let transport = one_connection();
    let bytes = pattern(20_000, 1);
    write(&transport, &store.peer(), &sealed(Access::Write, 0, 20_000, 1), &bytes).await.unwrap();
    let granted = sealed(Access::Read, 0, 20_000, 1);
    let one = async |nth: u64| {
        let (peer, len) = (store.peer(), 100 * nth as usize);
        let reading = read(&transport, &peer, &granted, len);
        if nth.is_multiple_of(3) {
            drop(timeout(Duration::from_micros(nth), reading).await);
        } else {
            assert!(reading.await.unwrap().0 == bytes[..len]);
        }
    };
    beside_a_large_call(&store, &transport, join_all((1..200).map(one))).await;
}

#[tokio::test]
async fn a_connection_that_breaks_under_shared_calls_is_replaced() {
    let store = Store::start(LEN).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer) = (one_connection(), peer_at(&relay.address));
    let bytes = pattern(1_000, 1);
    for round in 0..4 {
        // None of them has an answer when it breaks.
        relay.hold_down_after(1_000);
        let index = 1 + round;
        let write_one = |nth: u64| {
            let (transport, peer, bytes) = (&transport, &peer, &bytes);
            async move { write(transport, peer, &sealed(Access::Write, nth * 1_000, 1_000, index), bytes).await }
        };
        let cut = async {
            relay.held().await;
            relay.cut();
            relay.release();
        };
        let (answers, ()) = tokio::join!(join_all((0..100).map(write_one)), cut);
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        // Those that had a new connection of their own to begin with.
        assert!(failed <= 1, "{failed}: {answers:?}");
    }
    assert!(store.bytes(99_000, 1_000) == bytes);
}

#[tokio::test]
async fn shared_calls_to_a_silent_store_fail_within_bounds() {
    let store = Store::start(LEN).await;
    let relay = Relay::to(&store.address).await;
    let options = TcpOptions {
        connections_per_peer: 1,
        stall_timeout: Duration::from_millis(40),
        ..TcpOptions::default()
    };
    let (transport, peer, granted) =
        (TcpTransport::new(options), peer_at(&relay.address), sealed(Access::Read, 0, LEN, 1));
    // The hello of both connections is answered, and nothing else is.
    relay.hold_down_after(26);
    let calls = join_all((0..50).map(|_| read(&transport, &peer, &granted, 1_000)));
    let answers = timeout(Duration::from_secs(15), calls).await.expect("none waits for its deadline of 20 s");
    for answer in answers {
        assert!(answer.as_ref().is_err_and(mc_transfer::TransferError::is_of_the_store), "{answer:?}");
    }
    relay.release();
    assert!(read(&transport, &peer, &granted, 1_000).await.is_ok());
}
