//! A relay between client and store that can hold bytes back, record them, or cut connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct Relay {
    pub(crate) address: String,
    up: Arc<Direction>,
    down: Arc<Direction>,
    /// Ends the connections made so far.
    cut: Arc<Mutex<CancellationToken>>,
    connected: Arc<watch::Sender<usize>>,
    _stop: DropGuard,
}

/// One way, over all connections.
struct Direction {
    /// Bytes that may pass.
    limit: watch::Sender<u64>,
    passed: watch::Sender<u64>,
    recorded: Mutex<Vec<u8>>,
    /// Byte of which a bit is flipped.
    flipped: AtomicU64,
    /// Whether the newest protocol version of a hello is changed to 1.
    is_old: AtomicBool,
}

impl Direction {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            limit: watch::Sender::new(u64::MAX),
            passed: watch::Sender::new(0),
            recorded: Mutex::default(),
            flipped: AtomicU64::new(u64::MAX),
            is_old: AtomicBool::new(false),
        })
    }

    async fn pump(self: Arc<Self>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        let mut limit = self.limit.subscribe();
        let mut is_first = true;
        loop {
            let passed = *self.passed.borrow();
            let Ok(room) = limit.wait_for(|limit| *limit > passed).await.map(|limit| *limit - passed) else {
                return;
            };
            let most = buffer.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let Ok(n @ 1..) = from.read(&mut buffer[..most]).await else { return };
            if std::mem::take(&mut is_first) && self.is_old.load(Ordering::Relaxed) {
                buffer[6..8].copy_from_slice(&1u16.to_be_bytes());
            }
            let flipped = self.flipped.load(Ordering::Relaxed).wrapping_sub(passed);
            if let Some(byte) = buffer[..n].get_mut(usize::try_from(flipped).unwrap_or(usize::MAX)) {
                *byte ^= 1;
            }
            self.recorded.lock().extend_from_slice(&buffer[..n]);
            if to.write_all(&buffer[..n]).await.is_err() {
                return;
            }
            self.passed.send_modify(|passed| *passed += n as u64);
        }
    }
}

impl Relay {
    pub(crate) async fn to(store: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stop = CancellationToken::new();
        let relay = Self {
            address: listener.local_addr().unwrap().to_string(),
            up: Direction::new(),
            down: Direction::new(),
            cut: Arc::new(Mutex::new(stop.child_token())),
            connected: Arc::new(watch::Sender::new(0)),
            _stop: stop.clone().drop_guard(),
        };
        let cut = relay.cut.clone();
        let (up, down, connected) = (relay.up.clone(), relay.down.clone(), relay.connected.clone());
        let store = store.to_owned();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                connected.send_modify(|count| *count += 1);
                let Ok(store) = TcpStream::connect(&store).await else { continue };
                let ((from_client, to_client), (from_store, to_store)) =
                    (client.into_split(), store.into_split());
                let (up, down) = (up.clone(), down.clone());
                let cut = cut.lock().child_token();
                tokio::spawn(cut.run_until_cancelled_owned(async move {
                    tokio::select! {
                        () = up.pump(from_client, to_store) => {}
                        () = down.pump(from_store, to_client) => {}
                    }
                }));
            }
        }));
        relay
    }

    /// Holds what the client sends after `bytes` more.
    pub(crate) fn hold_up_after(&self, bytes: u64) {
        self.up.limit.send_replace(*self.up.passed.borrow() + bytes);
    }

    /// Holds what the store sends after `bytes` more.
    pub(crate) fn hold_down_after(&self, bytes: u64) {
        self.down.limit.send_replace(*self.down.passed.borrow() + bytes);
    }

    /// Waits until everything that may pass has passed, both ways where there is a limit.
    pub(crate) async fn held(&self) {
        for direction in [&self.up, &self.down] {
            let limit = *direction.limit.borrow();
            if limit < u64::MAX {
                direction.passed.subscribe().wait_for(|passed| *passed >= limit).await.unwrap();
            }
        }
    }

    pub(crate) fn release(&self) {
        self.up.limit.send_replace(u64::MAX);
        self.down.limit.send_replace(u64::MAX);
    }

    /// Flips a bit in what the client sends, after `bytes` more.
    pub(crate) fn flip_up_after(&self, bytes: u64) {
        self.up.flipped.store(*self.up.passed.borrow() + bytes, Ordering::Relaxed);
    }

    /// Flips a bit in what the store sends, after `bytes` more.
    pub(crate) fn flip_down_after(&self, bytes: u64) {
        self.down.flipped.store(*self.down.passed.borrow() + bytes, Ordering::Relaxed);
    }

    /// Cuts the connections made so far.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    /// Makes clients that connect from now on look as if they were of protocol version 1.
    pub(crate) fn offer_version_1(&self) {
        self.up.is_old.store(true, Ordering::Relaxed);
    }

    /// Connections made through it so far.
    pub(crate) fn connections(&self) -> usize {
        *self.connected.borrow()
    }

    /// Bytes from clients so far.
    pub(crate) fn recorded(&self) -> Vec<u8> {
        self.up.recorded.lock().clone()
    }

    /// Bytes from stores so far.
    pub(crate) fn recorded_down(&self) -> Vec<u8> {
        self.down.recorded.lock().clone()
    }
}
