//! The clients of a simulated cluster. No bytes move here: they ask for places and never use them. Their calls are in
//! [`puts`](crate::puts), [`reads`](crate::reads), [`removals`](crate::removals) and [`entries`](crate::entries).

use std::sync::Arc;
use std::time::Duration;

use mc_proto::v1;
use mc_tests::Seeded;
use mc_tests::checker::{Action, Outcome};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::caller::Caller;
use crate::keys;
use crate::net::{Host, Net};
use crate::oracle::Oracle;
use crate::pool::Pool;

/// An operation that takes longer is given up.
pub(crate) const OPERATION: Duration = Duration::from_millis(1500);
/// Clients of a schedule that are not real ones.
pub(crate) const CLIENTS: usize = 3;
/// Most keys of one call.
const TOGETHER: u64 = 4;

/// Orders to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever they like.
    All,
    /// Reads alone, so that the log rests.
    Reads,
    /// Writes alone, one after the other, so that entries are always on their way.
    Writes,
    /// No more.
    Nothing,
}

/// How a client behaves. Some leave a master that does not answer soon and find a new leader while others still ask the
/// old one, which is where a stale answer would come from.
#[derive(Clone, Copy)]
pub(crate) struct Habit {
    /// An attempt that takes longer is given up.
    patience: Duration,
    /// Of 100 operations.
    reads: u64,
    /// Longest pause between two operations, in ms.
    pause: u64,
    /// Whether it asks any master first, whoever answered last.
    fickle: bool,
}

impl Habit {
    /// The habit of client `number`.
    pub(crate) fn of(number: u32) -> Self {
        match number % 3 {
            0 => Self { patience: Duration::from_millis(40), reads: 10, pause: 15, fickle: true },
            1 => Self { patience: Duration::from_millis(120), reads: 50, pause: 40, fickle: false },
            _ => Self { patience: Duration::from_millis(250), reads: 95, pause: 8, fickle: false },
        }
    }
}

/// One client: an operation at a time.
pub(crate) struct Client {
    pub(crate) number: u32,
    habit: Habit,
    pub(crate) net: Net,
    pub(crate) host: Host,
    pub(crate) caller: Caller,
    pub(crate) oracle: Oracle,
    pub(crate) rng: Seeded,
    pub(crate) pool: Pool,
    /// Keys that it put once and leaves alone.
    kept: Vec<String>,
}

impl Client {
    pub(crate) fn new(
        number: usize,
        net: Net,
        masters: usize,
        oracle: Oracle,
        pool: Pool,
        rng: Seeded,
    ) -> Self {
        // The hosts of the clients follow those of the masters.
        let host = masters + number;
        let number = u32::try_from(number).unwrap_or(0);
        let habit = Habit::of(number);
        let caller = Caller::new(&net.of(host), masters, habit.patience, rng.part(1));
        Self { number, habit, net, host, caller, oracle, rng: rng.part(2), pool, kept: Vec::new() }
    }

    /// Does random operations until told to stop.
    pub(crate) async fn run(mut self, wanted: Arc<Mutex<Wanted>>) -> Self {
        loop {
            let wanted = *wanted.lock();
            if wanted == Wanted::Nothing {
                return self;
            }
            let draw = self.rng.bits();
            let hot = keys::hot(draw);
            let kind = self.rng.below(10);
            if self.habit.fickle && wanted != Wanted::Writes {
                self.caller.anyone();
            }
            let reads = match wanted {
                Wanted::Reads => true,
                Wanted::Writes => false,
                Wanted::All | Wanted::Nothing => self.rng.below(100) < self.habit.reads,
            };
            if reads {
                match self.rng.below(self.kept.len() as u64 + 1) as usize {
                    _ if kind == 0 && draw & 1 << 20 == 0 => self.exist(&hot).await,
                    _ if kind == 0 => self.describe(&hot).await,
                    _ if kind == 6 => drop(self.get_all(self.several(draw)).await),
                    _ if kind == 3 => drop(self.get(&keys::bound(draw)).await),
                    _ if kind == 4 => drop(self.get(&keys::scratch(draw)).await),
                    _ if kind == 5 => drop(self.get_entry(&keys::entry(draw)).await),
                    at if kind < 3 && at < self.kept.len() => {
                        let key = self.kept[at].clone();
                        self.get(&key).await;
                    }
                    _ => {
                        self.get(&hot).await;
                    }
                }
            } else {
                match kind {
                    0 | 1 => {
                        let key = self.new_kept(draw);
                        self.put(&key, v1::PutMode::Upsert).await;
                    }
                    2 => self.change_entry(&keys::entry(draw)).await,
                    3 if draw & 1 << 20 == 0 => self.remove(vec![hot]).await,
                    3 => self.remove(keys::several_hot(draw, TOGETHER)).await,
                    4 => self.revoke(&hot).await,
                    5 => {
                        self.put(&hot, v1::PutMode::IfAbsent).await;
                    }
                    6 => {
                        self.put(&keys::bound(draw), v1::PutMode::Upsert).await;
                    }
                    7 => {
                        let key = keys::scratch(draw);
                        match self.rng.below(4) {
                            0 => self.remove_many().await,
                            1 => self.drop_replica(&key).await,
                            _ => drop(self.put(&key, v1::PutMode::IfAbsent).await),
                        }
                    }
                    8 => {
                        let mut keys = keys::several_hot(draw, TOGETHER - 1);
                        keys.push(self.new_kept(draw));
                        self.put_all(keys, v1::PutMode::Upsert).await;
                    }
                    _ => {
                        self.put(&hot, v1::PutMode::Upsert).await;
                    }
                }
            }
            if wanted != Wanted::Writes {
                sleep(Duration::from_millis(self.rng.below(self.habit.pause))).await;
            }
        }
    }

    /// A key that only this client puts, and only once.
    fn new_kept(&mut self, draw: u64) -> String {
        let key = keys::kept(draw, self.number, self.kept.len());
        self.kept.push(key.clone());
        key
    }

    /// Keys to read by one call.
    fn several(&self, draw: u64) -> Vec<String> {
        let mut keys = keys::several_hot(draw, TOGETHER);
        keys.extend(self.kept.last().cloned());
        keys
    }

    pub(crate) fn record(&self, key: &str, action: Action, outcome: Outcome, started: u64) -> Outcome {
        self.oracle.record(self.number, key, action, outcome, started);
        outcome
    }
}
