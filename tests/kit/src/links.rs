use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use mc_net::{ChannelOptions, Connection, Listener, Network, Tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::Seeded;

/// Most bytes that are carried as one piece.
const PIECE: usize = 64 << 10;
/// Most pieces that one direction of a connection holds before it reads no more.
const HELD: usize = 64;
/// Delay of a piece that was lost once: TCP's first retransmission.
const RETRANSMITTED_AFTER: Duration = Duration::from_millis(200);

/// State of the link from one node to another. The opposite direction has a link of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Bytes pass as they come.
    #[default]
    Open,
    /// No bytes pass. Connections stay open and receive nothing; new ones hang. Waiting bytes are delivered when the
    /// link opens, as TCP does.
    Silent,
    /// Connections are closed, new ones too.
    Cut,
    /// Bytes arrive late.
    Slow {
        /// Least delay.
        delay: Duration,
        /// Most additional delay, drawn at random.
        jitter: Duration,
    },
    /// One piece in `one_in` is lost and arrives later; the pieces behind it wait.
    Lossy {
        /// Number of pieces of which one is lost.
        one_in: u64,
    },
    /// The bandwidth is limited.
    Narrow {
        /// Bytes a second for each connection.
        bytes_per_second: u64,
    },
}

/// Counts over all links.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    bent: AtomicU64,
}

