//! One schedule: a cluster forms, is maltreated for a while, is left alone, and must be well then.

use std::time::Duration;

use mc_tests::Seeded;
use mc_tests::checker::{Outcome, Verdict};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::c_library;
use crate::caller::Caller;
use crate::client::{CLIENTS, Client, Wanted};
use crate::exercised::Exercised;
use crate::invariants::{Invariants, views};
use crate::lender::{self, Lender};
use crate::machine::Machine;
use crate::nemesis::Nemesis;
use crate::net::Net;
use crate::operator::{self, Order};
use crate::oracle::Oracle;
use crate::pool::Pool;
use crate::store::{self, Mortal, STORES};
use crate::trace::Trace;
use crate::user::User;
use crate::written::Entries;

/// Real ones, beside those.
const USERS: usize = 2;

/// With nothing in the way, so long until the cluster has formed, until what was ordered by hand is done, until there is a
/// leader that all follow, and until everything is answered. Milliseconds.
const TO_FORM: u64 = 10_000;
const TO_OBEY: u64 = 60_000;
pub(crate) const TO_CONVERGE: u64 = 10_000;
const TO_ANSWER: u64 = 10_000;
/// A dead id is replaced after 10 s of silence, which begin again with every leader.
const TO_REPLACE: u64 = 20_000;
/// It is not replaced within a minute of another change of the voters.
const AFTER_A_CHANGE: u64 = 60_000;

/// Verdict on a schedule.
pub(crate) enum Found {
    /// Everything held.
    Nothing,
    /// The search for an order of the operations was given up.
    Undecided(String),
    /// An invariant does not hold.
    Violation(String),
}

/// Result of a schedule.
pub(crate) struct Report {
    pub(crate) found: Found,
    /// Hash of all that happened, and of how many events.
    pub(crate) trace: (u64, u64),
    /// In one line.
    pub(crate) summary: String,
    /// Counts of what schedules are for.
    pub(crate) exercised: Exercised,
    /// The faults.
    pub(crate) faults: Vec<String>,
}

pub(crate) struct Schedule {
    pub(crate) now: u64,
    pub(crate) machines: Vec<Machine>,
    pub(crate) net: Net,
    pub(crate) oracle: Oracle,
    pub(crate) invariants: Invariants,
    pub(crate) nemesis: Nemesis,
    mortal: Mortal,
    /// The verdict on all calls of the clients.
    verdict: Option<Verdict>,
    /// Masters that were restarted by hand, one after the other.
    pub(crate) rolled: usize,
    /// Objects that a rescued cluster was found to have.
    pub(crate) rescued: usize,
    /// Values that were read in one.
    pub(crate) read_after_rescue: usize,
    pub(crate) trace: Trace,
    pub(crate) entries: Entries,
    pub(crate) lenders: Vec<Lender>,
    pub(crate) outside: tokio::runtime::Runtime,
}

/// Whether the bounds on the work of one step are small in the schedule of `seed`.
pub(crate) fn has_small_bounds(seed: u64) -> bool {
    Seeded::new(seed).part(15).below(4) == 0
}

