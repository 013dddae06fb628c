//! A machine with a master on it: what survives on its disks, and the process, which is a runtime of its own.
//!
//! All that a master does happens in tasks of its runtime, so dropping the runtime is `kill -9`. Its time is the
//! runtime's, which stands still unless the simulation moves it on: more or less than the others' for a clock that runs
//! at another rate, not at all for a stopped process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser as _;
use futures::FutureExt as _;
use mc_durable::FreeSpace;
use mc_master::MasterArgs;
use mc_master::{Environment, Master, Prepared, Rescue, RescueError};
use mc_process::config::Loaded;
use mc_raft::RaftNode;
use mc_tests::Seeded;
use mc_types::Clock;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::files;
use crate::log::{RescueLogs, SimLog};
use crate::net::{Host, Net, address_of};
use crate::written::Entries;

/// The room in a data directory: all one could wish for, or hardly any.
#[derive(Debug, Default)]
struct Room {
    nearly_full: AtomicBool,
}

impl FreeSpace for Room {
    fn free_bytes(&self, _: &Path) -> std::io::Result<u64> {
        Ok(if self.nearly_full.load(Ordering::Relaxed) { 1 << 10 } else { u64::MAX })
    }
}

/// Tasks that a runtime polls before it looks at the rest: a process can be killed between any two such groups.
const TASKS_AT_ONCE: u32 = 4;

/// Ports as everywhere.
pub(crate) const RAFT: u16 = 50055;
pub(crate) const CLIENTS: u16 = 50051;
pub(crate) const HTTP: u16 = 9003;

pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) log: SimLog,
    net: Net,
    entries: Entries,
    args: MasterArgs,
    rng: Seeded,
    /// How much faster its clock runs, in parts per million.
    drift: i64,
    fraction: i64,
    process: Option<Process>,
    /// Counts the processes that ran here.
    pub(crate) starts: u64,
    /// Its log has lost writes since a process last ran here.
    lost_writes: bool,
    /// Counts the processes that found it so.
    pub(crate) restarts_after_loss: usize,
    room: Arc<Room>,
    /// Counts the disks that were taken.
    pub(crate) wipes: u64,
    /// The process is killed in the middle of the next step, after so many groups of tasks.
    stumbles_after: Option<u64>,
    /// Counts the processes that were killed in the middle of their work.
    pub(crate) killed_at_work: usize,
    /// Counts the processes that ended because of their disk.
    pub(crate) ended_by_disk: usize,
}

struct Process {
    runtime: Runtime,
    master: Arc<Mutex<Phase>>,
    /// Milliseconds of the machine that a stopped process has not seen.
    missed: Option<u64>,
}

enum Phase {
    Starting,
    Up(Master),
    /// It gave up, and why.
    Failed(String),
    /// It was asked to stop and is doing so, or has.
    Stopping,
    Stopped,
}

impl Machine {
    /// `peers`: whom it meets to find its cluster, itself among them. What its log is given is noted in `entries`.
    pub(crate) fn new(
        host: Host,
        peers: impl Iterator<Item = Host>,
        (net, entries): (&Net, &Entries),
        root: &Path,
        snapshot_every: u64,
        mut rng: Seeded,
    ) -> Self {
        let peers: Vec<_> = peers.map(|peer| address_of(peer, RAFT).to_string()).collect();
        let dir = root.join(format!("m{host}"));
        let args = MasterArgs::parse_from([
            "mc-master".to_owned(),
            format!("--peers={}", peers.join(",")),
            format!("--listen={}", address_of(host, CLIENTS)),
            format!("--raft-listen={}", address_of(host, RAFT)),
            format!("--http-listen={}", address_of(host, HTTP)),
            format!("--data-dir={}", dir.display()),
            format!("--snapshot-log-entries={snapshot_every}"),
            format!("--keep-log-entries={}", snapshot_every / 4),
            // The shortest one: a leased object is not evicted.
            "--read-lease=5s".to_owned(),
        ]);
        Self {
            host,
            log: SimLog::new(rng.part(1), entries.clone()),
            net: net.clone(),
            entries: entries.clone(),
            args,
            // Clocks differ by a little, or by as much as leases are made for.
            drift: match rng.below(3) {
                0 => 0,
                _ => i64::try_from(rng.below(100_000)).unwrap_or(0) - 50_000,
            },
            fraction: 0,
            rng: rng.part(2),
            process: None,
            starts: 0,
            lost_writes: false,
            restarts_after_loss: 0,
            room: Arc::default(),
            wipes: 0,
            stumbles_after: None,
            killed_at_work: 0,
            ended_by_disk: 0,
        }
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.dir().join("snapshots")
    }

