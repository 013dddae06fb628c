use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A gated port without a network.
struct Port {
    dial: UnboundedSender<io::Result<Connection>>,
    listener: Listener,
}

impl Port {
    fn new(greeting: Greeting, room: Room, lifetime: Option<Duration>) -> Self {
        let (dial, incoming) = unbounded_channel();
        let incoming = Box::pin(UnboundedReceiverStream::new(incoming));
        let listener = Listener { address: ([127, 0, 0, 1], 1).into(), incoming };
        let rules = Rules { users: "tests", greeting, room: Arc::new(move || room), lifetime };
        Self { dial, listener: listener.gated(rules) }
    }

    fn dial(&self) -> DuplexStream {
        let (here, there) = tokio::io::duplex(1 << 16);
        self.dial.send(Ok(Connection::new(there))).unwrap();
        here
    }

    /// Lets the gate look at everything that has come; returns what it passes on, if anything.
    async fn look(&mut self) -> Option<Connection> {
        let next = self.listener.incoming.next();
        tokio::time::timeout(Duration::ZERO, next).await.ok().flatten().map(Result::unwrap)
    }
}

/// Whether the other end was closed.
async fn is_closed(peer: &mut DuplexStream) -> bool {
    tokio::time::timeout(Duration::ZERO, peer.read(&mut [0; 8]))
        .await
        .is_ok_and(|read| matches!(read, Ok(0) | Err(_)))
}

const TWO: Room = Room { most: 2, kept: 0 };

#[tokio::test(start_paused = true)]
async fn silent_peers_make_room_for_others_the_oldest_first() {
    let mut port = Port::new(Greeting::Http2, TWO, None);
    let mut silent = [port.dial(), port.dial(), port.dial()];
    assert!(port.look().await.is_none());
    assert!(is_closed(&mut silent[0]).await && !is_closed(&mut silent[1]).await);

    let mut client = port.dial();
    client.write_all(PREFACE).await.unwrap();
    let mut served = port.look().await.expect("it has spoken");
    assert!(is_closed(&mut silent[1]).await && !is_closed(&mut silent[2]).await);
    let mut said = [0; PREFACE.len()];
    served.read_exact(&mut said).await.unwrap();
    assert_eq!(said, PREFACE, "the server gets all of it");

    // A second one that has spoken: nothing is left that may be closed.
    silent[2].write_all(PREFACE).await.unwrap();
    let other = port.look().await.expect("it has spoken");
    let mut refused = port.dial();
    assert!(port.look().await.is_none() && is_closed(&mut refused).await);
    drop(other);
    let mut next = port.dial();
    assert!(port.look().await.is_none() && !is_closed(&mut next).await, "there is a place again");

    tokio::time::sleep(10 * GREETING_WITHIN).await;
    assert!(port.look().await.is_none() && is_closed(&mut next).await, "it had its time");
    client.write_all(b"more").await.unwrap();
    served.read_exact(&mut said[..4]).await.unwrap();
    assert_eq!(&said[..4], b"more", "a connection that has spoken may be idle");
}

#[tokio::test(start_paused = true)]
async fn a_trickle_is_no_greeting() {
    let mut port = Port::new(Greeting::Http1, TWO, None);
    let mut slow = port.dial();
    let mut seconds = 0;
    while !is_closed(&mut slow).await {
        assert!(port.look().await.is_none());
        let _ = slow.write_all(b"x").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds += 1;
        assert!(seconds < 10, "it was never cut");
    }
    let mut endless = port.dial();
    endless.write_all(&vec![b'x'; LONGEST + 1]).await.unwrap();
    assert!(port.look().await.is_none() && is_closed(&mut endless).await);

    let mut whole = port.dial();
    whole.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    assert!(port.look().await.is_none());
    whole.write_all(b"\r\n").await.unwrap();
    assert!(port.look().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_with_its_lifetime() {
    let mut port = Port::new(Greeting::Http1, TWO, Some(Duration::from_secs(60)));
    let mut peer = port.dial();
    peer.write_all(b"POST / HTTP/1.1\n\n").await.unwrap();
    let mut served = port.look().await.unwrap();
    let mut all = Vec::new();
    let read = served.read_to_end(&mut all).await;
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(served.write(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(all, b"POST / HTTP/1.1\n\n");
}

#[tokio::test(start_paused = true)]
async fn a_guest_leaves_unless_it_is_vouched_for() {
    let mut port = Port::new(Greeting::Http2, Room { most: 4, kept: 3 }, None);
    let mut guests = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..4 {
        let mut peer = port.dial();
        peer.write_all(PREFACE).await.unwrap();
        let mut served = port.look().await.unwrap();
        served.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
        guests.push(served);
        peers.push(peer);
    }
    let place = |guests: &[Connection], at: usize| guests[at].place().unwrap();
    assert!(!place(&guests, 0).is_guest() && place(&guests, 1).is_guest());
    place(&guests, 1).vouch();
    place(&guests, 2).dismiss();
    let mut ended = Vec::new();
    let began = Instant::now();
    for at in [2, 3] {
        assert_eq!(guests[at].read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        ended.push(began.elapsed());
    }
    assert!(ended[0] < Duration::from_secs(1) && ended[1] > Duration::from_secs(1), "{ended:?}");
    for at in [0, 1] {
        peers[at].write_all(b"x").await.unwrap();
        assert_eq!(guests[at].read(&mut [0; 1]).await.unwrap(), 1, "they stay");
    }
}

#[tokio::test(start_paused = true)]
async fn without_descriptors_a_silent_connection_is_closed() {
    let mut port = Port::new(Greeting::Http2, Room { most: 100, kept: 0 }, None);
    let mut silent = port.dial();
    assert!(port.look().await.is_none() && !is_closed(&mut silent).await);
    port.dial.send(Err(io::Error::from_raw_os_error(24))).unwrap();
    assert!(port.look().await.is_none() && is_closed(&mut silent).await);
    port.dial.send(Err(io::Error::from_raw_os_error(24))).unwrap();
    port.dial.send(Err(io::ErrorKind::ConnectionAborted.into())).unwrap();
    let mut client = port.dial();
    client.write_all(PREFACE).await.unwrap();
    assert!(port.listener.incoming.next().await.is_some(), "and the port goes on");
}
