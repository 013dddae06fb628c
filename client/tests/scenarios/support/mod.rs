//! A cluster of fake masters in this process, and a client of it.

pub mod certificates;
pub mod master;
pub mod security;
pub mod transport;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use mc_client::{Builder, Checksum, Client, Network};
use parking_lot::Mutex;
use tokio::time::timeout;

pub use self::master::{FakeMaster, REFUSES_OURS};
use self::transport::FakeTransport;
pub use self::world::{Fault, On, STORE_A, STORE_B, Shared, StoreHealth, World};

pub struct Cluster {
    pub world: Shared,
    pub masters: Vec<FakeMaster>,
}

/// So long is waited for a condition before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

impl Cluster {
    /// Masters 1 to `count`, the first of which leads term 1, and two stores.
    pub fn start(count: u64) -> Self {
        let world = Arc::new(Mutex::new(World::new(&[STORE_A, STORE_B])));
        let masters: Vec<_> = (1..=count).map(|node| FakeMaster::start(node, &world)).collect();
        let addresses: Vec<String> = masters.iter().map(|master| master.says.address.clone()).collect();
        for master in &masters {
            *master.says.masters.lock() = addresses.clone();
        }
        let cluster = Self { world, masters };
        cluster.elect(0, 1);
        cluster
    }

    /// One master, which leads, on a network.
    pub async fn start_on(network: &dyn Network) -> Self {
        let world = Arc::new(Mutex::new(World::new(&[STORE_A, STORE_B])));
        let master = FakeMaster::start_on(network, 1, &world).await;
        *master.says.masters.lock() = vec![master.says.address.clone()];
        let cluster = Self { world, masters: vec![master] };
        cluster.elect(0, 1);
        cluster
    }

    /// Makes a master the leader in the eyes of all.
    pub fn elect(&self, at: usize, term: u64) {
        let leader = self.masters[at].as_leader(term);
        self.world.lock().leader = Some(leader.clone());
        for master in &self.masters {
            master.names(Some(leader.clone()));
        }
    }

    pub fn depose(&self) {
        for master in &self.masters {
            master.names(None);
        }
    }

    pub fn list(&self) -> String {
        let addresses: Vec<_> = self.masters.iter().map(|master| master.says.address.as_str()).collect();
        addresses.join(",")
    }

    pub fn builder(&self) -> Builder {
        Client::builder().masters(self.list()).transport(Arc::new(FakeTransport(Arc::clone(&self.world))))
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.unwrap()
    }

    pub fn fault(&self, on: On, fault: Fault) {
        self.world.lock().faults.push_back((on, fault));
    }
}

/// Waits for a condition.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}

/// CRC-64/NVME, bit by bit.
pub fn checksum(bytes: &[u8]) -> Checksum {
    let mut crc = !0_u64;
    for byte in bytes {
        crc ^= u64::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x9a6c_9329_ac4b_c9b5 } else { crc >> 1 };
        }
    }
    Checksum(!crc)
}
