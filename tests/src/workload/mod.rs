//! Clients that call in seeded random ways, as engines do, and record each call.

mod batches;
mod bursts;
mod call;
mod clears;
mod deadlines;
mod groups;
mod judged;
mod ledger;
mod mix;
mod puts;
mod ranges;
mod running;
mod sessions;
mod sizes;
mod tenants;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mc_client::{Builder, ByteSize, PutMode, PutOptions, StoreId};

pub use deadlines::Deadlines;
pub use ledger::Ledger;
pub use mix::Mix;
pub use running::Running;
pub use tenants::tenant_key;

use sizes::Sizes;
use tenants::Tenant;

use crate::Seeded;

/// Settings of clients that do seeded random operations on a small set of keys.
#[derive(Clone, Debug)]
#[must_use]
pub struct Workload {
    seed: u64,
    clients: u32,
    callers: u64,
    keys: u64,
    sizes: Sizes,
    bursts: Range<u64>,
    tenants: Vec<Tenant>,
    mix: Mix,
    deadlines: Deadlines,
    preferred: Vec<StoreId>,
    pace: Duration,
    cached: bool,
    /// Whether clients may fail to read what is there, which is no loss.
    may_not_read: bool,
    ledger: Ledger,
}

impl Workload {
    /// Makes a workload of four clients, 64 keys, values of 1 B to 64 KiB, and all operations.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            clients: 4,
            callers: 1,
            keys: 64,
            sizes: Sizes::Any(1..64 << 10),
            bursts: 64..65,
            tenants: vec![Tenant::default()],
            mix: Mix::ALL,
            deadlines: Deadlines::default(),
            preferred: Vec::new(),
            pace: Duration::ZERO,
            cached: false,
            may_not_read: false,
            ledger: Ledger::Read,
        }
    }

    /// Makes a workload that removes nothing and seldom meets a key again: what masters forget is missed.
    pub fn growing(seed: u64) -> Self {
        Self::new(seed).keys(100_000).sizes(1..512).mix(Mix::GROWING)
    }

    /// Makes a workload of three clients, each of which three callers use at once in all ways in which engines call: with
    /// bursts of 64 to 1,000 calls, and values of 2 KiB to 8 MiB.
    pub fn engines(seed: u64) -> Self {
        let sizes = Sizes::OfEachKey(2 << 10..8 << 20);
        Self { callers: 3, sizes, ..Self::new(seed) }.clients(3).mix(Mix::ENGINES).bursts(64..1_001)
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
        self.sizes = Sizes::Any(sizes);
        self
    }

    /// Sets the range of the number of calls in a burst. Most bursts are small.
    pub fn bursts(mut self, calls: Range<u64>) -> Self {
        self.bursts = calls;
        self
    }

    /// Divides the clients among tenants, each with a quota or without one, instead of the default tenant.
    pub fn tenants<const N: usize>(mut self, tenants: [(&str, Option<ByteSize>); N]) -> Self {
        self.tenants = tenants.map(|(name, quota)| Tenant { name: name.to_owned(), quota }).into();
        self
    }

    /// Sets the weights of the ways of calling.
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

    /// Tells misses of values that a client found and could read from no store ([`Outcome::Unread`](crate::checker::Outcome)) from those that
    /// may be losses, but for the final reads.
    pub fn may_not_read(mut self) -> Self {
        self.may_not_read = true;
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
        let mut running = Running::new(self, builder);
        let (workload, stop) = (running.workload.clone(), running.stop.clone());
        for (number, tenant) in (0..workload.clients).zip(workload.tenants.iter().cycle()) {
            let client = Arc::new(running.judged(number, tenant).await);
            for caller in 0..workload.callers {
                let random = Seeded::new(workload.seed).part(u64::from(number)).part(caller);
                running.tasks.spawn(client.clone().run(random, stop.clone()));
            }
        }
        // One more than the clients: the ledger has its own.
        let client = running.judged(workload.clients, &workload.tenants[0]).await;
        let random = Seeded::new(workload.seed).part(u64::from(workload.clients));
        let (options, stopped) = (workload.options(PutMode::IfAbsent), stop.clone());
        let ledger = workload.ledger;
        running.tasks.spawn(async move { ledger.keep(&client, &options, random, &stopped).await });
        for (number, tenant) in (0..).zip(&workload.tenants) {
            let client = running.judged(number, tenant).await.client;
            tenant.register(&client).await;
            running.tasks.spawn(tenant.clone().watch(client, stop.clone()));
        }
        running
    }
}
