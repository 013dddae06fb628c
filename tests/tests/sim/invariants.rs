//! Invariants of the masters, checked after every step whatever happens to them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use mc_log::{LogId, StoredMembership, encode_payload};
use mc_raft::RaftNode;
use mc_types::NodeId;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::storage::RaftLogReader as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::disks::Disks;
use crate::evictions::Evictions;
use crate::exercised::Exercised;
use crate::machine::Machine;
use crate::net::Host;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::written::Entries;

/// Remembers what was seen of all masters since the beginning.
pub(crate) struct Invariants {
    trace: Trace,
    /// The leader of each term.
    leaders: BTreeMap<u64, NodeId>,
    entries: Entries,
    /// Every entry that was committed: its id and a hash of what it says.
    committed: BTreeMap<u64, (LogId, u64)>,
    /// The hash of the index at each applied entry.
    indexes: BTreeMap<u64, (LogId, u64)>,
    /// The voters, by the index of the entry that made them so.
    voters: BTreeMap<u64, BTreeSet<NodeId>>,
    /// Snapshots that were taken from a leader: where, and the index of their last entry.
    installed: BTreeSet<(Host, u64)>,
    disks: Disks,
    evictions: Evictions,
    seen: Vec<Seen>,
}

/// Last observation of one process.
#[derive(Clone, Default)]
struct Seen {
    start: u64,
    /// Entries up to this one were compared.
    compared: u64,
    applied: Option<LogId>,
    led: u64,
}

impl Invariants {
    /// `entries` are those that the masters write.
    pub(crate) fn new(masters: usize, trace: Trace, entries: Entries) -> Self {
        Self {
            trace,
            leaders: BTreeMap::new(),
            entries,
            committed: BTreeMap::new(),
            indexes: BTreeMap::new(),
            voters: BTreeMap::new(),
            installed: BTreeSet::new(),
            disks: Disks::new(masters),
            evictions: Evictions::new(),
            seen: vec![Seen::default(); masters],
        }
    }

    /// Of a cluster whose log begins behind `base`, the end of a rescued one.
    pub(crate) fn behind(base: LogId, masters: usize, trace: Trace, entries: Entries) -> Self {
        let mut this = Self::new(masters, trace, entries);
        // No log has this entry: what is in it is never compared.
        this.committed.insert(base.index, (base, 0));
        this
    }

    /// The terms that had a leader.
    pub(crate) fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Entries that were committed.
    pub(crate) fn committed_entries(&self) -> usize {
        self.committed.len()
    }

    /// Counts what the masters were seen to do.
    pub(crate) fn count(&self, exercised: &mut Exercised) {
        exercised.leader_changes = successive(&self.leaders).filter(|(old, new)| old != new).count();
        exercised.snapshots_installed = self.installed.len();
        self.evictions.count(exercised);
        for (old, new) in successive(&self.voters) {
            match new.len().cmp(&old.len()) {
                Ordering::Greater => exercised.growths += 1,
                Ordering::Less => exercised.shrinkings += 1,
                Ordering::Equal => exercised.swaps += usize::from(new != old),
            }
        }
    }