/// Runs the schedule of `seed`.
pub(crate) fn run(seed: u64) -> Report {
    let trace = Trace::default();
    let mut rng = Seeded::new(seed);
    rng.bits();
    // Its random part is drawn from the seed as well, and another run of the seed may have it.
    let name = format!("mc-sim-{}-", std::process::id());
    let root = tempfile::Builder::new().prefix(&name).tempdir_in(scratch()).expect("a folder for the files");
    let (masters, founders) = size(rng.part(7));
    let hosts = masters + CLIENTS + STORES + USERS;
    let net = Net::new(hosts, rng.part(1), trace.clone());
    let (orders, ordered) = mpsc::unbounded_channel();
    let entries = Entries::default();
    let snapshot_every = [8, 30, 200][rng.below(3) as usize];
    let machine = |host| {
        let newcomer = (host >= founders).then_some(host);
        let peers = (0..founders).chain(newcomer);
        Machine::new(host, peers, (&net, &entries), root.path(), snapshot_every, rng.part(10 + host as u64))
    };
    let mortal = Mortal::new();
    let pool = Pool::draw(rng.part(8));
    let mut schedule = Schedule {
        now: 0,
        machines: (0..masters).map(machine).collect(),
        oracle: Oracle::new(trace.clone(), pool),
        invariants: Invariants::new(masters, trace.clone(), entries.clone()),
        nemesis: Nemesis::new(
            [masters, founders, hosts],
            &net,
            rng.part(2),
            trace.clone(),
            orders,
            mortal.clone(),
        ),
        mortal,
        verdict: None,
        rolled: 0,
        rescued: 0,
        read_after_rescue: 0,
        trace: trace.clone(),
        entries: entries.clone(),
        lenders: Vec::new(),
        net: net.clone(),
        outside: Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O has nothing to fail with"),
    };
    let outcome = schedule.play(&rng, ordered, pool);
    let found = match outcome {
        Ok(()) => match schedule.verdict.take().unwrap_or_else(|| schedule.oracle.verdict()) {
            Verdict::Linearizable { .. } => Found::Nothing,
            undecided @ Verdict::Unknown { .. } => Found::Undecided(undecided.to_string()),
            Verdict::Violation(violation) => Found::Violation(violation.to_string()),
        },
        Err(violation) => Found::Violation(format!("{} ms: {violation}", schedule.now)),
    };
    let summary = format!(
        "{founders} masters, then {}, {} bounds, {} ms, {} puts acknowledged, {} reads, {} unknown, {} terms, {} entries, \
         {} faults, {} segments",
        schedule.nemesis.members.len(),
        if has_small_bounds(seed) { "small" } else { "usual" },
        schedule.now,
        schedule.oracle.count(|op| op.outcome == Outcome::Stored),
        schedule.oracle.count(|op| matches!(op.outcome, Outcome::Value(_) | Outcome::Miss)),
        schedule.oracle.count(|op| op.outcome == Outcome::Unknown),
        schedule.invariants.terms(),
        schedule.invariants.committed_entries(),
        schedule.nemesis.log.len(),
        net.delivered(),
    );
    let exercised = schedule.exercised();
    let faults = std::mem::take(&mut schedule.nemesis.log);
    let sum = trace.sum();
    for machine in &mut schedule.machines {
        machine.kill();
    }
    Report { found, trace: sum, summary, exercised, faults }
}

/// How many masters there may be, and how many of them form the cluster: mostly three, who stay these three; else five
/// from the beginning, or three who become more.
fn size(mut rng: Seeded) -> (usize, usize) {
    match (rng.below(4), rng.below(3)) {
        (0, 0) => (5, 5),
        (0, _) => (5, 3),
        _ => (3, 3),
    }
}

/// In memory where there is such a place: every sync of a simulated disk is a sync there.
fn scratch() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

