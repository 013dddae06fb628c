use mc_discovery::{Listed, Reports};
use mc_types::{ClusterId, NodeId};

/// Which cluster this store belongs to, and what the masters of its list say.
///
/// The first cluster met is kept. A master with another id is refused, because a foreign cluster at a reused address
/// looks just like that; only when a majority of the list reports one and the same other id has the cluster really
/// been replaced (rescued, or formed again), and the store goes over to it.
#[derive(Debug)]
pub(crate) struct Membership {
    known: Option<ClusterId>,
    list: Listed,
    reports: Reports,
}

/// Verdict on a master's cluster id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is ours.
    Ours,
    /// The first one met.
    Joined(ClusterId),
    /// A majority of the list reports it: the store goes over.
    Replaced {
        /// The cluster until now.
        old: ClusterId,
        /// The cluster from now on.
        new: ClusterId,
    },
    /// Another one.
    Foreign {
        /// The cluster that the store keeps.
        ours: ClusterId,
        /// The cluster of the master.
        theirs: ClusterId,
        /// Masters of the list that say the same.
        reports: usize,
        /// How many have to.
        needed: usize,
    },
}

impl Membership {
    pub(crate) fn new(known: Option<ClusterId>, list: Listed) -> Self {
        Self { known, list, reports: Reports::default() }
    }

    /// The cluster that the store keeps.
    pub(crate) fn known(&self) -> Option<ClusterId> {
        self.known
    }

    /// The masters that count.
    pub(crate) fn list(&self) -> &Listed {
        &self.list
    }

    /// The list is another one now: its names were looked up.
    pub(crate) fn listed(&mut self, list: Listed) {
        self.list = list;
    }

    /// The master at `address`, which is `node` where it said so, belongs to `theirs`.
    pub(crate) fn report(&mut self, address: &str, node: Option<NodeId>, theirs: ClusterId) -> Verdict {
        self.reports.note(address, node, theirs);
        let Some(ours) = self.known else {
            self.known = Some(theirs);
            return Verdict::Joined(theirs);
        };
        if ours == theirs {
            return Verdict::Ours;
        }
        let reports = self.reports.of(&self.list, theirs);
        let needed = Reports::needed(&self.list);
        if reports < needed {
            return Verdict::Foreign { ours, theirs, reports, needed };
        }
        self.known = Some(theirs);
        Verdict::Replaced { old: ours, new: theirs }
    }

    /// The master at `address` does not answer: what it said before no longer counts.
    pub(crate) fn silent(&mut self, address: &str) {
        self.reports.silent(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId(1);
    const OTHER: ClusterId = ClusterId(2);

    fn three(known: Option<ClusterId>) -> Membership {
        let addresses = ["a:1", "b:1", "c:1"].map(String::from).into();
        Membership::new(known, Listed { addresses, masters: 3 })
    }

    #[test]
    fn the_first_cluster_met_is_kept() {
        let mut members = three(None);
        assert_eq!(members.report("a:1", Some(NodeId(97)), OURS), Verdict::Joined(OURS));
        assert_eq!(members.report("b:1", Some(NodeId(98)), OURS), Verdict::Ours);
        assert_eq!(
            members.report("c:1", Some(NodeId(99)), OTHER),
            Verdict::Foreign { ours: OURS, theirs: OTHER, reports: 1, needed: 2 }
        );
        assert_eq!(members.known(), Some(OURS));
    }

    #[test]
    fn a_majority_of_the_list_replaces_the_cluster() {
        let mut members = three(Some(OURS));
        assert!(matches!(members.report("a:1", Some(NodeId(97)), OTHER), Verdict::Foreign { .. }));
        assert_eq!(
            members.report("b:1", Some(NodeId(98)), OTHER),
            Verdict::Replaced { old: OURS, new: OTHER }
        );
        assert_eq!(members.report("c:1", Some(NodeId(99)), OTHER), Verdict::Ours);
    }

    #[test]
    fn a_name_with_both_address_families_is_followed_to_a_rescued_cluster_over_one_of_them() {
        let records = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[::2]:1", "[::3]:1"];
        let list = Listed::of("m:1", &records.map(|record| record.parse().unwrap()));
        let mut members = Membership::new(Some(OURS), list);
        // IPv6 is not routed here: three of six addresses never answer.
        assert!(matches!(
            members.report(records[0], Some(NodeId(1)), OTHER),
            Verdict::Foreign { reports: 1, needed: 2, .. }
        ));
        assert!(matches!(members.report(records[1], Some(NodeId(2)), OTHER), Verdict::Replaced { .. }));
    }

    #[test]
    fn masters_outside_the_list_silent_ones_and_repetitions_do_not_count() {
        let mut members = three(Some(OURS));
        for _ in 0..5 {
            assert!(matches!(
                members.report("a:1", Some(NodeId(97)), OTHER),
                Verdict::Foreign { reports: 1, .. }
            ));
            assert!(matches!(
                members.report("z:1", Some(NodeId(122)), OTHER),
                Verdict::Foreign { reports: 1, .. }
            ));
        }
        members.silent("a:1");
        assert!(matches!(
            members.report("b:1", Some(NodeId(98)), OTHER),
            Verdict::Foreign { reports: 1, .. }
        ));
    }
}