/// Address that stores advertise, with the port on which they listen at another address: that of the proxies in front
/// of them.
pub const STORES_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Proxies on the links between masters, from clients and stores to masters, and from clients to stores. All links are
/// open at first.
///
/// The proxies run on a thread of their own, so that a busy test does not slow the masters' heartbeats.
#[derive(Debug)]
pub struct Links {
    masters: usize,
    /// The link from node `from` to node `to`, at `from * nodes + to`. The nodes are the masters, all clients, and all
    /// stores.
    links: Arc<Vec<watch::Sender<Link>>>,
    /// Address of the proxy for connections from `from` to `to`.
    proxies: HashMap<(usize, usize), SocketAddr>,
    to_clients: HashMap<String, String>,
    counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Starts proxies in front of masters with these Raft and client addresses, and of stores with these addresses.
    pub fn new(raft: &[String], clients: &[String], stores: &[String]) -> Self {
        let masters = raft.len();
        let nodes = masters + 2;
        let (all_clients, all_stores) = (masters, masters + 1);
        let links: Arc<Vec<_>> =
            Arc::new((0..nodes * nodes).map(|_| watch::Sender::new(Link::Open)).collect());
        let counts = Arc::new(Counts::default());
        let mut proxies = HashMap::new();
        let mut listeners = Vec::new();
        for (from, to) in (0..nodes).flat_map(|from| (0..masters).map(move |to| (from, to))) {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.set_nonblocking(true).expect("a socket");
            proxies.insert((from, to), listener.local_addr().expect("a bound socket"));
            let target = if from < masters { &raft[to] } else { &clients[to] };
            let proxy = Proxy {
                target: target.clone(),
                counts: counts.clone(),
                there: links[from * nodes + to].subscribe(),
                back: links[to * nodes + from].subscribe(),
            };
            listeners.push((listener, proxy));
        }
        for store in stores {
            let port = store.parse::<SocketAddr>().expect("an IP and a port").port();
            let listener = std::net::TcpListener::bind((STORES_AT, port)).expect("the same port is free");
            listener.set_nonblocking(true).expect("a socket");
            let proxy = Proxy {
                target: store.clone(),
                counts: counts.clone(),
                there: links[all_clients * nodes + all_stores].subscribe(),
                back: links[all_stores * nodes + all_clients].subscribe(),
            };
            listeners.push((listener, proxy));
        }
        let to_clients =
            (0..masters).map(|to| (clients[to].clone(), proxies[&(masters, to)].to_string())).collect();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                for (listener, proxy) in listeners {
                    tokio::spawn(proxy.serve(TcpListener::from_std(listener).expect("a socket")));
                }
                // Ends when the sender is dropped with the links.
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("links".to_owned()).spawn(run).expect("a thread");
        Self { masters, links, proxies, to_clients, counts, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the number of pieces and connections so far that a link held, closed, delayed or lost.
    pub fn bent(&self) -> u64 {
        self.counts.bent.load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Returns the node that stands for all clients.
    pub fn clients(&self) -> usize {
        self.masters
    }

    /// Returns the node that stands for all stores.
    pub fn stores(&self) -> usize {
        self.masters + 1
    }

    /// Returns the nodes of all masters.
    pub fn masters(&self) -> Vec<usize> {
        (0..self.masters).collect()
    }

    /// Changes the link from `from` to `to`, also for bytes under way.
    pub fn set(&self, from: usize, to: usize, link: Link) {
        self.links[from * (self.masters + 2) + to].send_replace(link);
    }

    /// Changes the links between two groups of nodes, both ways.
    pub fn between(&self, some: &[usize], others: &[usize], link: Link) {
        for (some, other) in some.iter().flat_map(|some| others.iter().map(move |other| (*some, *other))) {
            self.set(some, other, link);
            self.set(other, some, link);
        }
    }

    /// Returns the nodes of all masters but `than`.
    pub fn other_masters(&self, than: usize) -> Vec<usize> {
        (0..self.masters).filter(|master| *master != than).collect()
    }

    /// Changes all links between masters.
    pub fn among_masters(&self, link: Link) {
        for master in 0..self.masters {
            self.between(&[master], &self.other_masters(master), link);
        }
    }

    /// Changes all links between clients and masters.
    pub fn with_clients(&self, link: Link) {
        for master in 0..self.masters {
            self.between(&[master], &[self.clients()], link);
        }
    }

    /// Opens all links.
    pub fn heal(&self) {
        for link in self.links.iter() {
            link.send_replace(Link::Open);
        }
    }

    /// Returns a store's routes: each master's client port, and the port of the proxy to connect to instead.
    pub fn store_routes(&self, clients: &[String]) -> Vec<(u16, u16)> {
        let port = |address: &str| address.parse::<SocketAddr>().expect("an IP and a port").port();
        let to = 0..self.masters;
        to.map(|to| (port(&clients[to]), self.proxies[&(self.stores(), to)].port())).collect()
    }

    /// Returns a master's routes: each other master's Raft port, and the port of the proxy to connect to instead.
    pub fn routes(&self, from: usize, raft: &[String]) -> Vec<(u16, u16)> {
        let port = |address: &str| address.parse::<SocketAddr>().expect("an IP and a port").port();
        let to = self.other_masters(from).into_iter();
        to.map(|to| (port(&raft[to]), self.proxies[&(from, to)].port())).collect()
    }

    /// Returns the network for clients, which leads over `network` to the masters through the proxies.
    pub fn network(&self, network: Arc<dyn Network>) -> Arc<dyn Network> {
        Arc::new(Routed { network, proxies: self.to_clients.clone() })
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked: that test has failed already, or no test noticed.
            let _ = thread.join();
        }
    }
}

/// A network that connects to a proxy in place of each master's address.
#[derive(Debug)]
struct Routed {
    network: Arc<dyn Network>,
    proxies: HashMap<String, String>,
}

impl Routed {
    fn route<'a>(&'a self, address: &'a str) -> &'a str {
        self.proxies.get(address).map_or(address, String::as_str)
    }
}

impl Network for Routed {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Listener>> {
        self.network.listen(address)
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        self.network.connect(self.route(address))
    }

    fn tls(&self) -> Option<&Arc<Tls>> {
        self.network.tls()
    }

    fn channel(
        &self,
        address: &str,
        options: ChannelOptions,
    ) -> Result<tonic::transport::Channel, tonic::transport::Error> {
        self.network.channel(self.route(address), options)
    }
}

/// The target of one listener's connections, and the links of both directions.
#[derive(Clone)]
struct Proxy {
    target: String,
    counts: Arc<Counts>,
    there: watch::Receiver<Link>,
    back: watch::Receiver<Link>,
}

impl Proxy {
    async fn serve(self, listener: TcpListener) {
        loop {
            if let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(self.clone().connection(connection));
            }
        }
    }

    /// Carries one connection; closes both sides at once when either side or a link ends it.
    async fn connection(mut self, near: TcpStream) {
        // A handshake needs both directions.
        for link in [&mut self.there, &mut self.back] {
            if *link.borrow() != Link::Open {
                self.counts.bent.fetch_add(1, Ordering::Relaxed);
            }
            if link.wait_for(|link| *link != Link::Silent).await.is_err() {
                return;
            }
        }
        if [&self.there, &self.back].iter().any(|link| *link.borrow() == Link::Cut) {
            return;
        }
        let Ok(far) = TcpStream::connect(&self.target).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
        let cut = async |mut link: watch::Receiver<Link>| {
            let _ = link.wait_for(|link| *link == Link::Cut).await;
        };
        tokio::select! {
            () = carry(near_read, far_write, self.there.clone(), &self.counts) => {}
            () = carry(far_read, near_write, self.back.clone(), &self.counts) => {}
            () = cut(self.there.clone()) => {}
            () = cut(self.back.clone()) => {}
        }
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Carries one direction of a connection until its source ends.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    link: watch::Receiver<Link>,
    counts: &Counts,
) {
    let (pieces, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(HELD);
    let mut sent = link.clone();
    let take = async move {
        let mut random = Seeded::new(1);
        let mut last = Instant::now();
        loop {
            let mut piece = vec![0; PIECE];
            let Ok(read) = from.read(&mut piece).await else { return };
            if read == 0 {
                return;
            }
            piece.truncate(read);
            let (now, kind) = (Instant::now(), *link.borrow());
            let at = match kind {
                Link::Open | Link::Silent | Link::Cut => now,
                Link::Slow { delay, jitter } => {
                    now + delay + jitter.mul_f64(random.below(1_000) as f64 / 1_000.0)
                }
                Link::Lossy { one_in } if random.below(one_in) == 0 => now + RETRANSMITTED_AFTER,
                Link::Lossy { .. } => now,
                Link::Narrow { bytes_per_second } => {
                    last.max(now) + Duration::from_secs_f64(read as f64 / bytes_per_second as f64)
                }
            };
            last = last.max(at);
            if last > now || kind == Link::Silent {
                counts.bent.fetch_add(1, Ordering::Relaxed);
            }
            if pieces.send((last, piece)).await.is_err() {
                return;
            }
        }
    };
    let give = async move {
        while let Some((at, piece)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if sent.wait_for(|link| *link != Link::Silent).await.is_err()
                || to.write_all(&piece).await.is_err()
            {
                return;
            }
        }
        // The end of the stream also waits until the link is not silent.
        let _ = sent.wait_for(|link| *link != Link::Silent).await;
    };
    tokio::join!(take, give);
}
