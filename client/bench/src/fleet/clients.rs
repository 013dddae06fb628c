use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use mc_client::{Client, ConnectError, Put};
use mc_console::connect::client_builder;
use mc_net::Tls;
use mc_testbed::Keyspace;
use mc_transfer::{TcpOptions, TcpTransport, Transport};
use mc_types::ByteSize;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// Maximum number of clients that connect at the same time.
const AT_ONCE: usize = 64;
/// Bytes of an object.
const SIZE: usize = 4096;
const EACH_SECOND: Duration = Duration::from_secs(1);
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Client that tells when puts and gets work.
pub(super) struct Prober {
    client: Client,
    keys: Keyspace,
    objects: u64,
    next: AtomicU64,
    transport: Arc<dyn Transport>,
}

impl Prober {
    /// Puts `objects` objects, which the clients then get.
    pub(super) async fn start(masters: &str, tls_dir: &Path, objects: u32) -> Result<Self> {
        let options = TcpOptions { tls: Tls::find(Some(tls_dir))?, ..TcpOptions::default() };
        let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new(options));
        let client = connect(masters, &transport).await?;
        ensure!(client.connected(READY_WITHIN).await, "no leader answers at {masters}");
        let keys = Keyspace::uniform(format!("fleet/{:016x}", rand::random::<u64>()), SIZE);
        let objects = u64::from(objects);
        for block in 0..objects {
            let (key, value) = keys.object(block);
            let put = client.put(&key, &value).await.context("cannot put the first objects")?;
            ensure!(put == Put::Stored, "the first put of {key} answered {put:?}");
        }
        Ok(Self { client, keys, objects, next: AtomicU64::new(objects), transport })
    }

    /// Waits until a put and a get that began after this call have succeeded.
    pub(super) async fn until_good(&self) {
        let put = async {
            loop {
                let (key, value) = self.keys.object(self.next.fetch_add(1, Ordering::Relaxed));
                if matches!(self.client.put(&key, &value).await, Ok(Put::Stored)) {
                    return;
                }
                pause().await;
            }
        };
        let get = async {
            for at in 0.. {
                let block = at % self.objects;
                let got = self.client.get(self.keys.key(block)).await;
                if matches!(got, Ok(Some(bytes)) if self.keys.is_right(block, &bytes)) {
                    return;
                }
                pause().await;
            }
        };
        tokio::join!(put, get);
    }
}

/// Waits a millisecond. Local-only mode answers in microseconds, and a loop without a pause would take the masters'
/// CPU.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Connects a client with its own connections to masters. The connections to stores are shared: a real fleet's clients
/// run on many machines, and each has only a few. Their background work shares this runtime, not to need as many threads.
async fn connect(masters: &str, transport: &Arc<dyn Transport>) -> Result<Client, ConnectError> {
    let builder = client_builder(masters).local_cache(ByteSize(0)).transport(transport.clone());
    builder.runtime(Handle::current()).connect().await
}

/// Counts of the clients' gets by result.
#[derive(Debug, Default)]
pub(super) struct Counts {
    good: AtomicU64,
    missed: AtomicU64,
    failed: AtomicU64,
}

/// The final values of [`Counts`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Gets {
    pub(super) good: u64,
    pub(super) missed: u64,
    pub(super) failed: u64,
}

/// Many clients that each get one object a second.
pub(super) struct Clients {
    /// The clients' tasks, which end when this value is dropped.
    _tasks: JoinSet<()>,
    counts: Arc<Counts>,
}

impl Clients {
    /// Starts the clients and returns when all of them know a leader.
    pub(super) async fn start(count: u32, masters: &str, prober: &Prober) -> Result<Self> {
        let counts = Arc::new(Counts::default());
        let connecting = stream::iter(0..count).map(|number| async move {
            let client = connect(masters, &prober.transport).await.context("cannot connect a client")?;
            ensure!(client.connected(READY_WITHIN).await, "client {number} finds no leader");
            Ok((number, client))
        });
        let mut connecting = connecting.buffer_unordered(AT_ONCE);
        let mut tasks = JoinSet::new();
        while let Some(connected) = connecting.next().await {
            let (number, client) = connected?;
            let (keys, objects, counts) = (prober.keys.clone(), prober.objects, counts.clone());
            // Spread the gets over the second, no matter when the clients connected.
            let first = Instant::now() + EACH_SECOND.mul_f64(f64::from(number) / f64::from(count));
            tasks.spawn(async move {
                let mut second = tokio::time::interval_at(first, EACH_SECOND);
                second.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for turn in 0.. {
                    second.tick().await;
                    let block = (u64::from(number) + turn) % objects;
                    let counted = match client.get(keys.key(block)).await {
                        Ok(Some(bytes)) if keys.is_right(block, &bytes) => &counts.good,
                        Ok(Some(_)) | Err(_) => &counts.failed,
                        Ok(None) => &counts.missed,
                    };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok(Self { _tasks: tasks, counts })
    }

    pub(super) fn stop(self) -> Gets {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Gets {
            good: count(&self.counts.good),
            missed: count(&self.counts.missed),
            failed: count(&self.counts.failed),
        }
    }
}