    fn dir(&self) -> &PathBuf {
        &self.args.data_dir
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts a master, unless one runs.
    pub(crate) fn start(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.net.set_power(self.host, true);
        self.starts += 1;
        self.restarts_after_loss += usize::from(std::mem::take(&mut self.lost_writes));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .event_interval(TASKS_AT_ONCE)
            .build()
            .expect("a runtime without I/O has nothing to fail with");
        let master = Arc::new(Mutex::new(Phase::Starting));
        let (args, network, log) = (self.args.clone(), self.net.of(self.host), Arc::new(self.log.clone()));
        let room = self.room.clone();
        let phase = master.clone();
        runtime.spawn(async move {
            let environment = Environment {
                clock: Clock::monotonic(),
                network,
                log,
                raft: tokio::runtime::Handle::current(),
                free_space: room,
            };
            let started = Master::start(&Loaded { args, settings: Vec::new() }, environment).await;
            *phase.lock() = match started {
                Ok(master) => Phase::Up(master),
                Err(error) => Phase::Failed(error.to_string()),
            };
        });
        self.process = Some(Process { runtime, master, missed: None });
    }

    /// `kill -9`: connections are closed by the kernel, what was written stays.
    pub(crate) fn kill(&mut self) {
        self.stumbles_after = None;
        if let Some(process) = self.process.take() {
            self.net.close_listeners(self.host);
            drop(process);
            self.log.process_died();
        }
    }

    /// The process is killed in the middle of its next step, in which it gets to run so many groups of tasks.
    pub(crate) fn kill_at_work(&mut self, groups: u64) {
        self.stumbles_after = self.process.is_some().then_some(groups);
    }

    /// The log's disk reports errors from now on, until the process has ended.
    pub(crate) fn break_disk(&self) {
        if self.process.is_some() {
            self.log.fail();
        }
    }

    pub(crate) fn set_nearly_full(&self, nearly_full: bool) {
        self.room.nearly_full.store(nearly_full, Ordering::Relaxed);
    }

    /// The power goes: nobody hears anything, and what was not synced is lost or not.
    pub(crate) fn lose_power(&mut self) {
        self.net.set_power(self.host, false);
        self.net.close_listeners(self.host);
        self.stumbles_after = None;
        drop(self.process.take());
        self.lost_writes |= self.log.lost_power();
        for dir in [self.dir().clone(), self.snapshots()] {
            if dir.exists() {
                files::lose_power(&dir, &mut self.rng).expect("files in memory can be written");
            }
        }
    }

    /// The process is killed, and all that it kept is gone.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        self.wipes += 1;
        self.log = SimLog::new(self.rng.part(2), self.entries.clone());
        self.lost_writes = false;
        files::take(self.dir()).expect("files in memory can be deleted");
    }

    /// Makes a cluster of one of what this machine keeps, as `mcctl members rescue` does. Returns the number of objects and
    /// the last entry that it found.
    pub(crate) fn rescue(&mut self) -> Result<(u64, u64), String> {
        let rescued = SimLog::new(self.rng.part(3), self.entries.clone());
        let logs = Arc::new(RescueLogs { old: self.log.clone(), new: rescued.clone() });
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O has nothing to fail with");
        let dir = self.dir().clone();
        let found = runtime.block_on(async move {
            let Prepared::Survivor(rescue) = Rescue::prepare(&dir, logs).await? else {
                unreachable!("no rescue was cut short");
            };
            let found = (rescue.keys(), rescue.last_index());
            rescue.carry_out().await?;
            // The writers of the logs end.
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(found)
        });
        drop(runtime);
        rescued.process_died();
        self.log = rescued;
        self.wipes += 1;
        files::keep_all(&self.snapshots()).expect("files in memory can be read");
        found.map_err(|error: RescueError| error.to_string())
    }

    /// SIGTERM.
    pub(crate) fn terminate(&mut self) {
        let Some(process) = &self.process else { return };
        let taken = std::mem::replace(&mut *process.master.lock(), Phase::Stopping);
        let Phase::Up(master) = taken else {
            *process.master.lock() = taken;
            return;
        };
        let phase = process.master.clone();
        process.runtime.spawn(async move {
            master.stop().await;
            *phase.lock() = Phase::Stopped;
        });
    }

    /// SIGSTOP.
    pub(crate) fn pause(&mut self) {
        if let Some(process) = &mut self.process {
            process.missed.get_or_insert(0);
        }
    }

    /// SIGCONT: the clock has gone on.
    pub(crate) fn resume(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Some(missed) = process.missed.take() {
            process.runtime.block_on(async { tokio::time::advance(Duration::from_millis(missed)).await });
        }
    }

    /// Lets a millisecond pass here.
    pub(crate) fn step(&mut self) {
        self.fraction += 1_000_000 + self.drift;
        let passed = self.fraction / 1_000_000;
        self.fraction %= 1_000_000;
        let Ok(passed) = u64::try_from(passed) else { return };
        let Some(process) = &mut self.process else { return };
        if let Some(missed) = &mut process.missed {
            *missed += passed;
            return;
        }
        let passed = Duration::from_millis(passed);
        if let Some(groups) = self.stumbles_after {
            process.runtime.block_on(async {
                tokio::time::advance(passed).await;
                for _ in 0..groups {
                    tokio::task::yield_now().await;
                }
            });
            self.killed_at_work += 1;
            return self.kill();
        }
        process.runtime.block_on(async { tokio::time::sleep(passed).await });
        if matches!(*process.master.lock(), Phase::Stopped) {
            self.kill();
        } else if self.log.is_broken() && self.failure().is_some() {
            self.ended_by_disk += 1;
            self.kill();
        }
    }

    /// Whether a process runs that is not stopped.
    pub(crate) fn is_awake(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.missed.is_none())
    }

    /// Looks at the running master's Raft node, if it has one by now: at its own time, not at that outside.
    pub(crate) fn with_raft<R>(&self, look: impl FnOnce(&RaftNode) -> R) -> Option<R> {
        let process = self.process.as_ref()?;
        let _inside = process.runtime.enter();
        match &*process.master.lock() {
            Phase::Up(master) => master.with_raft(look),
            _ => None,
        }
    }

    /// Why the master gave up, if it did: with the disks that it is promised it never has a reason.
    pub(crate) fn failure(&self) -> Option<String> {
        match &mut *self.process.as_ref()?.master.lock() {
            Phase::Failed(why) => Some(why.clone()),
            Phase::Up(master) => master.failed().now_or_never().map(|why| why.to_string()),
            _ => None,
        }
    }
}
