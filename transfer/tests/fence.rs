//! Late writers do no damage and late readers are told, also in the middle of a transfer.

mod common;

use std::time::Duration;

use common::relay::Relay;
use common::{Store, pattern, peer_at, read, refusal, sealed, until, write};
use mc_base::Access;
use mc_transfer::TcpTransport;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

const LEN: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_stops_in_the_middle_does_no_damage_when_it_goes_on() {
    let store = Store::start(LEN as u64).await;
    let relay = Relay::to(&store.address).await;
    let (late_peer, len) = (peer_at(&relay.address), LEN as u64);

    // Given: a writer whose bytes stop halfway.
    relay.hold_up_after(LEN as u64 / 2);
    let (transport, old) = (TcpTransport::default(), pattern(LEN, 1));
    let granted = sealed(Access::Write, 0, len, 5);
    let mut late = std::pin::pin!(write(&transport, &late_peer, &granted, &old));
    assert!(timeout(Duration::from_millis(1), late.as_mut()).await.is_err());
    tokio::select! {
        done = late.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    let half_written = || store.bytes(LEN as u64 / 2 - (64 << 10) - 1, 1) != [0];
    until("the store has the first half", half_written).await;

    // When: its slot is allocated again, to a part of which a newer put writes.
    let new = pattern(LEN - (1 << 20), 2);
    let new_offset = 1u64 << 20;
    let newer = sealed(Access::Write, new_offset, new.len() as u64, 6);
    write(&TcpTransport::default(), &store.peer(), &newer, &new).await.unwrap();
    relay.release();

    // Then: it is refused, and the newer put's bytes are whole.
    let reason = refusal(late.await);
    assert!(reason.contains("superseded while its bytes came in"), "{reason}");
    assert!(store.bytes(new_offset, new.len()) == new);
    let granted = sealed(Access::Read, new_offset, new.len() as u64, 6);
    assert!(read(&transport, &store.peer(), &granted, new.len()).await.unwrap().0 == new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_told_that_its_bytes_were_overwritten_while_it_read() {
    // More than the sockets on the way can hold, so that the store can't be done when the relay stops.
    let (len, held_at) = (48usize << 20, 1 << 20);
    let store = Store::start(len as u64).await;
    let relay = Relay::to(&store.address).await;
    let transport =
        TcpTransport::new(mc_transfer::TcpOptions { connections_per_peer: 1, ..Default::default() });
    let old = pattern(len, 1);
    write(&transport, &store.peer(), &sealed(Access::Write, 0, len as u64, 5), &old).await.unwrap();

    relay.hold_down_after(held_at);
    let (late_peer, granted) = (peer_at(&relay.address), sealed(Access::Read, 0, len as u64, 5));
    let mut late = std::pin::pin!(read(&transport, &late_peer, &granted, len));
    tokio::select! {
        done = late.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    let new = pattern(4096, 2);
    let newer = sealed(Access::Write, len as u64 - 4096, 4096, 6);
    write(&TcpTransport::default(), &store.peer(), &newer, &new).await.unwrap();
    relay.release();

    let reason = refusal(late.await);
    assert!(reason.contains("superseded") && reason.contains("entry 6"), "{reason}");
    assert_eq!(store.counters().reads.load(Ordering::Relaxed), 0, "no good read was counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_the_same_put_is_not_fenced_by_its_first_try() {
    let store = Store::start(LEN as u64).await;
    let relay = Relay::to(&store.address).await;
    relay.hold_up_after(LEN as u64 / 2);
    let (transport, bytes) = (TcpTransport::default(), pattern(LEN, 1));
    let (late_peer, granted) = (peer_at(&relay.address), sealed(Access::Write, 0, LEN as u64, 5));
    let mut first = std::pin::pin!(write(&transport, &late_peer, &granted, &bytes));
    tokio::select! {
        done = first.as_mut() => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    write(&TcpTransport::default(), &store.peer(), &granted, &bytes).await.unwrap();
    relay.release();
    first.await.unwrap();
    assert!(store.bytes(0, LEN) == bytes);
}
