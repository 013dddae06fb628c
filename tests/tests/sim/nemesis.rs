//! Faults of a schedule, and their times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mc_tests::Seeded;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::client::{CLIENTS, Wanted};
use crate::invariants::leader;
use crate::machine::Machine;
use crate::net::{Host, Net};
use crate::operator::Order;
use crate::store::{Fate, Mortal, STORES};
use crate::trace::Trace;

/// One thing that is done at one time.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Start(Host),
    Kill(Host),
    /// In the middle of its next step, after so many groups of tasks.
    KillAtWork(Host, u64),
    LosePower(Host),
    /// The process is killed and the disk is taken: what starts there next is a new node.
    Wipe(Host),
    /// A person removes the member, which goes on running.
    Remove(Host),
    /// A person takes it in: a new one, or one that was removed, with its disk as it is.
    Add(Host),
    Terminate(Host),
    Pause(Host),
    Resume(Host),
    Cut(Host, Host),
    Heal(Host, Host),
    /// Of 100 segments that were on their way when the link was cut so many get through.
    LetThrough(Host, Host, u64),
    SlowLink(Host, Host, u64),
    /// Of 100 segments so many are lost.
    Loss(Host, Host, u64),
    SlowDisk(Host, u64),
    /// Its log's disk reports errors until the process has ended.
    BreakDisk(Host),
    /// Whether its data directory has hardly any room.
    Fill(Host, bool),
    /// Of the store that may die.
    Store(Fate),
    Want(Wanted),
}

/// Theme of a schedule. All faults happen in all, and most bugs need one kind of fault often more than all of
/// them a few times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    /// Whatever may happen.
    Any,
    /// Restarts of the voters on whose promise a lease rests.
    Restarts,
    /// Leaders that are stopped while answers are on their way to them.
    Pauses,
}

/// Draws faults, and the ends of them.
pub(crate) struct Nemesis {
    rng: Seeded,
    net: Net,
    trace: Trace,
    /// All that may ever run.
    masters: usize,
    /// Masters, clients and the store.
    hosts: usize,
    plan: BTreeMap<u64, Vec<Deed>>,
    next: u64,
    /// How often faults come, in ms.
    pace: u64,
    theme: Theme,
    mortal: Mortal,
    /// A disk may be taken: from one machine a schedule, or nobody could know what was committed.
    may_wipe: bool,
    /// Members may be removed by hand. Not where a disk is taken: of two voters, that is a majority.
    may_remove: bool,
    /// With so few members none is removed.
    fewest: usize,
    /// The members, once the person has done what was ordered.
    pub(crate) members: BTreeSet<Host>,
    /// To the person; gone at the end, when nothing is ordered any more.
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// Orders to the clients.
    pub(crate) wanted: Arc<Mutex<Wanted>>,
    /// A disk was taken.
    pub(crate) wiped: bool,
    /// A master was taken in by hand.
    pub(crate) added: bool,
    /// Links between masters that held something back until they were healed.
    pub(crate) cut_links: usize,
    /// Deeds so far, for the report.
    pub(crate) log: Vec<String>,
}

