//! A store that has no memory left to remember another write makes it wait, and refuses it in time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_transfer::{Seal, TcpTransport, Timeouts, Transport as _, WriteBuffer, WriteOp};
use mc_types::{Access, ClusterTime, Grant, SealedGrant};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::common::{
    CLUSTER, KEY, LIFETIME, Store, grant, pattern, range, read, refusal, sealed, soon, until, write,
};

const RECORDS: u64 = 4;
const EACH: u64 = 1000;

/// A store that can remember four writes, and has: four puts that don't lie side by side.
async fn full_store() -> Store {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = Store::start_with_fence(listener, 1 << 20, Timeouts::default(), RECORDS * 64);
    for nth in 0..RECORDS {
        write(&TcpTransport::default(), &store.peer(), &granted(nth, nth + 1), &pattern(EACH as usize, nth))
            .await
            .unwrap();
    }
    store
}

/// A write to the nth place that stays valid while others are forgotten.
fn granted(nth: u64, index: u64) -> SealedGrant {
    let ranges = vec![range(nth * 2 * EACH, EACH, index)];
    Grant { expires: ClusterTime(0).after(4 * LIFETIME), ..grant(Access::Write, ranges) }.seal(&KEY)
}

fn waits(store: &Store) -> u64 {
    store.counters().waits.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_room_goes_on_when_a_master_says_that_older_ones_may_be_forgotten() {
    let store = full_store().await;
    let (peer, bytes) = (store.peer(), pattern(EACH as usize, 9));
    let waiting = tokio::spawn(async move {
        write(&TcpTransport::default(), &peer, &granted(7, 9), &pattern(EACH as usize, 9)).await
    });
    until("it waits", || waits(&store) > 0).await;
    // The local clock alone lets nothing go.
    store.clock_ms.store(3 * LIFETIME.as_millis() as u64, Ordering::SeqCst);
    let asked = waits(&store);
    until("it was refused and asked again", || waits(&store) > asked + 1).await;
    assert!(!waiting.is_finished());
    store.authority.learn(CLUSTER, ClusterTime(0).after(3 * LIFETIME));
    waiting.await.unwrap().unwrap();
    assert!(store.bytes(14 * EACH, EACH as usize) == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_room_is_refused_by_its_deadline_and_all_others_are_served() {
    let store = full_store().await;
    let (transport, bytes) = (TcpTransport::default(), pattern(EACH as usize, 9));
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let deadline = Instant::now() + Duration::from_millis(700);
    let peer = store.peer();
    let reason = refusal(transport.write(&peer, &granted(7, 9), &ops, Seal::No, deadline).await.remove(0));
    assert!(reason.contains("try again"), "{reason}");
    assert!(waits(&store) >= 1);
    assert!(store.bytes(14 * EACH, EACH as usize) == vec![0; EACH as usize], "nothing was written");

    // A newer put in the place of an older one, the same put again, and reads: none needs another record.
    write(&transport, &peer, &granted(2, 9), &bytes).await.unwrap();
    write(&transport, &peer, &granted(2, 9), &bytes).await.unwrap();
    let sealed = sealed(Access::Read, 4 * EACH, EACH, 9);
    assert!(read(&transport, &peer, &sealed, EACH as usize).await.unwrap().0 == bytes);
}

/// Some of a batch find room, some don't until later: each is written once it may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_exceeds_the_room_is_written_piece_by_piece() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = Store::start_with_fence(listener, 1 << 20, Timeouts::default(), RECORDS * 64);
    let ranges = (0..10).map(|nth| range(nth * 2 * EACH, EACH, 5)).collect();
    let expires = ClusterTime(0).after(100 * LIFETIME);
    let sealed = Grant { expires, ..grant(Access::Write, ranges) }.seal(&KEY);
    let values: Vec<Vec<u8>> = (0..10).map(|seed| pattern(EACH as usize, seed)).collect();
    let op = |(range, from)| WriteOp { range, offset: 0, from: vec![from] };
    let ops: Vec<WriteOp<'_>> = (0..).zip(values.iter().map(WriteBuffer::from)).map(op).collect();
    let (peer, transport) = (store.peer(), TcpTransport::default());
    let mut writing = transport.write(&peer, &sealed, &ops, Seal::No, soon());
    let mut now = ClusterTime(0);
    let answers = loop {
        tokio::select! {
            answers = &mut writing => break answers,
            () = tokio::time::sleep(Duration::from_millis(20)) => {
                now = now.after(LIFETIME);
                store.authority.learn(CLUSTER, now);
            }
        }
    };
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(waits(&store) > 0, "there was room for all of them");
    for (nth, value) in (0..).zip(&values) {
        assert!(store.bytes(nth * 2 * EACH, EACH as usize) == *value, "{nth}");
    }
}
