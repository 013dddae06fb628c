//! Whatever bytes arrive, the store goes on serving: nothing panics, nothing is written outside a grant.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_transfer::{TcpTransport, Timeouts};
use mc_types::Access;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::relay::Relay;
use crate::common::{Store, pattern, peer_at, read, sealed, until, write};

/// Sends bytes, closes its side and reads what comes until the store closes.
async fn throw(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.expect("the store accepts");
    let (mut from, mut to) = stream.split();
    let mut answer = Vec::new();
    let sending = async {
        // The store may have had enough before the last byte.
        let _ = to.write_all(bytes).await;
        let _ = to.shutdown().await;
    };
    let both = futures::future::join(sending, from.read_to_end(&mut answer));
    // The end may be a reset, when the store had enough before it had read everything.
    let ended = timeout(Duration::from_secs(20), both).await;
    assert!(ended.is_ok(), "the store closes what it can't understand");
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_truncation_and_mutation_leave_the_store_serving() {
    let timeouts = Timeouts { stall: Duration::from_millis(500), ..Timeouts::default() };
    let store = Store::start_with(1 << 20, timeouts).await;
    // Given: real conversations, recorded.
    let relay = Relay::to(&store.address).await;
    let (transport, bytes) = (TcpTransport::default(), pattern(5_000, 1));
    let (write_grant, read_grant) =
        (sealed(Access::Write, 4096, 5_000, 3), sealed(Access::Read, 4096, 5_000, 3));
    write(&transport, &peer_at(&relay.address), &write_grant, &bytes).await.unwrap();
    read(&transport, &peer_at(&relay.address), &read_grant, 5_000).await.unwrap();
    let good = relay.recorded();
    drop(transport);
    let hello = 40;

    // When: they come cut, mutated, or as plain noise. The seed makes every run the same.
    let mut seed = 0x5eed_u64;
    for _ in 0..60 {
        throw(&store.address, &good[..(next(&mut seed) % good.len() as u64) as usize]).await;
    }
    for _ in 0..400 {
        let mut bad = good.clone();
        for _ in 0..1 + next(&mut seed) % 4 {
            // Mostly in the headers, which is where the meaning is.
            let most = if next(&mut seed).is_multiple_of(4) { bad.len() } else { hello + 16 + 80 };
            let at = (next(&mut seed) % most as u64) as usize;
            bad[at] = next(&mut seed) as u8;
        }
        throw(&store.address, &bad).await;
    }
    for len in [0usize, 1, 39, 40, 41, 56, 5_000] {
        throw(&store.address, &pattern(len, next(&mut seed))).await;
        throw(&store.address, &[&good[..hello], &pattern(len, next(&mut seed))].concat()).await;
        throw(&store.address, &[&good[..hello], &vec![0xFF; len]].concat()).await;
    }

    // Then: it serves, and nothing was written but what the grant allows.
    let transport = TcpTransport::default();
    write(&transport, &store.peer(), &write_grant, &bytes).await.unwrap();
    assert!(read(&transport, &store.peer(), &read_grant, 5_000).await.unwrap().0 == bytes);
    assert!(store.bytes(0, 4096).iter().all(|byte| *byte == 0));
    assert!(store.bytes(9096, (1 << 20) - 9096).iter().all(|byte| *byte == 0));
    drop((transport, relay));
    let counters = store.counters();
    let (opened, closed) = (&counters.connections_opened, &counters.connections_closed);
    until("no connection is left", || opened.load(Ordering::Relaxed) == closed.load(Ordering::Relaxed)).await;
    let (broken, refused) = (&counters.broken_connections, &counters.refusals);
    let (broken, refused) = (broken.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    assert!(broken > 20 && refused > 100, "the mutations hit nothing: {broken} broken, {refused} refused");
}

/// A request may announce at most what is bounded, and memory is taken for what arrives, not for what is announced.
#[tokio::test]
async fn a_payload_that_is_announced_and_never_comes_costs_nothing_but_time() {
    let timeouts = Timeouts { stall: Duration::from_millis(50), ..Timeouts::default() };
    let store = Store::start_with(1 << 20, timeouts).await;
    let relay = Relay::to(&store.address).await;
    let (transport, granted) = (TcpTransport::default(), sealed(Access::Write, 0, 100, 3));
    write(&transport, &peer_at(&relay.address), &granted, &[1; 100]).await.unwrap();
    let recorded = relay.recorded();
    let mut greedy = recorded[..recorded.len() - 100].to_vec();
    // The length of the only operation is the last thing before the payload.
    let len_at = greedy.len() - 8;
    greedy[len_at..].copy_from_slice(&(1u64 << 60).to_be_bytes());
    let mut stream = TcpStream::connect(&store.address).await.unwrap();
    stream.write_all(&greedy).await.unwrap();
    stream.write_all(&[9; 1000]).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("it is dropped");
    assert_eq!(store.bytes(0, 100), [1; 100]);
}
