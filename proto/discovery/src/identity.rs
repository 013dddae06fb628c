use mc_types::{ClusterId, NodeId};

use crate::{Listed, Reports};

/// The cluster that a client or a store belongs to, and the clusters that the masters of its list report.
///
/// The first cluster that a master reports becomes ours. A master of another cluster is refused: its address may have been
/// reused by a foreign cluster. If a majority of the list reports the same other cluster, ours was really replaced
/// (rescued, or formed again), and the other one becomes ours.
#[derive(Debug)]
pub struct ClusterIdentity {
    ours: Option<ClusterId>,
    /// Whether the user named the cluster.
    given: bool,
    list: Listed,
    reports: Reports,
}

/// Verdict on the cluster that a master reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The master belongs to our cluster.
    Ours,
    /// It is the first cluster reported, and is ours from now on.
    Joined(ClusterId),
    /// A majority of the list reports this cluster. It is ours from now on, and nothing known of the old one holds.
    Replaced {
        /// The cluster until now.
        old: ClusterId,
        /// The cluster from now on.
        new: ClusterId,
    },
    /// The master belongs to another cluster and is refused.
    Foreign {
        /// The cluster that we keep.
        ours: ClusterId,
        /// The cluster that the master belongs to.
        theirs: ClusterId,
        /// Number of masters of the list that report `theirs`.
        reports: usize,
        /// Number of masters of the list that must report `theirs` before it replaces ours.
        needed: usize,
    },
}

impl ClusterIdentity {
    /// Starts with the cluster that the user named, if any (`given`), and the masters that the user listed (`list`).
    #[must_use]
    pub fn new(given: Option<ClusterId>, list: Listed) -> Self {
        Self { ours: given, given: given.is_some(), list, reports: Reports::default() }
    }

    /// Starts with the cluster that an earlier run joined, if any. The user did not name it.
    #[must_use]
    pub fn remembered(ours: Option<ClusterId>, list: Listed) -> Self {
        Self { given: false, ..Self::new(ours, list) }
    }

    /// Returns our cluster, once one is known.
    #[must_use]
    pub fn ours(&self) -> Option<ClusterId> {
        self.ours
    }

    /// Returns the list of masters whose reports count.
    #[must_use]
    pub fn list(&self) -> &Listed {
        &self.list
    }

    /// Replaces the list after its names were resolved again.
    pub fn listed(&mut self, list: Listed) {
        self.list = list;
    }

    /// Records that the master at `address` belongs to the cluster `theirs`, and judges that. `node` is its node id if
    /// it gave one.
    pub fn report(&mut self, address: &str, node: Option<NodeId>, theirs: ClusterId) -> Verdict {
        self.reports.note(address, node, theirs);
        let Some(ours) = self.ours else {
            self.ours = Some(theirs);
            return Verdict::Joined(theirs);
        };
        if ours == theirs {
            return Verdict::Ours;
        }
        let (reports, needed) = (self.reports.of(&self.list, theirs), Reports::needed(&self.list));
        if reports < needed {
            return Verdict::Foreign { ours, theirs, reports, needed };
        }
        self.ours = Some(theirs);
        Verdict::Replaced { old: ours, new: theirs }
    }

    /// Forgets the report of the master at `address`, which does not answer.
    pub fn silent(&mut self, address: &str) {
        self.reports.silent(address);
    }

    /// Returns whether our cluster is certainly the one that the user means: the user named it, or a majority of the
    /// list reports it. No cluster at all is certain, too.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_majority = |ours| self.reports.of(&self.list, ours) >= Reports::needed(&self.list);
        self.given || self.ours.is_none_or(is_majority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId(1);
    const OTHER: ClusterId = ClusterId(2);

    fn three(ours: Option<ClusterId>) -> ClusterIdentity {
        let addresses = ["a:1", "b:1", "c:1"].map(String::from).into();
        ClusterIdentity::remembered(ours, Listed { addresses, masters: 3 })
    }

    fn foreign(reports: usize) -> Verdict {
        Verdict::Foreign { ours: OURS, theirs: OTHER, reports, needed: 2 }
    }

    #[test]
    fn the_first_cluster_met_is_kept() {
        let mut identity = three(None);
        assert!(identity.is_settled(), "none was met");
        assert_eq!(identity.report("a:1", Some(NodeId(97)), OURS), Verdict::Joined(OURS));
        assert!(!identity.is_settled(), "one of three says so");
        assert_eq!(identity.report("c:1", Some(NodeId(99)), OTHER), foreign(1));
        assert_eq!(identity.report("b:1", Some(NodeId(98)), OURS), Verdict::Ours);
        assert_eq!((identity.ours(), identity.is_settled()), (Some(OURS), true));
    }

    #[test]
    fn a_majority_of_the_list_replaces_the_cluster() {
        let mut identity = three(Some(OURS));
        assert_eq!(identity.report("a:1", Some(NodeId(97)), OTHER), foreign(1));
        assert_eq!(
            identity.report("b:1", Some(NodeId(98)), OTHER),
            Verdict::Replaced { old: OURS, new: OTHER }
        );
        assert_eq!(identity.report("c:1", Some(NodeId(99)), OTHER), Verdict::Ours);
        let back = identity.report("a:1", Some(NodeId(97)), OURS);
        assert_eq!(back, Verdict::Foreign { ours: OTHER, theirs: OURS, reports: 1, needed: 2 });
    }

    #[test]
    fn a_name_with_both_address_families_is_followed_to_a_rescued_cluster_over_one_of_them() {
        let records = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[::2]:1", "[::3]:1"];
        let list = Listed::of("m:1", &records.map(|record| record.parse().unwrap()));
        let mut identity = ClusterIdentity::remembered(Some(OURS), list);
        // IPv6 is not routed here: three of six addresses never answer.
        assert_eq!(identity.report(records[0], Some(NodeId(1)), OTHER), foreign(1));
        assert!(matches!(identity.report(records[1], Some(NodeId(2)), OTHER), Verdict::Replaced { .. }));
    }

    #[test]
    fn masters_outside_the_list_silent_ones_corrected_ones_and_repetitions_do_not_count() {
        let mut identity = three(Some(OURS));
        for _ in 0..5 {
            assert_eq!(identity.report("a:1", Some(NodeId(97)), OTHER), foreign(1));
            assert_eq!(identity.report("z:1", Some(NodeId(122)), OTHER), foreign(1));
        }
        identity.silent("a:1");
        assert_eq!(identity.report("b:1", Some(NodeId(98)), OTHER), foreign(1));
        assert_eq!(identity.report("b:1", Some(NodeId(98)), OURS), Verdict::Ours);
        assert_eq!(identity.report("c:1", Some(NodeId(99)), OTHER), foreign(1));
    }

    #[test]
    fn a_cluster_that_the_user_named_needs_no_majority() {
        let list = Listed { addresses: ["a:1", "b:1"].map(String::from).into(), masters: 2 };
        assert!(ClusterIdentity::new(Some(OURS), list).is_settled());
    }
}
