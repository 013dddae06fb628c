//! Calls end by their deadline, dropped calls touch nothing, dead connections are replaced, dead peers are dropped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_transfer::{ReadOp, Seal, TcpOptions, TcpTransport, Timeouts, TransferError, Transport, WriteOp};
use mc_types::Access;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::common::relay::Relay;
use crate::common::{CLUSTER, EPOCH, STORE, Store, pattern, peer_at, read, sealed, soon, until, write};

#[tokio::test]
async fn the_deadline_is_kept_against_a_store_that_never_answers() {
    let store = Store::start(1 << 20).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer, bytes) = (TcpTransport::default(), peer_at(&relay.address), vec![1; 1 << 20]);
    // It answers the hello and nothing else: what it says stops after 29 bytes.
    relay.hold_down_after(29);
    let started = Instant::now();
    let deadline = started + Duration::from_millis(100);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let granted = sealed(Access::Write, 0, 1 << 20, 1);
    let answer = transport.write(&peer, &granted, &ops, Seal::No, deadline).await.remove(0);
    assert!(matches!(answer, Err(TransferError::Deadline { .. })), "{answer:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // The connection had an answer coming that nobody waits for: it was closed, not kept for the next call.
    relay.release();
    assert!(write(&transport, &peer, &granted, &bytes).await.is_ok());
    assert_eq!(relay.connections(), 2);
}

#[tokio::test]
async fn a_peer_that_accepts_and_says_nothing_costs_one_connect_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer_at(&silent.local_addr().unwrap().to_string());
    let transport =
        TcpTransport::new(TcpOptions { connect_timeout: Duration::from_millis(50), ..Default::default() });
    let answer = read(&transport, &peer, &sealed(Access::Read, 0, 10, 1), 10).await;
    assert!(
        matches!(&answer, Err(TransferError::Connect { reason, .. }) if reason.contains("50ms")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn waiting_for_a_connection_counts_against_the_deadline_and_is_not_the_stores_fault() {
    let store = Store::start(1 << 20).await;
    let relay = Relay::to(&store.address).await;
    relay.hold_up_after(200);
    let transport = TcpTransport::new(TcpOptions { connections_per_peer: 1, ..Default::default() });
    let (peer, granted) = (peer_at(&relay.address), sealed(Access::Write, 0, 1 << 20, 1));
    let bytes = vec![1; 1 << 20];
    let mut first = std::pin::pin!(write(&transport, &peer, &granted, &bytes));
    tokio::select! {
        done = first.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let answer =
        transport.write(&peer, &granted, &ops, Seal::No, Instant::now() + Duration::from_millis(30)).await;
    assert!(
        matches!(&answer[0], Err(error @ TransferError::Queued { .. }) if !error.is_of_the_store()),
        "{answer:?}"
    );
    relay.release();
    assert!(first.await.is_ok(), "the call that held the connection is not harmed");
}

#[tokio::test]
async fn a_call_waits_longer_for_a_connection_than_a_store_may_be_silent() {
    let store = Store::start(1 << 20).await;
    let relay = Relay::to(&store.address).await;
    let stall_timeout = Duration::from_millis(400);
    let options = TcpOptions { connections_per_peer: 1, stall_timeout, ..Default::default() };
    let (transport, peer) = (TcpTransport::new(options), peer_at(&relay.address));
    let granted = sealed(Access::Read, 0, 1 << 20, 1);
    // Given: a call that has the only connection, over which a few bytes come at a time.
    relay.hold_down_after(100);
    let trickle = async {
        let started = Instant::now();
        while started.elapsed() < stall_timeout * 3 {
            relay.held().await;
            relay.hold_down_after(16);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        relay.release();
    };
    let slow = read(&transport, &peer, &granted, 1 << 20);
    let queued = read(&transport, &peer, &granted, 100_000);
    let (slow, queued, ()) = tokio::join!(slow, queued, trickle);
    assert!(slow.is_ok(), "it was moving all the time: {slow:?}");
    assert!(queued.is_ok(), "it had not begun: {queued:?}");
}

#[tokio::test]
async fn a_store_that_stalls_fails_the_call_that_it_stalls_and_all_that_queue_for_it() {
    let store = Store::start(1 << 20).await;
    let relay = Relay::to(&store.address).await;
    let stall_timeout = Duration::from_millis(40);
    let options = TcpOptions { connections_per_peer: 1, stall_timeout, ..Default::default() };
    let (transport, peer) = (TcpTransport::new(options), peer_at(&relay.address));
    let granted = sealed(Access::Read, 0, 1 << 20, 1);
    // The hello is answered and nothing else is.
    relay.hold_down_after(29);
    let calls = (0..16).map(|_| read(&transport, &peer, &granted, 100_000));
    let answers = timeout(Duration::from_secs(15), futures::future::join_all(calls)).await;
    for answer in answers.expect("none waits for its deadline of 20 s") {
        assert!(
            matches!(&answer, Err(error @ TransferError::Stalled { .. }) if error.is_of_the_store()),
            "{answer:?}"
        );
    }
    assert_eq!(relay.connections(), 1, "one of them found it out for all");
    // The next one asks again.
    relay.release();
    assert!(read(&transport, &peer, &granted, 1000).await.is_ok());
}

#[tokio::test]
async fn a_connection_that_is_silent_while_others_move_is_replaced() {
    let store = Store::start(4096).await;
    let address = store.address.clone();
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer_at(&front.local_addr().unwrap().to_string());
    // Given: the first connection passes one call, then nothing; the others pass all.
    let silent = tokio_util::sync::CancellationToken::new();
    let silenced = silent.clone();
    let fronting = tokio::spawn(async move {
        let mut first = true;
        loop {
            let (mut client, _) = front.accept().await.unwrap();
            let mut store = TcpStream::connect(&address).await.unwrap();
            let silent = if std::mem::take(&mut first) { silenced.clone() } else { Default::default() };
            tokio::spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut store) => {}
                    () = silent.cancelled() => std::future::pending::<()>().await,
                }
            });
        }
    });
    let stall_timeout = Duration::from_millis(40);
    let transport = TcpTransport::new(TcpOptions { stall_timeout, ..Default::default() });
    let granted = sealed(Access::Read, 0, 4096, 1);
    read(&transport, &peer, &granted, 100).await.unwrap();
    silent.cancel();
    // When: a call has that connection, while others go on over theirs.
    let mut first = std::pin::pin!(read(&transport, &peer, &granted, 100));
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut first => break answer,
            other = read(&transport, &peer, &granted, 100) => assert!(other.is_ok(), "{other:?}"),
        }
    };
    assert!(answer.is_ok(), "it was made again over a fresh connection: {answer:?}");
    fronting.abort();
}

