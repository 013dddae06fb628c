//! Clients that do seeded random operations, each of which is recorded.

mod deadlines;
mod judged;
mod ledger;
mod mix;
mod running;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use mc_client::{Builder, PutMode, PutOptions, StoreId};
use tokio::task::JoinSet;

pub use deadlines::Deadlines;
pub use ledger::Ledger;
pub use mix::Mix;
pub use running::Running;

use judged::{Errors, Judged};

use crate::{Recorder, Seeded};

/// Settings of clients that do seeded random operations on a small set of keys.
#[derive(Clone, Debug)]
#[must_use]
pub struct Workload {
    seed: u64,
    clients: u32,
    keys: u64,
    sizes: Range<u64>,
    mix: Mix,
    deadlines: Deadlines,
    preferred: Vec<StoreId>,
    pace: Duration,
    cached: bool,
    ledger: Ledger,
}

impl Workload {
    /// Makes a workload of four clients, 64 keys, values of 1 B to 64 KiB, and all operations.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            clients: 4,
            keys: 64,
            sizes: 1..64 << 10,
            mix: Mix::ALL,
            deadlines: Deadlines::default(),
            preferred: Vec::new(),
            pace: Duration::ZERO,
            cached: false,
            ledger: Ledger::Read,
        }
    }

    /// Makes a workload that removes nothing and seldom meets a key again: what masters forget is missed.
    pub fn growing(seed: u64) -> Self {
        Self::new(seed).keys(100_000).sizes(1..512).mix(Mix::GROWING)
    }

    /// Sets the number of clients, each a client of the library.
    pub fn clients(mut self, clients: u32) -> Self {
        self.clients = clients;
        self
    }

    /// Sets the number of keys; with fewer keys more operations overlap.
    pub fn keys(mut self, keys: u64) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the range of the values' sizes, in bytes.
    pub fn sizes(mut self, sizes: Range<u64>) -> Self {
        self.sizes = sizes;
        self
    }

    /// Sets the weights of the operations.
    pub fn mix(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// Places all objects on this store while it has room.
    pub fn preferred(mut self, store: StoreId) -> Self {
        self.preferred = vec![store];
        self
    }

    /// Sets the time limits of the calls.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Sets a pause after each operation, so that a long run stays small.
    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Sets what becomes of the [keys that are written once](Ledger).
    pub fn ledger(mut self, ledger: Ledger) -> Self {
        self.ledger = ledger;
        self
    }

    /// Gives the clients local caches. Without a leader in reach, their answers may then come from there and say
    /// nothing of the pool. Without caches, every value comes from the pool and is judged.
    pub fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    fn options(&self, mode: PutMode) -> PutOptions {
        PutOptions::default()
            .with_mode(mode)
            .with_deadline(self.deadlines.put)
            .with_preferred(self.preferred.clone())
    }

    /// Connects the clients and starts them.
    pub async fn start(self, builder: &Builder) -> Running {
        let builder = builder.clone().get_timeout(self.deadlines.get).call_timeout(self.deadlines.call);
        let recorder = Recorder::new();
        let stop = Arc::new(AtomicBool::new(false));
        let next_put = Arc::new(AtomicU64::new(1));
        let errors = Errors::default();
        let mut clients = JoinSet::new();
        // One more than the clients: the ledger has its own.
        for number in 0..=self.clients {
            let client = builder.clone().connect().await.expect("settings of a client");
            let one = Judged {
                number,
                client,
                recorder: recorder.clone(),
                next_put: next_put.clone(),
                errors: errors.clone(),
                cached: self.cached,
            };
            let (workload, stop) = (self.clone(), stop.clone());
            let random = Seeded::new(self.seed).part(u64::from(number));
            clients.spawn(async move {
                if number < workload.clients {
                    one.run(&workload, random, &stop).await;
                } else {
                    workload.ledger.keep(&one, &workload.options(PutMode::IfAbsent), random, &stop).await;
                }
            });
        }
        Running { recorder, stop, clients, builder, deadlines: self.deadlines, errors, cached: self.cached }
    }
}
