//! One schedule: a cluster forms, is maltreated for a while, is left alone, and must be well then.

use std::time::Duration;

use mc_tests::Seeded;
use mc_tests::checker::{Outcome, Verdict};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::client::{Caller, Client, STORE, Wanted, store};
use crate::invariants::{Invariants, views};
use crate::machine::Machine;
use crate::nemesis::Nemesis;
use crate::net::Net;
use crate::operator::{self, Order};
use crate::oracle::Oracle;
use crate::trace::Trace;

const MASTERS: usize = 3;
const CLIENTS: usize = 3;
const HOSTS: usize = MASTERS + CLIENTS + 1;

/// With nothing in the way, so long until the cluster has formed, until there is a leader that all follow, and until
/// everything is answered. Milliseconds.
const TO_FORM: u64 = 10_000;
const TO_CONVERGE: u64 = 10_000;
const TO_ANSWER: u64 = 10_000;
/// A dead id is replaced after 10 s of silence, which begin anew with every leader.
const TO_REPLACE: u64 = 20_000;

/// What became of a schedule.
pub(crate) struct Report {
    /// What did not hold.
    pub(crate) violation: Option<String>,
    /// Hash of all that happened, and of how many events.
    pub(crate) trace: (u64, u64),
    /// In one line.
    pub(crate) summary: String,
    /// The faults.
    pub(crate) faults: Vec<String>,
}

struct Schedule {
    now: u64,
    machines: Vec<Machine>,
    net: Net,
    oracle: Oracle,
    invariants: Invariants,
    nemesis: Nemesis,
    outside: tokio::runtime::Runtime,
}

/// Runs the schedule of `seed`.
pub(crate) fn run(seed: u64) -> Report {
    let trace = Trace::default();
    let mut rng = Seeded::new(seed);
    rng.bits();
    let root = tempfile::tempdir_in(scratch()).expect("a folder for the files");
    let net = Net::new(HOSTS, rng.part(1), trace.clone());
    let (orders, ordered) = mpsc::unbounded_channel();
    let snapshot_every = [8, 30, 200][rng.below(3) as usize];
    let machine =
        |host| Machine::new(host, MASTERS, &net, root.path(), snapshot_every, rng.part(10 + host as u64));
    let mut schedule = Schedule {
        now: 0,
        machines: (0..MASTERS).map(machine).collect(),
        oracle: Oracle::new(trace.clone()),
        invariants: Invariants::new(MASTERS, trace.clone()),
        nemesis: Nemesis::new(MASTERS, HOSTS, &net, rng.part(2), trace.clone(), orders),
        net: net.clone(),
        outside: Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O has nothing to fail with"),
    };
    let outcome = schedule.play(&rng, ordered);
    let violation = match outcome {
        Ok(()) => match schedule.oracle.verdict() {
            Verdict::Violation(violation) => Some(violation.to_string()),
            Verdict::Linearizable { .. } | Verdict::Unknown { .. } => None,
        },
        Err(violation) => Some(format!("{} ms: {violation}", schedule.now)),
    };
    let summary = format!(
        "{} ms, {} puts acknowledged, {} reads, {} unknown, {} terms, {} entries, {} faults, {} segments",
        schedule.now,
        schedule.oracle.count(|op| op.outcome == Outcome::Stored),
        schedule.oracle.count(|op| matches!(op.outcome, Outcome::Value(_) | Outcome::Miss)),
        schedule.oracle.count(|op| op.outcome == Outcome::Unknown),
        schedule.invariants.terms(),
        schedule.invariants.entries(),
        schedule.nemesis.log.len(),
        net.delivered(),
    );
    let faults = std::mem::take(&mut schedule.nemesis.log);
    let sum = trace.sum();
    for machine in &mut schedule.machines {
        machine.kill();
    }
    Report { violation, trace: sum, summary, faults }
}

/// In memory where there is such a place: every sync of a simulated disk is a sync there.
fn scratch() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

impl Schedule {
    fn play(&mut self, rng: &Seeded, ordered: mpsc::UnboundedReceiver<Order>) -> Result<(), String> {
        for machine in &mut self.machines {
            machine.start();
        }
        let began = self.now;
        while Invariants::converged(&self.machines).is_none() {
            self.step(false)?;
            if self.now - began > TO_FORM {
                return Err(format!("no cluster within {TO_FORM} ms{}", views(&self.machines)));
            }
        }

        let inside = self.outside.enter();
        let network = self.net.of(HOSTS - 1);
        let beats = store(Caller::new(&network, MASTERS, STORE, rng.part(3)), rng.part(4));
        self.outside.spawn(beats);
        let masters = Caller::new(&network, MASTERS, operator::PATIENCE, rng.part(6));
        self.outside.spawn(operator::operate(masters, ordered));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let network = self.net.of(MASTERS + number);
                let part = rng.part(20 + number as u64);
                let number = u32::try_from(number).unwrap_or(0);
                let client = Client::new(number, &network, MASTERS, self.oracle.clone(), part);
                self.outside.spawn(client.run(self.nemesis.wanted.clone()))
            })
            .collect();
        drop(inside);

        let until = self.now + 4_000 + rng.part(5).below(8_000);
        while self.now < until {
            self.step(true)?;
        }
        self.nemesis.end(self.now, &mut self.machines);
        *self.nemesis.wanted.lock() = Wanted::Nothing;

        let clients = self.outside.spawn(futures::future::join_all(clients));
        let patience = if self.nemesis.wiped { TO_CONVERGE + TO_REPLACE } else { TO_CONVERGE };
        let began = self.now;
        while !clients.is_finished() || Invariants::converged(&self.machines).is_none() {
            // One that was asked to stop ends only now.
            self.machines.iter_mut().for_each(Machine::start);
            self.step(false)?;
            if self.now - began > patience {
                let views = views(&self.machines);
                return Err(format!("no leader that all follow {patience} ms after the last fault{views}"));
            }
        }
        let clients = self.outside.block_on(clients).map_err(|err| err.to_string())?;
        let read = self.outside.spawn(async {
            for client in clients {
                let mut client = client.map_err(|err| err.to_string())?;
                client.put_one().await;
                client.read_all().await;
            }
            Ok(())
        });
        let began = self.now;
        while !read.is_finished() {
            self.step(false)?;
            if self.now - began > TO_ANSWER {
                return Err(format!("not everything is answered {TO_ANSWER} ms after the cluster was well"));
            }
        }
        self.outside.block_on(read).map_err(|err| err.to_string())?
    }

    /// Lets a millisecond pass everywhere, and checks.
    fn step(&mut self, faults: bool) -> Result<(), String> {
        self.now += 1;
        self.oracle.set_now(self.now);
        self.net.advance(self.now);
        if faults {
            self.nemesis.step(self.now, &mut self.machines);
        }
        for machine in &mut self.machines {
            machine.step();
        }
        self.outside.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        for machine in &self.machines {
            self.invariants.check(machine)?;
        }
        self.oracle.violation().map_or(Ok(()), Err)
    }
}
