//! A machine with a real store on it: its heartbeats and its memory, with grants, fences and segments, on a runtime of its
//! own, which is its process. What clients send it comes over the simulated network ([`carrier`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_client::ShmAccess;
use mc_net::Network;
use mc_store::{ByteSize, Store, Surroundings};
use mc_transfer::{ShmTransport, TcpTransport, Transports};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt as _;

use crate::carrier::{self, Served};
use crate::machine::CLIENTS;
use crate::net::{Host, Net, address_of};
use crate::pool::Pool;
use crate::store;

/// Port of its memory. Only the number of the store tells it from that of another one.
const DATA: u16 = 50060;

pub(crate) struct Lender {
    runtime: Runtime,
    /// Dropping it ends the store.
    _store: Store,
    refused: Arc<AtomicUsize>,
}

impl Lender {
    /// Starts store `number` on `host`.
    pub(crate) fn start(number: usize, host: Host, net: &Net, masters: usize) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("the process has descriptors left");
        let (network, refused) = (net.of(host), Arc::<AtomicUsize>::default());
        let store = runtime.block_on(async {
            let mut surroundings = Surroundings::default();
            surroundings.network = network.clone();
            surroundings.link = Some(tokio::runtime::Handle::current());
            let list: Vec<_> = (0..masters).map(|at| address_of(at, CLIENTS).to_string()).collect();
            let store = Store::builder()
                .segment(ByteSize(Pool::SEGMENT))
                .masters(list.join(","))
                .listen(unused(number))
                .advertise(address_of(host, 0).ip().to_string())
                .name(store::name_of(number))
                .transports(Transports::Tcp)
                .shared_memory(ShmAccess::Off)
                .surroundings(surroundings);
            let store = store.start().await.expect("a store starts with a few MiB");
            // The process' own calls enter the memory by the same checks as those of others.
            let own = ShmTransport::new(TcpTransport::default(), ShmAccess::SameUid, Box::new(|_, _| {}))
                .with_own_store(store.id(), Arc::downgrade(store.memory()));
            let address = address_of(host, DATA + number as u16).to_string();
            let served = Served { memory: Arc::new(own), refused: refused.clone() };
            tokio::spawn(listen(network, address, served));
            store
        });
        Self { runtime, _store: store, refused }
    }

    /// Lets a millisecond pass here.
    pub(crate) fn step(&mut self) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }

    /// Requests that its checks refused.
    pub(crate) fn refusals(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Takes connections of clients.
async fn listen(network: Arc<dyn Network>, address: String, served: Served) {
    let mut listener = network.listen(&address).await.expect("nobody else listens there");
    while let Some(Ok(stream)) = listener.incoming.next().await {
        tokio::spawn(carrier::serve(stream, served.clone()));
    }
}

/// Where clients reach store `number`, of those whose hosts begin at `stores`.
pub(crate) fn address(stores: Host, number: usize) -> std::net::SocketAddr {
    address_of(stores + number, DATA + number as u16)
}

/// A loopback address of this process alone, for the port that every store listens on. Nobody connects to it.
fn unused(number: usize) -> std::net::SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    (std::net::Ipv4Addr::new(127, high + 1, middle, low), DATA + number as u16).into()
}