impl Schedule {
    fn play(
        &mut self,
        rng: &Seeded,
        ordered: mpsc::UnboundedReceiver<Order>,
        pool: Pool,
    ) -> Result<(), String> {
        for founder in self.nemesis.members.iter().copied() {
            self.machines[founder].start();
        }
        let began = self.now;
        while !self.converged() {
            self.step(false)?;
            if self.now - began > TO_FORM {
                return Err(format!("no cluster within {TO_FORM} ms{}", views(&self.machines)));
            }
        }

        let masters = self.machines.len();
        let stores = masters + CLIENTS;
        let lender = |number| Lender::start(number, stores + number, &self.net, masters);
        self.lenders = store::real().map(lender).collect();
        let inside = self.outside.enter();
        let network = self.net.of(stores + store::MORTAL);
        let address = lender::address(stores, store::MORTAL).to_string();
        let part = rng.part(3);
        let caller = Caller::new(&network, masters, store::PATIENCE, part.part(1));
        self.outside.spawn(store::store(address, caller, part.part(2), self.mortal.clone()));
        let network = self.net.of(masters + CLIENTS);
        let caller = Caller::new(&network, masters, operator::PATIENCE, rng.part(6));
        let operator = self.outside.spawn(operator::operate(caller, ordered, pool));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let part = rng.part(20 + number as u64);
                let client = Client::new(number, self.net.clone(), masters, self.oracle.clone(), pool, part);
                self.outside.spawn(client.run(self.nemesis.wanted.clone()))
            })
            .collect();
        let users: Vec<_> = (0..USERS)
            .map(|number| {
                let host = (u32::try_from(CLIENTS + number).unwrap_or(0), stores + STORES + number);
                let judge = (self.oracle.clone(), pool);
                let user = User::start(host, self.net.clone(), masters, judge, rng.part(40 + number as u64));
                let wanted = self.nemesis.wanted.clone();
                self.outside.spawn(async { user.await.run(wanted).await })
            })
            .collect();
        drop(inside);

        let until = self.now + 4_000 + rng.part(5).below(8_000);
        while self.now < until {
            self.step(true)?;
        }
        self.nemesis.end(self.now, &mut self.machines);
        // Where a master was added or has lost its disk, members change for a minute more.
        let rolls = rng.part(9).below(3) == 0 && !self.nemesis.wiped && !self.nemesis.added;
        if rolls {
            self.roll(rng.part(9))?;
        }
        *self.nemesis.wanted.lock() = Wanted::Nothing;

        let (clients, users) = (futures::future::join_all(clients), futures::future::join_all(users));
        let clients = self.outside.spawn(futures::future::join(clients, users));
        let patience = TO_CONVERGE
            + match (self.nemesis.wiped, self.nemesis.added) {
                (true, true) => AFTER_A_CHANGE + TO_REPLACE,
                (true, false) => TO_REPLACE,
                (false, _) => 0,
            };
        let began = self.now;
        while !operator.is_finished() {
            self.step_with_all()?;
            if self.now - began > TO_OBEY {
                let views = views(&self.machines);
                return Err(format!("members are not as ordered {TO_OBEY} ms after the last fault{views}"));
            }
        }
        let began = self.now;
        while !clients.is_finished() || !self.converged() {
            self.step_with_all()?;
            if self.now - began > patience {
                let views = views(&self.machines);
                return Err(format!("no leader that all follow {patience} ms after the last fault{views}"));
            }
        }
        let (clients, users) = self.outside.block_on(clients).map_err(|err| err.to_string())?;
        let read = self.outside.spawn(async {
            for user in users {
                user.map_err(|err| err.to_string())?.finish().await;
            }
            for client in clients {
                let mut client = client.map_err(|err| err.to_string())?;
                client.put_one().await;
                client.read_all().await;
            }
            Ok::<_, String>(())
        });
        let began = self.now;
        while !read.is_finished() {
            self.step(false)?;
            if self.now - began > TO_ANSWER {
                return Err(format!("not everything is answered {TO_ANSWER} ms after the cluster was well"));
            }
        }
        self.outside.block_on(read).map_err(|err| err.to_string())??;
        // Where members have changed, one more change may have to wait for a minute.
        let steady = masters == 3 && !self.nemesis.wiped && !self.nemesis.added;
        // Calls of a cluster that is lost are judged by themselves.
        self.verdict = Some(self.oracle.verdict());
        match steady && pool == Pool::Roomy && rng.part(11).below(3) == 0 {
            true => self.rescue(rng.part(11)),
            false => Ok(()),
        }
    }

    fn exercised(&self) -> Exercised {
        let of_all = |count: fn(&Machine) -> usize| self.machines.iter().map(count).sum();
        let tally = self.oracle.tallied();
        let mut exercised = Exercised {
            restarts_after_loss: of_all(|machine| machine.restarts_after_loss),
            killed_at_work: of_all(|machine| machine.killed_at_work),
            ended_by_disk: of_all(|machine| machine.ended_by_disk),
            cut_links: self.nemesis.cut_links,
            puts_on_two_stores: tally.on_two_stores,
            puts_revoked: tally.revoked,
            puts_without_room: tally.refused_for_room,
            puts_over_quota: tally.refused_for_quota,
            mass_removals: tally.mass_removals,
            entries_changed: tally.entries_changed,
            replicas_dropped: tally.replicas_dropped,
            puts_without_memory: tally.refused_for_memory,
            puts_together: tally.stored_together,
            reads_together: tally.read_together,
            removals_together: tally.removed_together,
            pins_changed: tally.pins_changed,
            pins_read: tally.pins_read,
            rolled: self.rolled,
            objects_rescued: self.rescued,
            values_after_rescue: self.read_after_rescue,
            bytes_stored: tally.bytes_stored,
            bytes_read: tally.bytes_read,
            refused_by_stores: self.lenders.iter().map(Lender::refusals).sum(),
            puts_that_found_one: self.oracle.count(|op| op.outcome == Outcome::Exists),
            stores_returned: self.mortal.returns(),
            ..Exercised::default()
        };
        self.invariants.count(&mut exercised);
        exercised
    }

    pub(crate) fn converged(&self) -> bool {
        Invariants::converged(&self.machines, &self.nemesis.members)
    }

    /// A step, with every master up: one that was asked to stop ends only now.
    pub(crate) fn step_with_all(&mut self) -> Result<(), String> {
        self.machines.iter_mut().filter(|machine| machine.starts > 0).for_each(Machine::start);
        self.step(false)
    }

    /// Lets a millisecond pass everywhere, and checks.
    pub(crate) fn step(&mut self, faults: bool) -> Result<(), String> {
        self.now += 1;
        c_library::set_time(self.now);
        self.oracle.set_now(self.now);
        self.net.advance(self.now);
        if faults {
            self.nemesis.step(self.now, &mut self.machines);
        }
        for machine in &mut self.machines {
            machine.step();
        }
        self.lenders.iter_mut().for_each(Lender::step);
        self.outside.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
        self.invariants.check(&self.machines)?;
        self.invariants.tell(&self.oracle);
        if let Some(panic) = crate::panics::first() {
            return Err(format!("a task panicked: {panic}"));
        }
        self.oracle.violation().map_or(Ok(()), Err)
    }
}