    /// Checks all machines.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub(crate) fn check(&mut self, machines: &[Machine]) -> Result<(), String> {
        for machine in machines {
            if let Some(why) = machine.failure() {
                return Err(format!("master {} gave up: {why}", machine.host));
            }
            if self.seen[machine.host].start != machine.starts {
                self.seen[machine.host] = Seen { start: machine.starts, ..Seen::default() };
            }
            self.disks.check(machine)?;
        }
        // After all disks: one that was taken in this step may have counted for what another master says is committed.
        for machine in machines {
            machine.with_raft(|raft| self.check_raft(machine, machines, raft)).unwrap_or(Ok(()))?;
        }
        self.check_leases(machines)
    }

    /// Tells the oracle what was evicted, and up to which entry every master that may answer has applied the log: up to
    /// the last one that the newest leader has applied.
    pub(crate) fn tell(&mut self, oracle: &Oracle) {
        for (index, evicted) in self.evictions.take() {
            oracle.evicted(index, evicted.key, evicted.object.version, evicted.object.checksum);
        }
        self.evictions.grant_keys().for_each(|(store, key)| oracle.note_grant_key(store, key));
        let newest = self.leaders.last_key_value().map(|(term, _)| *term);
        let leads = self.seen.iter().filter(|seen| Some(seen.led) == newest);
        if let Some(applied) = leads.filter_map(|seen| seen.applied).max() {
            oracle.in_effect(applied.index);
        }
    }

    /// No master that runs may answer reads by its lease once another one was elected to a later term. One that is stopped
    /// answers nothing.
    fn check_leases(&self, machines: &[Machine]) -> Result<(), String> {
        let Some((newest, leader)) = self.leaders.last_key_value() else { return Ok(()) };
        for machine in machines.iter().filter(|machine| machine.is_awake()) {
            let leased = machine.with_raft(RaftNode::try_lease).flatten();
            if let Some(held) = leased.filter(|held| held.0 < *newest) {
                return Err(format!(
                    "master {} holds the lease of term {} while {leader} leads term {newest}",
                    machine.host, held.0
                ));
            }
        }
        Ok(())
    }

    fn check_raft(&mut self, machine: &Machine, machines: &[Machine], raft: &RaftNode) -> Result<(), String> {
        let host = machine.host;
        let (leads, term, committed, last, installed, memberships) = {
            let metrics = raft.raft().metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader && metrics.vote.committed;
            let last = metrics.last_log_index.unwrap_or(0);
            // One's own snapshot leaves the last entries that it covers in the log; a leader's takes the place of all.
            let installed = metrics.snapshot.filter(|covered| metrics.purged == Some(*covered));
            let memberships = [&metrics.membership_config, &metrics.committed_membership_config];
            let memberships = memberships.map(|membership| StoredMembership::clone(membership));
            (leads, metrics.vote.leader_id.term, metrics.local_committed, last, installed, memberships)
        };
        self.disks.belongs_to(machine, raft.node_id());
        self.installed.extend(installed.map(|covered| (host, covered.index)));
        if leads {
            let leader = *self.leaders.entry(term).or_insert(raft.node_id());
            if leader != raft.node_id() {
                return Err(format!("term {term} has two leaders: {leader} and {}", raft.node_id()));
            }
        }
        let newly_leads = leads && self.seen[host].led != term;
        if newly_leads {
            self.trace.note(&[100, host as u64, term]);
            self.seen[host].led = term;
        }
        if let Some(committed) = committed {
            self.remember(committed)?;
        }
        // A leader has everything that was ever committed, from the first moment on.
        let most = self.committed.last_key_value().map(|(index, _)| *index);
        let upto = match newly_leads {
            true => most,
            false => committed.map(|id| id.index),
        };
        if let Some(most) = most.filter(|most| newly_leads && last < *most) {
            return Err(format!("leader {host} of term {term} ends at {last}, committed was {most}"));
        }
        if let Some(committed) = committed {
            self.disks.check_commit(machines, committed, &memberships)?;
        }
        if let Some(upto) = upto {
            self.compare_log(machine, upto, newly_leads)?;
        }
        self.compare_index(host, raft)
    }

    /// Takes note of all entries up to `committed`.
    fn remember(&mut self, committed: LogId) -> Result<(), String> {
        let last = self.committed.last_key_value().map(|(_, (id, _))| *id);
        if last.is_some_and(|last| last.index >= committed.index) {
            return Ok(());
        }
        for entry in self.entries.chain(last, committed)? {
            self.committed.insert(entry.log_id.index, (entry.log_id, xxh3_64(&encode_payload(&entry))));
            self.evictions.committed(&entry);
        }
        Ok(())
    }

    /// Compares the entries of a log up to `upto` with what was committed: all, or those that were not compared yet.
    fn compare_log(&mut self, machine: &Machine, upto: u64, all: bool) -> Result<(), String> {
        let from = if all { 0 } else { self.seen[machine.host].compared };
        if upto < from {
            return Ok(());
        }
        let Some(store) = machine.log.store() else { return Ok(()) };
        let from = from.max(store.stats().first);
        let read = store.reader().try_get_log_entries(from..upto + 1).now_or_never();
        let entries = match read {
            Some(Ok(entries)) => entries,
            Some(Err(error)) => return Err(format!("the log of {} can't be read: {error}", machine.host)),
            None => return Err(format!("the log of {} is not read at once", machine.host)),
        };
        for entry in entries {
            let index = entry.log_id.index;
            let now = (entry.log_id, xxh3_64(&encode_payload(&entry)));
            let host = machine.host;
            match self.committed.get(&index) {
                Some(before) if *before != now => {
                    return Err(format!(
                        "entry {index} was committed as {before:?} and is {now:?} on {host}"
                    ));
                }
                Some(_) => {}
                None => return Err(format!("entry {index} appeared on {host} among committed ones")),
            }
        }
        if !all {
            self.seen[machine.host].compared = upto + 1;
        }
        Ok(())
    }

    /// Replicas that have applied the same entries are the same, byte by byte.
    fn compare_index(&mut self, host: usize, raft: &RaftNode) -> Result<(), String> {
        let seen = &mut self.seen[host];
        let trace = &self.trace;
        let (indexes, voters) = (&mut self.indexes, &mut self.voters);
        raft.index().read(|applied| {
            let Some(at) = applied.last_applied.filter(|at| Some(*at) != seen.applied) else { return Ok(()) };
            seen.applied = Some(at);
            let membership = &applied.membership;
            if let (Some(by), [all]) = (membership.log_id(), &membership.get_joint_config()[..]) {
                voters.entry(by.index).or_insert_with(|| all.clone());
            }
            let mut bytes = Vec::new();
            applied.state.write_snapshot(&mut bytes).map_err(|err| err.to_string())?;
            let hash = xxh3_64(&bytes);
            trace.note(&[101, host as u64, at.index, hash]);
            let before = *indexes.entry(at.index).or_insert((at, hash));
            if before != (at, hash) {
                return Err(format!("master {host} at {at} differs from another one at {}", before.0));
            }
            Ok(())
        })
    }

    /// Whether one master leads and may serve reads, and `members` have applied the same and vote, and nobody else does.
    pub(crate) fn converged(machines: &[Machine], members: &BTreeSet<Host>) -> bool {
        let members: Vec<_> = members.iter().map(|host| &machines[*host]).collect();
        let applied: Vec<_> = members
            .iter()
            .map(|machine| {
                machine.with_raft(|raft| raft.index().read(|applied| applied.last_applied)).flatten()
            })
            .collect();
        let same = applied.iter().all(|at| at.is_some() && *at == applied[0]);
        let all: Option<BTreeSet<_>> =
            members.iter().map(|machine| machine.with_raft(RaftNode::node_id)).collect();
        let leads = |raft: &RaftNode| raft.try_lease().and_then(|_| raft.membership_view());
        let view = members.iter().find_map(|machine| machine.with_raft(leads).flatten());
        same && view.is_some_and(|view| {
            !view.joint && Some(&view.voters) == all.as_ref() && view.members.len() == members.len()
        })
    }
}

/// Each value and the one after it.
fn successive<V>(values: &BTreeMap<u64, V>) -> impl Iterator<Item = (&V, &V)> {
    values.values().zip(values.values().skip(1))
}

/// The state of each machine, for a report.
pub(crate) fn views(machines: &[Machine]) -> String {
    let view = |machine: &Machine| {
        let view = machine.with_raft(|raft| {
            let (view, lease) = (raft.view(), raft.try_lease().is_some());
            let applied = raft.index().read(|applied| applied.last_applied);
            let members = raft.membership_view().map(|view| (view.voters, view.joint, view.members.len()));
            format!(
                "{} of term {}, lease {lease}, applied {applied:?}, members {members:?}",
                view.role, view.term
            )
        });
        format!("\n  {}: {}", machine.host, view.unwrap_or_else(|| "not up".to_owned()))
    };
    machines.iter().map(view).collect()
}

/// The host that believes to lead the latest term.
pub(crate) fn leader(machines: &[Machine]) -> Option<Host> {
    let leads = |machine: &Machine| {
        machine.with_raft(RaftNode::view).filter(|view| view.role == "leader").map(|view| view.term)
    };
    machines.iter().filter_map(|machine| Some((leads(machine)?, machine.host))).max().map(|(_, host)| host)
}