#[tokio::test]
async fn a_large_transfer_lets_those_that_wait_go_first_after_each_turn() {
    let len = 64u64 << 20;
    let store = Store::start(len).await;
    let options = TcpOptions { connections_per_peer: 1, ..Default::default() };
    let (transport, peer) = (TcpTransport::new(options), store.peer());
    let (large, small) = (vec![1; len as usize], sealed(Access::Read, 0, 100_000, 1));
    let granted = sealed(Access::Write, 0, len, 1);
    let written = || store.counters().bytes_written.load(Ordering::Relaxed);
    let small = async {
        let answer = read(&transport, &peer, &small, 100_000).await;
        (answer.is_ok(), written())
    };
    let (large, (read, before)) = tokio::join!(write(&transport, &peer, &granted, &large), small);
    assert!(large.is_ok() && read && written() == len);
    assert!(before < len, "the small one waited for all of the large one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_read_does_not_touch_the_buffer_any_more() {
    let len = 8usize << 20;
    let store = Store::start(len as u64).await;
    let (transport, old) = (TcpTransport::default(), pattern(len, 1));
    write(&transport, &store.peer(), &sealed(Access::Write, 0, len as u64, 1), &old).await.unwrap();
    let relay = Relay::to(&store.address).await;
    relay.hold_down_after(len as u64 / 2);
    let (peer, granted) = (peer_at(&relay.address), sealed(Access::Read, 0, len as u64, 1));
    let mut buffer = vec![0u8; len];
    {
        let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut buffer).into()] }];
        let mut reading = transport.read(&peer, &granted, &mut ops, soon());
        tokio::select! {
            done = &mut reading => panic!("not held: {done:?}"),
            () = relay.held() => {}
        }
    }
    assert!(buffer.iter().any(|byte| *byte != 0), "it was in the middle of it");
    buffer.fill(0xAA);
    relay.release();
    // The other calls go on, over connections of their own, and the relay has delivered all it had.
    assert!(read(&transport, &peer, &granted, len).await.unwrap().0 == old);
    assert!(buffer.iter().all(|byte| *byte == 0xAA));
}

#[tokio::test]
async fn a_connection_that_died_while_idle_is_replaced_without_failing_the_call() {
    let granted = sealed(Access::Write, 0, 1000, 1);
    let (transport, bytes) = (TcpTransport::default(), pattern(1000, 1));

    // Closed by the store for being idle.
    let timeouts = Timeouts { idle: Duration::from_millis(20), ..Timeouts::default() };
    let store = Store::start_with(4096, timeouts).await;
    let closed = || store.counters().connections_closed.load(Ordering::Relaxed);
    assert!(write(&transport, &store.peer(), &granted, &bytes).await.is_ok());
    until("the idle connection is closed", || closed() == 1).await;
    assert_eq!(store.counters().broken_connections.load(Ordering::Relaxed), 0, "idle is not stalled");
    assert!(write(&transport, &store.peer(), &granted, &bytes).await.is_ok());

    // Closed because the store was restarted, at the same address.
    let store = Store::start(4096).await;
    let address = store.address.clone();
    assert!(write(&transport, &store.peer(), &granted, &bytes).await.is_ok());
    store.stop();
    let mut again = TcpListener::bind(&address).await;
    while again.is_err() {
        tokio::task::yield_now().await;
        again = TcpListener::bind(&address).await;
    }
    let store = Store::start_on(again.unwrap(), 4096, Timeouts::default());
    assert!(write(&transport, &store.peer(), &granted, &bytes).await.is_ok());
    assert!(store.bytes(0, 1000) == bytes);
}