impl Nemesis {
    /// Of `masters` the first `founders` are members; `hosts` are the masters, clients and stores.
    pub(crate) fn new(
        [masters, founders, hosts]: [usize; 3],
        net: &Net,
        mut rng: Seeded,
        trace: Trace,
        orders: mpsc::UnboundedSender<Order>,
        mortal: Mortal,
    ) -> Self {
        let small = masters == 3;
        let removes = rng.part(1).below(if small { 3 } else { 2 }) == 0;
        let pace = [300, 700, 1500][rng.below(3) as usize];
        // Leases stand or fall with faults that chance rarely puts together, and with five masters more rarely still.
        let theme = match (small, rng.below(6)) {
            (true, 0) | (false, 0..3) => Theme::Any,
            (true, 1..3) | (false, 3) => Theme::Restarts,
            _ => Theme::Pauses,
        };
        let may_wipe = rng.below(4) == 0;
        Self {
            theme,
            mortal,
            may_wipe,
            may_remove: removes && !may_wipe,
            fewest: if small { 2 } else { 3 },
            members: (0..founders).collect(),
            orders: Some(orders),
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
            added: false,
            cut_links: 0,
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
        let masters = present(machines);
        for host in masters.iter().copied() {
            if !self.members.contains(&host) {
                // Of three all are members again; of five those that were removed stay out.
                match self.masters {
                    3 => self.carry_out(now, &Deed::Add(host), machines),
                    _ => self.order(Order::RemoveSurely(host)),
                }
            }
            for deed in [Deed::Resume(host), Deed::SlowDisk(host, 0), Deed::Fill(host, false)] {
                self.carry_out(now, &deed, machines);
            }
            if machines[host].log.is_broken() {
                self.carry_out(now, &Deed::Kill(host), machines);
            }
        }
        self.carry_out(now, &Deed::Store(Fate::Lives), machines);
        let hosts = self.hosts;
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            if self.net.is_cut(from, to) {
                self.carry_out(now, &Deed::Heal(from, to), machines);
            }
            self.net.set_slow(from, to, 0);
            self.net.set_loss(from, to, 0);
        }
        for host in masters {
            if !machines[host].is_running() {
                self.carry_out(now, &Deed::Start(host), machines);
            }
        }
        self.orders = None;
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    fn at(&mut self, time: u64, deed: Deed) {
        self.plan.entry(time).or_default().push(deed);
    }

    fn draw(&mut self, now: u64, machines: &[Machine]) {
        let present = present(machines);
        let any = self.one_of(&present);
        // The leader is where faults hurt.
        let victim = match leader(machines) {
            Some(leader) if self.rng.below(2) == 0 => leader,
            _ => any,
        };
        let peers: Vec<_> = present.iter().copied().filter(|peer| *peer != victim).collect();
        let other = self.one_of(&peers);
        let short = [20, 100, 400, 1200][self.rng.below(4) as usize];
        let end = now + 1 + self.rng.below(short);
        let long_end = now + 100 + self.rng.below(2500);
        let theme = if self.rng.below(10) < 9 { self.theme } else { Theme::Any };
        match (theme, self.rng.below(40)) {
            (Theme::Restarts, _) | (Theme::Any, 0) => return self.restart_within_the_lease(now, machines),
            (Theme::Pauses, _) | (Theme::Any, 1) => return self.pause_before_the_answers(now, machines),
            (Theme::Any, _) => {}
        }
        if self.may_wipe && self.rng.below(3) == 0 {
            self.may_wipe = false;
            self.at(now, Deed::Wipe(victim));
            return self.at(end, Deed::Start(victim));
        }
        if self.masters > 3 && self.members.len() < self.masters && self.rng.below(3) == 0 {
            return self.grow(now, &present);
        }
        let removable = self.members.contains(&victim) && self.members.len() > self.fewest;
        if self.may_remove && removable && self.rng.below(4) == 0 {
            self.at(now, Deed::Remove(victim));
            if self.masters == 3 || self.rng.below(2) == 0 {
                self.at(long_end, Deed::Add(victim));
            }
            return;
        }
        match self.rng.below(22) {
            0 => {
                self.at(now, Deed::Kill(victim));
                self.at(end, Deed::Start(victim));
            }
            1 => {
                let groups = self.rng.below(12);
                self.at(now, Deed::KillAtWork(victim, groups));
                self.at(end + 1, Deed::Start(victim));
            }
            2 | 3 => {
                self.at(now, Deed::LosePower(victim));
                self.at(end, Deed::Start(victim));
            }
            4 => {
                for host in present {
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
                for peer in peers {
                    self.cut_for(now, long_end, victim, peer);
                    self.cut_for(now, long_end, peer, victim);
                }
            }
            10 => {
                // One way only.
                let inward = self.rng.below(2) == 0;
                for peer in peers {
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
            12 if self.rng.below(2) == 0 => {
                // A store out of reach of a program that has values there, or slow for it.
                let (user, store) = self.carrying_link();
                if self.rng.below(2) == 0 {
                    self.cut_for(now, end, user, store);
                    self.cut_for(now, end, store, user);
                } else {
                    let slow = self.rng.within(5..300);
                    self.at(now, Deed::SlowLink(user, store, slow));
                    self.at(long_end, Deed::SlowLink(user, store, 0));
                }
            }
            12 => {
                // What a client asks is not heard, or the answer is not, or both.
                let outside = self.outsider();
                let way = self.rng.below(3);
                if way != 0 {
                    self.cut_for(now, long_end, outside, victim);
                }
                if way != 1 {
                    self.cut_for(now, long_end, victim, outside);
                }
            }
            13 => self.flap(now, long_end, victim, &peers),
            14 | 15 => {
                let loss = [1, 5, 30][self.rng.below(3) as usize];
                let ends = match self.rng.below(3) {
                    0 => peers,
                    1 => vec![other],
                    _ => vec![self.outsider()],
                };
                for (from, to) in ends.into_iter().flat_map(|end| [(victim, end), (end, victim)]) {
                    self.at(now, Deed::Loss(from, to, loss));
                    self.at(long_end, Deed::Loss(from, to, 0));
                }
            }
            16 => {
                self.at(now, Deed::BreakDisk(victim));
                self.at(long_end, Deed::Kill(victim));
                self.at(long_end, Deed::Start(victim));
            }
            17 => {
                // Disks tend to fill at the same time.
                for host in present {
                    if host == victim || self.rng.below(2) == 0 {
                        self.at(now, Deed::Fill(host, true));
                        self.at(long_end, Deed::Fill(host, false));
                    }
                }
            }
            18 | 19 => {
                self.at(now, Deed::Store(Fate::Dead));
                self.at(long_end, Deed::Store(Fate::Lives));
            }
            20 => self.at(now, Deed::Store(Fate::Unmounts)),
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

    /// A real client and a store.
    fn carrying_link(&mut self) -> (Host, Host) {
        let stores = self.masters + CLIENTS;
        let store = stores + self.rng.below(STORES as u64) as usize;
        let users = stores + STORES;
        (users + self.rng.below((self.hosts - users) as u64) as usize, store)
    }

    /// A client or a store.
    fn outsider(&mut self) -> Host {
        self.masters + self.rng.below((self.hosts - self.masters) as u64) as usize
    }

    fn one_of(&mut self, hosts: &[Host]) -> Host {
        hosts[self.rng.below(hosts.len() as u64) as usize]
    }

    /// One more master is taken in: one with an empty disk that nobody knows yet, or one that was removed. In half of all
    /// cases something happens to it about when it copies the log and has no vote yet.
    fn grow(&mut self, now: u64, present: &[Host]) {
        let outside: Vec<_> = (0..self.masters).filter(|host| !self.members.contains(host)).collect();
        let host = self.one_of(&outside);
        self.at(now, Deed::Start(host));
        let add = now + self.rng.below(300);
        self.at(add, Deed::Add(host));
        let hit = add + self.rng.below(600);
        let end = hit + 1 + self.rng.below(1_500);
        match self.rng.below(6) {
            0 => {
                self.at(hit, Deed::Kill(host));
                self.at(end, Deed::Start(host));
            }
            1 => {
                self.at(hit, Deed::LosePower(host));
                self.at(end, Deed::Start(host));
            }
            2 => {
                for peer in present.iter().copied().filter(|peer| *peer != host) {
                    self.cut_for(hit, end, host, peer);
                    self.cut_for(hit, end, peer, host);
                }
            }
            _ => {}
        }
    }

    /// Links come and go: those of one master to all others, or to one.
    fn flap(&mut self, now: u64, until: u64, victim: Host, peers: &[Host]) {
        let ends = match self.rng.below(2) {
            0 => peers.to_vec(),
            _ => vec![self.one_of(peers)],
        };
        let longest = [60, 200, 500][self.rng.below(3) as usize];
        let mut time = now;
        while time < until {
            let up = time + 1 + self.rng.below(longest);
            for peer in ends.iter().copied() {
                self.cut_for(time, up, victim, peer);
                self.cut_for(time, up, peer, victim);
            }
            time = up + 1 + self.rng.below(longest);
        }
    }

    /// The leader is out of reach of some voters, which stand for election again and again; the others, on whose promise
    /// the lease rests, restart and are cut off from the leader, too. Nothing is written while the first ones are away, or
    /// their logs would be too old to be voted for.
    fn restart_within_the_lease(&mut self, now: u64, machines: &[Machine]) {
        let Some(leader) = leader(machines) else { return };
        let mut away: Vec<_> = self.members.iter().copied().filter(|host| *host != leader).collect();
        let turn = self.rng.below(away.len() as u64) as usize;
        away.rotate_left(turn);
        // With the leader the fewest that are a majority.
        let promised = away.split_off(away.len() / 2);
        self.at(now, Deed::Want(Wanted::Reads));
        let cut = now + 60 + self.rng.below(100);
        let restart = cut + 300 + self.rng.below(400);
        let end = restart + 300 + self.rng.below(400);
        // One at a time: others in between would end the lease some other way.
        self.next = self.next.max(end + 200);
        for host in away {
            self.cut_for(cut, end, leader, host);
            self.cut_for(cut, end, host, leader);
        }
        for host in promised {
            let deed = if self.rng.below(4) > 0 { Deed::Kill(host) } else { Deed::LosePower(host) };
            self.at(restart, deed);
            self.cut_for(restart, end, leader, host);
            self.cut_for(restart, end, host, leader);
            let back = restart + 1 + self.rng.below(15);
            self.at(back, Deed::Start(host));
        }
        self.at(restart, Deed::Want(Wanted::All));
    }

    /// The leader is stopped while the answers to what it has sent are on their way, for longer than it takes to elect
    /// another. Those of the peers that it needs for a lease are late and arrive in the milliseconds after it goes on,
    /// when it has just sent again; those of the others are there by then, and it commits by them. Nobody can tell it of
    /// the new leader for a while.
    fn pause_before_the_answers(&mut self, now: u64, machines: &[Machine]) {
        let Some(leader) = leader(machines) else { return };
        // Heartbeats are answered in time, and some answers are on their way at any time.
        let slow = 8 + self.rng.below(14);
        let pause = now + 100 + self.rng.below(150);
        let resume = pause + 500 + self.rng.below(300);
        let end = resume + 20 + self.rng.below(60);
        self.next = self.next.max(end + 50);
        let mut peers: Vec<_> = self.members.iter().copied().filter(|host| *host != leader).collect();
        let turn = self.rng.below(peers.len() as u64) as usize;
        peers.rotate_left(turn);
        let late = peers.len().div_ceil(2);
        for (place, peer) in peers.into_iter().enumerate() {
            self.at(now, Deed::SlowLink(peer, leader, slow));
            self.at(end, Deed::SlowLink(peer, leader, 0));
            if place < late {
                self.cut_for(pause, end, peer, leader);
                let part = self.rng.within(20..80);
                self.at(resume - slow + 1, Deed::LetThrough(peer, leader, part));
                self.at(resume - slow + 4, Deed::LetThrough(peer, leader, 100));
            } else {
                self.cut_for(pause + slow + 5, end, peer, leader);
            }
        }
        self.at(now, Deed::Want(Wanted::Writes));
        self.at(pause, Deed::Pause(leader));
        self.at(pause, Deed::Want(Wanted::All));
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
            Deed::KillAtWork(host, groups) => machines[host].kill_at_work(groups),
            Deed::BreakDisk(host) => machines[host].break_disk(),
            Deed::Fill(host, nearly_full) => machines[host].set_nearly_full(nearly_full),
            Deed::Store(fate) => self.mortal.set(fate),
            Deed::LosePower(host) => machines[host].lose_power(),
            Deed::Wipe(host) => {
                machines[host].wipe();
                self.wiped = true;
            }
            Deed::Remove(host) => {
                self.members.remove(&host);
                self.order(Order::Remove(host));
            }
            Deed::Add(host) => {
                self.added = true;
                self.members.insert(host);
                self.order(Order::Add(host));
            }
            Deed::Terminate(host) => machines[host].terminate(),
            Deed::Pause(host) => machines[host].pause(),
            Deed::Resume(host) => machines[host].resume(),
            Deed::Cut(from, to) => self.net.set_cut(from, to, true),
            Deed::Heal(from, to) => {
                let between_masters = from.max(to) < self.masters;
                self.cut_links += usize::from(between_masters && self.net.holds(from, to));
                self.net.set_cut(from, to, false);
            }
            Deed::LetThrough(from, to, percent) => self.net.let_through(from, to, percent),
            Deed::SlowLink(from, to, slow) => self.net.set_slow(from, to, slow),
            Deed::Loss(from, to, loss) => self.net.set_loss(from, to, loss),
            Deed::Want(wanted) => *self.wanted.lock() = wanted,
            Deed::SlowDisk(host, slow) => machines[host].log.set_slow(slow),
        }
    }
}

/// The masters that have ever run.
fn present(machines: &[Machine]) -> Vec<Host> {
    machines.iter().filter(|machine| machine.starts > 0).map(|machine| machine.host).collect()
}
