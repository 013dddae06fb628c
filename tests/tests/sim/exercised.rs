//! Counts of what schedules are for: a run in which a part of it never happened has shown less than it says.

use std::fmt;

/// Before the counts, in what the process of a seed prints.
const LEAD: &str = "exercised: ";

/// A count and its name.
type Count = (&'static str, usize);
/// All of them.
type Counts = [Count; 32];

/// How often one schedule did what schedules are for.
#[derive(Default)]
pub(crate) struct Exercised {
    /// Terms with another leader than the term before.
    pub(crate) leader_changes: usize,
    /// Snapshots that a master took from its leader.
    pub(crate) snapshots_installed: usize,
    /// Starts of masters whose log had lost what was not synced.
    pub(crate) restarts_after_loss: usize,
    /// Links from one master to another that held something back while they were cut.
    pub(crate) cut_links: usize,
    /// Changes after which more masters vote than before.
    pub(crate) growths: usize,
    /// Changes after which fewer do.
    pub(crate) shrinkings: usize,
    /// Changes after which as many do, and others: a wiped master votes under its new id, in place of the dead one.
    pub(crate) swaps: usize,
    /// Processes that were killed in the middle of their work.
    pub(crate) killed_at_work: usize,
    /// Masters that ended because their disk failed.
    pub(crate) ended_by_disk: usize,
    /// Starts of puts that were refused because disks are nearly full.
    pub(crate) puts_without_room: usize,
    /// Mounts of a store that had lost what it held.
    pub(crate) stores_returned: usize,
    /// Puts with a replica on each of two stores.
    pub(crate) puts_on_two_stores: usize,
    /// Puts that were taken back.
    pub(crate) puts_revoked: usize,
    /// Puts-if-absent that found a value.
    pub(crate) puts_that_found_one: usize,
    /// Objects that were evicted.
    pub(crate) evictions: usize,
    /// Groups of them.
    pub(crate) groups_evicted: usize,
    /// Removals of many objects of a tenant at once.
    pub(crate) mass_removals: usize,
    /// Changes of the table of keys and values that were answered.
    pub(crate) entries_changed: usize,
    /// Replicas that were dropped from one store.
    pub(crate) replicas_dropped: usize,
    /// Starts of puts that were refused because of a tenant's quota.
    pub(crate) puts_over_quota: usize,
    /// Starts of puts that were refused for lack of memory.
    pub(crate) puts_without_memory: usize,
    /// Puts that were stored by a call with others.
    pub(crate) puts_together: usize,
    /// Keys that were read by a call with others.
    pub(crate) reads_together: usize,
    /// Keys that were removed by a call with others.
    pub(crate) removals_together: usize,
    /// Stored puts that changed the pin of their key.
    pub(crate) pins_changed: usize,
    /// Pins that were read.
    pub(crate) pins_read: usize,
    /// Restarts of masters one after the other, while all else was well.
    pub(crate) rolled: usize,
    /// Values that a real client has stored, with their bytes.
    pub(crate) bytes_stored: usize,
    /// Values that a real client has read.
    pub(crate) bytes_read: usize,
    /// Requests for bytes that the checks of a real store refused.
    pub(crate) refused_by_stores: usize,
    /// Objects that rescued clusters had.
    pub(crate) objects_rescued: usize,
    /// Values that real clients read in them.
    pub(crate) values_after_rescue: usize,
}

impl Exercised {
    fn counts(&self) -> Counts {
        [
            ("leader changes", self.leader_changes),
            ("snapshots installed on followers", self.snapshots_installed),
            ("restarts with unsynced writes lost", self.restarts_after_loss),
            ("cut links between masters", self.cut_links),
            ("growths of the membership", self.growths),
            ("shrinkings of the membership", self.shrinkings),
            ("swaps of a wiped master", self.swaps),
            ("kills in the middle of work", self.killed_at_work),
            ("masters ended by their disks", self.ended_by_disk),
            ("puts refused for full disks", self.puts_without_room),
            ("stores back without what they held", self.stores_returned),
            ("puts on two stores", self.puts_on_two_stores),
            ("puts revoked", self.puts_revoked),
            ("puts-if-absent that found a value", self.puts_that_found_one),
            ("objects evicted", self.evictions),
            ("groups evicted", self.groups_evicted),
            ("removals of many objects", self.mass_removals),
            ("changes of the table of keys and values", self.entries_changed),
            ("replicas dropped", self.replicas_dropped),
            ("puts refused for a quota", self.puts_over_quota),
            ("puts refused for lack of memory", self.puts_without_memory),
            ("puts stored with others", self.puts_together),
            ("keys read with others", self.reads_together),
            ("keys removed with others", self.removals_together),
            ("pins changed", self.pins_changed),
            ("pins read", self.pins_read),
            ("masters rolled", self.rolled),
            ("values stored by real clients", self.bytes_stored),
            ("values read by real clients", self.bytes_read),
            ("requests refused by real stores", self.refused_by_stores),
            ("objects rescued", self.objects_rescued),
            ("values read after a rescue", self.values_after_rescue),
        ]
    }
}

impl fmt::Display for Exercised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.counts())
    }
}

/// The counts of many schedules, added up.
pub(crate) struct Totals(Counts);

impl Totals {
    /// Of what the processes of many seeds printed. One that did not get so far has counted nothing.
    pub(crate) fn of<'a>(reports: impl Iterator<Item = &'a str>) -> Self {
        let mut totals = Exercised::default().counts();
        for line in reports.flat_map(str::lines).filter_map(|line| line.strip_prefix(LEAD)) {
            for (count, name) in line.split(", ").filter_map(|part| part.split_once(' ')) {
                if let Some((_, total)) = totals.iter_mut().find(|(known, _)| *known == name) {
                    *total += count.parse::<usize>().unwrap_or(0);
                }
            }
        }
        Self(totals)
    }

    /// Parts that never happened.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.0.iter().filter(|(_, total)| *total == 0).map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.0)
    }
}

fn write(f: &mut fmt::Formatter<'_>, counts: &[Count]) -> fmt::Result {
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    write!(f, "{LEAD}{}", texts.join(", "))
}
