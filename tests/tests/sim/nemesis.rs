//! What goes wrong in a schedule, and when.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_master::raft::RaftNode;
use mc_tests::Seeded;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::client::Wanted;
use crate::invariants::leader;
use crate::machine::Machine;
use crate::net::{Host, Net};
use crate::operator::Order;
use crate::trace::Trace;

/// One thing that is done at one time.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Start(Host),
    Kill(Host),
    LosePower(Host),
    /// The process is killed and the disk is taken: what starts there next is a new node.
    Wipe(Host),
    /// A person removes the member, and takes it in again later, with its disk as it is.
    Remove(Host),
    Add(Host),
    Terminate(Host),
    Pause(Host),
    Resume(Host),
    Cut(Host, Host),
    Heal(Host, Host),
    SlowLink(Host, Host, u64),
    SlowDisk(Host, u64),
    Want(Wanted),
}

/// Draws faults, and the ends of them.
pub(crate) struct Nemesis {
    rng: Seeded,
    net: Net,
    trace: Trace,
    masters: usize,
    /// Masters, clients and the store.
    hosts: usize,
    plan: BTreeMap<u64, Vec<Deed>>,
    next: u64,
    /// How often faults come, in ms.
    pace: u64,
    /// Of 100 faults.
    restarts_within_the_lease: u64,
    /// Of 100 faults.
    pauses_before_the_answers: u64,
    /// A disk may be taken: from one machine a schedule, or nobody could know what was committed.
    may_wipe: bool,
    /// Members may be removed by hand. Not where a disk is taken: of two voters, that is a majority.
    may_remove: bool,
    /// The member that is removed and has not been added again.
    removed: Option<Host>,
    orders: mpsc::UnboundedSender<Order>,
    /// What clients are to do.
    pub(crate) wanted: Arc<Mutex<Wanted>>,
    /// A disk was taken.
    pub(crate) wiped: bool,
    /// What was done, for the report.
    pub(crate) log: Vec<String>,
}

impl Nemesis {
    pub(crate) fn new(
        masters: usize,
        hosts: usize,
        net: &Net,
        mut rng: Seeded,
        trace: Trace,
        orders: mpsc::UnboundedSender<Order>,
    ) -> Self {
        let removes = rng.part(1).below(3) == 0;
        let pace = [300, 700, 1500][rng.below(3) as usize];
        // Rare by chance, and what leases stand or fall with.
        let restarts_within_the_lease = if rng.below(4) == 0 { 80 } else { 5 };
        let pauses_before_the_answers = if rng.below(4) == 0 { 60 } else { 3 };
        let may_wipe = rng.below(4) == 0;
        Self {
            restarts_within_the_lease,
            pauses_before_the_answers,
            may_wipe,
            may_remove: removes && !may_wipe,
            removed: None,
            orders,
            rng,
            net: net.clone(),
            trace,
            masters,
            hosts,
            plan: BTreeMap::new(),
            next: 500,
            pace,
            wanted: Arc::new(Mutex::new(Wanted::All)),
            wiped: false,
            log: Vec::new(),
        }
    }

    /// Does what is due at `now`.
    pub(crate) fn step(&mut self, now: u64, machines: &mut [Machine]) {
        if now >= self.next {
            self.next = now + self.rng.within(self.pace / 4..self.pace * 2);
            self.draw(now, machines);
        }
        while let Some(due) = self.plan.first_entry().filter(|due| *due.key() <= now) {
            for deed in due.remove() {
                self.carry_out(now, &deed, machines);
            }
        }
    }

