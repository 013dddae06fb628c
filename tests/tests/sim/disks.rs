//! Facts that must hold on the machines' disks, whatever the masters say.

use std::collections::{BTreeMap, BTreeSet};

use mc_log::{LogDisk as _, LogId, StoredMembership, Vote, is_on, purged_from, vote_on};
use mc_types::NodeId;

use crate::files;
use crate::machine::Machine;
use crate::net::Host;

/// Remembers what was seen of the disks.
pub(crate) struct Disks {
    /// Which node each disk was last seen to belong to.
    owners: BTreeMap<NodeId, Host>,
    /// Their disks were taken: what they had acknowledged before may have counted.
    taken: BTreeSet<NodeId>,
    /// The last entry that was found on a majority of disks.
    kept: Option<LogId>,
    seen: Vec<Seen>,
}

/// Last observation of one disk.
#[derive(Clone, Default)]
struct Seen {
    wipes: u64,
    syncs: u64,
    starts: u64,
    vote: Option<Vote>,
    purged: Option<LogId>,
}

impl Disks {
    pub(crate) fn new(masters: usize) -> Self {
        Self {
            owners: BTreeMap::new(),
            taken: BTreeSet::new(),
            kept: None,
            seen: vec![Seen::default(); masters],
        }
    }

    /// The disk of `machine` is that of `node`.
    pub(crate) fn belongs_to(&mut self, machine: &Machine, node: NodeId) {
        self.owners.insert(node, machine.host);
    }

    /// Checks one disk: the vote that would survive a loss of power is never older than before, and what was purged is in
    /// a snapshot that would.
    pub(crate) fn check(&mut self, machine: &Machine) -> Result<(), String> {
        let seen = &mut self.seen[machine.host];
        if seen.wipes != machine.wipes {
            *seen = Seen { wipes: machine.wipes, ..Seen::default() };
            let of_this = self.owners.iter().filter(|(_, host)| **host == machine.host);
            self.taken.extend(of_this.map(|(node, _)| *node));
            self.owners.retain(|_, host| *host != machine.host);
        }
        let disk = machine.log.disk();
        // A disk in memory counts again after each loss of power.
        let now = (disk.syncs(), machine.starts);
        if now == (seen.syncs, seen.starts) {
            return Ok(());
        }
        (seen.syncs, seen.starts) = now;
        let unreadable = |error| format!("the disk of {} can't be read: {error}", machine.host);
        let vote = vote_on(&*disk.crash().view()).map_err(unreadable)?;
        if !follows(seen.vote, vote) {
            return Err(format!(
                "the vote on the disk of {} was {:?} and is {vote:?}",
                machine.host, seen.vote
            ));
        }
        seen.vote = vote;
        // Whether synced or not: it may survive.
        let purged = purged_from(&*disk.view()).map_err(unreadable)?;
        if let Some(upto) = purged.filter(|_| purged > seen.purged) {
            let kept = files::durable(&machine.snapshots());
            let covered = kept.iter().filter_map(|name| index_of(name.to_str()?)).max();
            if covered < Some(upto.index) {
                return Err(format!(
                    "the log of {} is purged up to {upto}, and its synced snapshots end at {covered:?}",
                    machine.host
                ));
            }
        }
        seen.purged = purged;
        Ok(())
    }

    /// Checks that `committed` would survive a loss of power of all machines.
    ///
    /// While the voters change it may have been committed by the old ones or by both: `memberships` are the newest that
    /// the master knows, and the newest that it knows as committed.
    pub(crate) fn check_commit(
        &mut self,
        machines: &[Machine],
        committed: LogId,
        memberships: &[StoredMembership; 2],
    ) -> Result<(), String> {
        if self.kept >= Some(committed) {
            return Ok(());
        }
        let voters: BTreeSet<_> = memberships.iter().flat_map(|all| all.membership().voter_ids()).collect();
        let mut holders = self.taken.clone();
        for voter in voters {
            let Some(host) = self.owners.get(&voter) else { continue };
            let survives = is_on(&*machines[*host].log.disk().crash().view(), committed);
            if survives.map_err(|error| format!("the disk of {host} can't be read: {error}"))? {
                holders.insert(voter);
            }
        }
        let majority = |voters: &BTreeSet<NodeId>| voters.intersection(&holders).count() > voters.len() / 2;
        let survives = |all: &StoredMembership| all.membership().get_joint_config().iter().all(majority);
        if !memberships.iter().any(survives) {
            let at: Vec<_> = holders.iter().map(ToString::to_string).collect();
            return Err(format!("{committed} is committed, and synced on {at:?} only"));
        }
        self.kept = Some(committed);
        Ok(())
    }
}

/// Whether a node may go from one vote to the other: to a later term, or from its own choice in a term to the leader whom
/// the others have elected in it.
fn follows(before: Option<Vote>, after: Option<Vote>) -> bool {
    match (before, after) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(before), Some(after)) => {
            let (old, new) = (before.leader_id, after.leader_id);
            new.term > old.term
                || before == after
                || (new.term == old.term && after.committed && !before.committed)
        }
    }
}

/// The last entry that the snapshot of this name covers; none of a file that does not count yet.
fn index_of(name: &str) -> Option<u64> {
    name.ends_with(".snapshot").then(|| name.get(..20)?.parse().ok())?
}
