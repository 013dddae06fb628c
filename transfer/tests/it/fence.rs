//! Late writers do no damage and late readers are told, also in the middle of a transfer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_transfer::{
    Peer, ReadOp, Seal, TcpTransport, TransferError, Transport as _, WriteBuffer, WriteOp, Written,
};
use mc_types::{Access, SealedGrant};
use tokio::time::timeout;

use crate::common::certificates::ends;
use crate::common::relay::Relay;
use crate::common::{
    KEY, Store, grant, pattern, peer_at, range, read, receipt_of, refusal, sealed, soon, until, write,
};

const LEN: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_stops_in_the_middle_does_no_damage_when_it_goes_on() {
    for secured in [false, true] {
        stop_in_the_middle_of_a_write(secured).await;
    }
}

async fn stop_in_the_middle_of_a_write(secured: bool) {
    let (store, options) = ends(secured, LEN as u64).await;
    let relay = Relay::to(&store.address).await;
    let (late_peer, len) = (peer_at(&relay.address), LEN as u64);

    // Given: a writer whose bytes stop halfway.
    relay.hold_up_after(LEN as u64 / 2);
    let (transport, old) = (TcpTransport::new(options.clone()), pattern(LEN, 1));
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
    write(&TcpTransport::new(options), &store.peer(), &newer, &new).await.unwrap();
    relay.release();

    // Then: it is refused, and the newer put's bytes are whole.
    let reason = refusal(late.await);
    assert!(reason.contains("superseded while its bytes came in"), "{reason}");
    assert!(store.bytes(new_offset, new.len()) == new);
    let granted = sealed(Access::Read, new_offset, new.len() as u64, 6);
    assert!(read(&transport, &store.peer(), &granted, new.len()).await.unwrap().0 == new);
}

/// Without the pass of the read, a slow reader gets the bytes of another object, of another tenant perhaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_no_byte_of_the_next_owner_and_is_told() {
    for secured in [false, true] {
        stop_in_the_middle_of_a_read(secured).await;
    }
}

async fn stop_in_the_middle_of_a_read(secured: bool) {
    // More than the sockets on the way can hold, so that the store can't be done when the relay stops; and one turn of the call.
    let (len, held_at) = (16usize << 20, 1 << 20);
    let (store, options) = ends(secured, len as u64).await;
    let relay = Relay::to(&store.address).await;
    let transport = TcpTransport::new(mc_transfer::TcpOptions { connections_per_peer: 1, ..options.clone() });
    let old = pattern(len, 1);
    write(&transport, &store.peer(), &sealed(Access::Write, 0, len as u64, 5), &old).await.unwrap();

    relay.hold_down_after(held_at);
    let (late_peer, granted) = (peer_at(&relay.address), sealed(Access::Read, 0, len as u64, 5));
    let mut bytes = vec![1; len];
    let mut ops = [ReadOp { range: 0, offset: 0, into: vec![(&mut bytes).into()] }];
    let mut late = transport.read(&late_peer, &granted, &mut ops, soon());
    tokio::select! {
        done = &mut late => panic!("not held: {done:?}"),
        () = relay.held() => {}
    }
    let new = pattern(4096, 2);
    let newer = sealed(Access::Write, len as u64 - 4096, 4096, 6);
    write(&TcpTransport::new(options), &store.peer(), &newer, &new).await.unwrap();
    relay.release();

    let reason = refusal(late.await.remove(0));
    assert!(reason.contains("superseded") && reason.contains("number 6"), "{reason}");
    assert_eq!(bytes[len - 4096..], [0; 4096], "zeros, up to the length that was promised");
    let begun = bytes.iter().zip(&old).take_while(|(got, old)| got == old).count();
    assert!(
        bytes[begun..].iter().all(|byte| *byte == 0),
        "nothing else after the {begun} bytes that were good"
    );
    assert_eq!(store.counters().reads.load(Ordering::Relaxed), 0, "it was not counted as good");
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

/// Small writes of one request share receives. Here the middle one of three loses its bytes to a newer put, before any of
/// them came in and when half of them had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_superseded_among_others_costs_them_nothing() {
    const EACH: usize = 10_000;
    let place = |nth: u64| nth << 16;
    for passed in [EACH - 100, EACH + EACH / 2] {
        let store = Store::start(LEN as u64).await;
        let relay = Relay::to(&store.address).await;
        let late_peer = peer_at(&relay.address);
        let transport = TcpTransport::default();
        let ranges = (0..3).map(|nth| range(place(nth), EACH as u64, 5)).collect();
        let granted = grant(Access::Write, ranges).seal(&KEY);
        let (hello, request) = (40, 16 + granted.bytes.len() + 3 * 20);
        relay.hold_up_after((hello + request + passed) as u64);
        let values = [1, 2, 3].map(|seed| pattern(EACH, seed));
        let op = |(range, from)| WriteOp { range, offset: 0, from: vec![from] };
        let ops: Vec<WriteOp<'_>> = (0..).zip(values.iter().map(WriteBuffer::from)).map(op).collect();
        let mut late = std::pin::pin!(transport.write(&late_peer, &granted, &ops, Seal::No, soon()));
        tokio::select! {
            done = late.as_mut() => panic!("not held: {done:?}"),
            () = relay.held() => {}
        }
        let has = |nth: usize, len: usize| store.bytes(place(nth as u64), len) == values[nth][..len];
        until("the store has what passed", || {
            has(0, passed.min(EACH)) && has(1, passed.saturating_sub(EACH))
        })
        .await;

        let new = pattern(EACH, 9);
        let newer = sealed(Access::Write, place(1), EACH as u64, 6);
        write(&TcpTransport::default(), &store.peer(), &newer, &new).await.unwrap();
        relay.release();

        let answers = late.await;
        assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{passed}");
        let why = answers[1].as_ref().unwrap_err().to_string();
        assert!(why.contains("superseded while its bytes came in"), "{why}");
        assert!(has(0, EACH) && has(2, EACH) && store.bytes(place(1), EACH) == new, "{passed}");
    }
}