#[tokio::test]
async fn a_store_with_all_its_connections_idle_makes_room_for_a_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = Store::start_limited(listener, 4096, Timeouts::default(), 1 << 20, 1);
    let (peer, granted) = (store.peer(), sealed(Access::Write, 0, 10, 1));
    let (first, second) = (TcpTransport::default(), TcpTransport::default());
    write(&first, &peer, &granted, &[1; 10]).await.unwrap();
    write(&second, &peer, &granted, &[2; 10]).await.unwrap();
    assert_eq!(store.counters().broken_connections.load(Ordering::Relaxed), 0);
    // The client whose connection was closed for it makes another one in the same way.
    write(&first, &peer, &granted, &[3; 10]).await.unwrap();
}

/// The peer looks alive until it is used: it answers the first call, then breaks at the second.
#[tokio::test]
async fn a_reused_connection_that_breaks_is_retried_once_on_a_fresh_one() {
    let store = Store::start(4096).await;
    let address = store.address.clone();
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer_at(&front.local_addr().unwrap().to_string());
    let fronting = tokio::spawn(async move {
        for conversation in 0.. {
            let (mut client, _) = front.accept().await.unwrap();
            let mut store = TcpStream::connect(&address).await.unwrap();
            let mut bytes = [0; 4096];
            for message in 0.. {
                let n = client.read(&mut bytes).await.unwrap();
                if n == 0 || (conversation == 0 && message == 2) {
                    break;
                }
                store.write_all(&bytes[..n]).await.unwrap();
                let n = store.read(&mut bytes).await.unwrap();
                client.write_all(&bytes[..n]).await.unwrap();
            }
        }
    });
    let (transport, granted) = (TcpTransport::default(), sealed(Access::Write, 0, 100, 1));
    for call in 0..3 {
        let bytes = pattern(100, call);
        write(&transport, &peer, &granted, &bytes).await.unwrap();
        assert!(store.bytes(0, 100) == bytes, "call {call}");
    }
    fronting.abort();
}

#[tokio::test]
async fn a_peer_that_stalls_in_the_middle_of_a_message_is_dropped() {
    let timeouts = Timeouts { stall: Duration::from_millis(30), ..Timeouts::default() };
    let store = Store::start_with(1 << 20, timeouts).await;
    // Half a hello.
    let mut half = TcpStream::connect(&store.address).await.unwrap();
    half.write_all(b"mcTX\x00\x01").await.unwrap();
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(20), half.read_to_end(&mut rest)).await;
    assert!(ended.is_ok() && rest.is_empty());
    // Half a payload.
    let relay = Relay::to(&store.address).await;
    relay.hold_up_after(100_000);
    let bytes = vec![1; 1 << 20];
    let answer = write(
        &TcpTransport::default(),
        &peer_at(&relay.address),
        &sealed(Access::Write, 0, 1 << 20, 1),
        &bytes,
    )
    .await;
    assert!(matches!(answer, Err(TransferError::Broken { .. })), "{answer:?}");
    until("both were counted", || store.counters().broken_connections.load(Ordering::Relaxed) == 2).await;
}

#[tokio::test]
async fn a_server_told_to_stop_closes_its_connections_and_ends() {
    let store = Store::start(4096).await;
    let (transport, granted) = (TcpTransport::default(), sealed(Access::Write, 0, 10, 1));
    let peer = store.peer();
    write(&transport, &peer, &granted, &[1; 10]).await.unwrap();
    let address = store.address.clone();
    store.stop();
    let answer = write(&transport, &peer, &granted, &[1; 10]).await;
    assert!(
        matches!(&answer, Err(TransferError::Connect { address: at, .. }) if *at == address),
        "{answer:?}"
    );
}

/// The connection is never idle and no wait is long, but the message would take hours.
#[tokio::test]
async fn a_client_that_trickles_a_message_is_dropped() {
    let timeouts = Timeouts { stall: Duration::from_millis(300), ..Timeouts::default() };
    let store = Store::start_with(1 << 20, timeouts).await;
    let mut stream = TcpStream::connect(&store.address).await.unwrap();
    let mut hello = b"mcTX\0\x01\0\x02".to_vec();
    hello.extend_from_slice(&CLUSTER.0.to_be_bytes());
    hello.extend_from_slice(&STORE.0.to_be_bytes());
    hello.extend_from_slice(&EPOCH.0.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    stream.read_exact(&mut [0; 13]).await.unwrap();
    // A read of one operation under a grant of 64 KiB.
    stream.write_all(b"\0\0\0\0\0\0\0\x01\x01\0\0\x01\0\x01\0\0").await.unwrap();
    let trickle = async {
        while stream.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    tokio::select! {
        () = trickle => {}
        () = until("it is dropped", || store.counters().broken_connections.load(Ordering::SeqCst) == 1) => {}
    }
}