    /// Ends every fault.
    pub(crate) fn end(&mut self, now: u64, machines: &mut [Machine]) {
        self.plan.clear();
        self.carry_out(now, &Deed::Want(Wanted::All), machines);
        if let Some(removed) = self.removed {
            self.carry_out(now, &Deed::Add(removed), machines);
        }
        let masters = 0..self.masters;
        for host in masters.clone() {
            for deed in [Deed::Resume(host), Deed::SlowDisk(host, 0)] {
                self.carry_out(now, &deed, machines);
            }
        }
        let hosts = self.hosts;
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            if self.net.is_cut(from, to) {
                self.carry_out(now, &Deed::Heal(from, to), machines);
            }
            self.net.set_slow(from, to, 0);
        }
        for host in masters {
            if !machines[host].is_running() {
                self.carry_out(now, &Deed::Start(host), machines);
            }
        }
    }

    fn at(&mut self, time: u64, deed: Deed) {
        self.plan.entry(time).or_default().push(deed);
    }

    fn draw(&mut self, now: u64, machines: &[Machine]) {
        let any = self.rng.below(self.masters as u64) as usize;
        // The leader is where faults hurt.
        let victim = match leader(machines) {
            Some(leader) if self.rng.below(2) == 0 => leader,
            _ => any,
        };
        let other = (victim + 1 + self.rng.below(self.masters as u64 - 1) as usize) % self.masters;
        let short = [20, 100, 400, 1200][self.rng.below(4) as usize];
        let end = now + 1 + self.rng.below(short);
        let long_end = now + 100 + self.rng.below(2500);
        if self.rng.below(100) < self.restarts_within_the_lease {
            return self.restart_within_the_lease(now, machines);
        }
        if self.rng.below(100) < self.pauses_before_the_answers {
            return self.pause_before_the_answers(now, machines);
        }
        if self.may_wipe && self.rng.below(3) == 0 {
            self.may_wipe = false;
            self.at(now, Deed::Wipe(victim));
            return self.at(end, Deed::Start(victim));
        }
        if self.may_remove && self.removed.is_none() && self.rng.below(4) == 0 {
            self.removed = Some(victim);
            self.at(now, Deed::Remove(victim));
            return self.at(long_end, Deed::Add(victim));
        }
        match self.rng.below(14) {
            0 | 1 => {
                self.at(now, Deed::Kill(victim));
                self.at(end, Deed::Start(victim));
            }
            2 | 3 => {
                self.at(now, Deed::LosePower(victim));
                self.at(end, Deed::Start(victim));
            }
            4 => {
                for host in 0..self.masters {
                    let down = now + self.rng.below(10);
                    let kill = self.rng.below(2) == 0;
                    self.at(down, if kill { Deed::Kill(host) } else { Deed::LosePower(host) });
                    let back = end + 10 + self.rng.below(300);
                    self.at(back, Deed::Start(host));
                }
            }
            5 => {
                self.at(now, Deed::Terminate(victim));
                let back = now + 2_500 + self.rng.below(500);
                self.at(back, Deed::Start(victim));
            }
            6 | 7 => {
                self.at(now, Deed::Pause(victim));
                self.at(long_end, Deed::Resume(victim));
            }
            8 | 9 => {
                for peer in (0..self.masters).filter(|peer| *peer != victim) {
                    self.cut_for(now, long_end, victim, peer);
                    self.cut_for(now, long_end, peer, victim);
                }
            }
            10 => {
                // One way only.
                let inward = self.rng.below(2) == 0;
                for peer in (0..self.masters).filter(|peer| *peer != victim) {
                    let (from, to) = if inward { (peer, victim) } else { (victim, peer) };
                    self.cut_for(now, long_end, from, to);
                }
            }
            11 => {
                self.cut_for(now, long_end, victim, other);
                if self.rng.below(2) == 0 {
                    self.cut_for(now, long_end, other, victim);
                }
            }
            12 => {
                let outside = self.masters + self.rng.below((self.hosts - self.masters) as u64) as usize;
                self.cut_for(now, long_end, outside, victim);
                self.cut_for(now, long_end, victim, outside);
            }
            _ => {
                let slow = self.rng.within(5..150);
                if self.rng.below(2) == 0 {
                    self.at(now, Deed::SlowDisk(victim, slow));
                    self.at(long_end, Deed::SlowDisk(victim, 0));
                } else {
                    for (from, to) in [(victim, other), (other, victim)] {
                        self.at(now, Deed::SlowLink(from, to, slow));
                        self.at(long_end, Deed::SlowLink(from, to, 0));
                    }
                }
            }
        }
    }

    /// The leader is out of reach of one voter, which stands for election again and again; the other voter, whose promise
    /// holds the lease, restarts and is cut off from the leader, too. Nothing is written while the first one is away, or
    /// its log would be too old to be voted for.
    fn restart_within_the_lease(&mut self, now: u64, machines: &[Machine]) {
        let Some(leader) = leader(machines) else { return };
        let first = (leader + 1 + self.rng.below(2) as usize) % self.masters;
        let second = (0..self.masters).find(|host| *host != leader && *host != first).unwrap_or(first);
        self.at(now, Deed::Want(Wanted::Reads));
        let away = now + 60 + self.rng.below(100);
        let restart = away + 300 + self.rng.below(400);
        let end = restart + 300 + self.rng.below(900);
        // One at a time: others in between would end the lease some other way.
        self.next = self.next.max(end + 500);
        for (from, to) in [(leader, first), (first, leader)] {
            self.cut_for(away, end, from, to);
        }
        let deed = if self.rng.below(4) > 0 { Deed::Kill(second) } else { Deed::LosePower(second) };
        self.at(restart, deed);
        for (from, to) in [(leader, second), (second, leader)] {
            self.cut_for(restart, end, from, to);
        }
        let back = restart + 1 + self.rng.below(15);
        self.at(back, Deed::Start(second));
        self.at(restart, Deed::Want(Wanted::All));
    }

    /// The leader is stopped while the answers to what it has sent are on their way, for longer than it takes to elect
    /// another. When it goes on it finds old answers, its clock far ahead of them, and callers that have waited.
    fn pause_before_the_answers(&mut self, now: u64, machines: &[Machine]) {
        let Some(leader) = leader(machines) else { return };
        let slow = self.rng.within(20..200);
        let pause = now + 20 + self.rng.below(2 * slow);
        let resume = pause + 500 + self.rng.below(1_500);
        self.next = self.next.max(resume + 300);
        for peer in (0..self.masters).filter(|peer| *peer != leader) {
            self.at(now, Deed::SlowLink(peer, leader, slow));
            self.at(resume, Deed::SlowLink(peer, leader, 0));
        }
        self.at(pause, Deed::Pause(leader));
        self.at(resume, Deed::Resume(leader));
    }

    fn cut_for(&mut self, from_time: u64, to_time: u64, from: Host, to: Host) {
        self.at(from_time, Deed::Cut(from, to));
        self.at(to_time, Deed::Heal(from, to));
    }

    fn carry_out(&mut self, now: u64, deed: &Deed, machines: &mut [Machine]) {
        let text = format!("{now} ms: {deed:?}");
        self.trace.note_text(&text);
        self.log.push(text);
        match *deed {
            Deed::Start(host) => machines[host].start(),
            Deed::Kill(host) => machines[host].kill(),
            Deed::LosePower(host) => machines[host].lose_power(),
            Deed::Wipe(host) => {
                machines[host].wipe();
                self.wiped = true;
            }
            Deed::Remove(host) => {
                // One that is down has no id to ask for; it is removed another time.
                if let Some(node) = machines[host].with_raft(RaftNode::node_id) {
                    let _ = self.orders.send(Order::Remove(node));
                }
            }
            Deed::Add(host) => {
                self.removed = None;
                let _ = self.orders.send(Order::Add(host));
            }
            Deed::Terminate(host) => machines[host].terminate(),
            Deed::Pause(host) => machines[host].pause(),
            Deed::Resume(host) => machines[host].resume(),
            Deed::Cut(from, to) => self.net.set_cut(from, to, true),
            Deed::Heal(from, to) => self.net.set_cut(from, to, false),
            Deed::SlowLink(from, to, slow) => self.net.set_slow(from, to, slow),
            Deed::Want(wanted) => *self.wanted.lock() = wanted,
            Deed::SlowDisk(host, slow) => machines[host].log.set_slow(slow),
        }
    }
}