async fn write_last(store: &Peer, granted: &SealedGrant, bytes: &[u8]) -> Result<Written, TransferError> {
    let ops = [WriteOp { range: 0, offset: 0, from: vec![bytes.into()] }];
    TcpTransport::default().write(store, granted, &ops, Seal::Yes, soon()).await.remove(0)
}

/// Over one connection, and over several, which have to be done before the range is sealed.
#[tokio::test]
async fn a_put_cannot_change_what_it_has_sealed() {
    for len in [1000, 20 << 20] {
        let store = Store::start(len as u64 + 64).await;
        let peer = store.peer();
        let (value, other) = (pattern(len, 1), pattern(len, 2));
        let granted = sealed(Access::Write, 0, len as u64, 5);
        let written = write_last(&peer, &granted, &value).await.unwrap();
        assert_eq!(written.receipt, Some(receipt_of(0, len as u64, 5)));
        let why = refusal(write(&TcpTransport::default(), &peer, &granted, &other).await);
        assert!(why.contains("has written its last byte"), "{why}");
        assert!(store.bytes(0, len) == value, "{len}");
        if len == 1000 {
            let again = write_last(&peer, &granted, &value).await;
            assert_eq!(again, Ok(written), "the same once more, because its answer was lost");
        }
        // A range of the same batch right behind it is a put of its own.
        write(&TcpTransport::default(), &peer, &sealed(Access::Write, len as u64, 64, 5), &[7; 64])
            .await
            .unwrap();
        write_last(&peer, &sealed(Access::Write, 0, len as u64, 6), &other).await.expect("the next owner");
        assert!(store.bytes(0, len) == other, "{len}");
    }
}

#[tokio::test]
async fn a_write_of_no_bytes_seals_what_was_written_before() {
    let store = Store::start(1 << 20).await;
    let (peer, transport) = (store.peer(), TcpTransport::default());
    let granted = sealed(Access::Write, 0, 1000, 5);
    let seal = [WriteOp { range: 0, offset: 0, from: vec![] }];
    let try_seal = async || transport.write(&peer, &granted, &seal, Seal::Yes, soon()).await.remove(0);
    let write = async |offset, byte: u8, len: usize| {
        let bytes = vec![byte; len];
        let ops = [WriteOp { range: 0, offset, from: vec![(&bytes).into()] }];
        transport.write(&peer, &granted, &ops, Seal::No, soon()).await.remove(0)
    };
    for (offset, missing) in [(600, 1000), (0, 600)] {
        let why = refusal(try_seal().await);
        assert!(why.contains(&format!("has not written {missing} bytes")), "{why}");
        write(offset, 9, 400).await.unwrap();
    }
    // A byte that is written twice does not stand for another one.
    write(500, 8, 200).await.unwrap();
    assert!(refusal(try_seal().await).contains("has not written 100 bytes"));
    write(400, 7, 100).await.unwrap();
    let receipt = try_seal().await.unwrap().receipt;
    assert_eq!(receipt, Some(receipt_of(0, 1000, 5)));
    assert_eq!(try_seal().await.unwrap().receipt, receipt, "the same on each repetition");
    let why = refusal(write(400, 1, 200).await);
    assert!(why.contains("has written its last byte"), "{why}");
    assert_eq!(store.bytes(400, 200), [[7; 100], [8; 100]].concat());
}

/// Without a seal of its own it is refused. With one it is the same write, which was sent again because its answer was lost:
/// what is sealed are its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_of_a_put_ends_when_another_one_seals_its_range() {
    for seal in [Seal::No, Seal::Yes] {
        let store = Store::start(LEN as u64).await;
        let relay = Relay::to(&store.address).await;
        let granted = sealed(Access::Write, 0, LEN as u64, 5);
        relay.hold_up_after(LEN as u64 / 2);
        let (transport, slow_peer, changed) =
            (TcpTransport::default(), peer_at(&relay.address), pattern(LEN, 1));
        let ops = [WriteOp { range: 0, offset: 0, from: vec![(&changed).into()] }];
        let mut slow = transport.write(&slow_peer, &granted, &ops, seal, soon());
        tokio::select! {
            done = slow.as_mut() => panic!("not held: {done:?}"),
            () = relay.held() => {}
        }
        let half_written = || store.bytes(LEN as u64 / 2 - (64 << 10) - 1, 1) != [0];
        until("the store has the first half", half_written).await;
        let value = pattern(LEN, 2);
        write_last(&store.peer(), &granted, &value).await.unwrap();
        relay.release();
        let answer = slow.await.remove(0);
        match seal {
            Seal::No => assert!(refusal(answer).contains("over another connection")),
            Seal::Yes => assert_eq!(answer.unwrap().receipt, Some(receipt_of(0, LEN as u64, 5))),
        }
        assert!(store.bytes(0, LEN) == value);
    }
}

/// A store of version 1 would close the connection on a seal.
#[tokio::test]
async fn a_client_asks_no_store_of_version_1_to_seal() {
    let store = Store::start(1 << 20).await;
    let relay = Relay::to(&store.address).await;
    relay.offer_version_1();
    let granted = sealed(Access::Write, 0, 64, 5);
    write_last(&peer_at(&relay.address), &granted, &[1; 64]).await.unwrap();
    write(&TcpTransport::default(), &store.peer(), &granted, &[2; 64]).await.expect("nothing was sealed");
}
