use mc_discovery::{Listed, Reports};
use mc_types::{ClusterId, NodeId};

/// Which cluster this client belongs to: the first one met, until a majority of the list reports another.
#[derive(Debug)]
pub(crate) struct Identity {
    ours: Option<ClusterId>,
    /// The user named it.
    given: bool,
    reports: Reports,
}

/// Verdict on a reported cluster id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is our cluster.
    Ours,
    /// A majority of the list has moved to this one: it is ours from now on, and nothing known of the old one holds.
    Replaced,
    /// Another cluster.
    Foreign {
        /// The cluster that we keep.
        ours: ClusterId,
    },
}

impl Identity {
    pub(crate) fn new(ours: Option<ClusterId>) -> Self {
        Self { ours, given: ours.is_some(), reports: Reports::default() }
    }

    pub(crate) fn ours(&self) -> Option<ClusterId> {
        self.ours
    }

    /// The master at `address`, which is `node` where it said so, belongs to `reported`. `list` is what the user listed,
    /// resolved.
    pub(crate) fn report(
        &mut self,
        list: &Listed,
        address: &str,
        node: Option<NodeId>,
        reported: ClusterId,
    ) -> Verdict {
        self.reports.note(address, node, reported);
        let Some(ours) = self.ours else {
            self.ours = Some(reported);
            return Verdict::Ours;
        };
        if ours == reported {
            return Verdict::Ours;
        }
        if self.is_majority(list, reported) {
            self.ours = Some(reported);
            Verdict::Replaced
        } else {
            Verdict::Foreign { ours }
        }
    }

    /// Whether there is no doubt that ours is the cluster that the user means.
    pub(crate) fn is_settled(&self, list: &Listed) -> bool {
        self.given || self.ours.is_none_or(|ours| self.is_majority(list, ours))
    }

    fn is_majority(&self, list: &Listed, cluster: ClusterId) -> bool {
        self.reports.of(list, cluster) >= Reports::needed(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: ClusterId = ClusterId(1);
    const NEW: ClusterId = ClusterId(2);

    fn three() -> Listed {
        Listed { addresses: ["a", "b", "c"].map(String::from).into(), masters: 3 }
    }

    #[test]
    fn masters_at_two_addresses_each_are_followed_over_one_of_them() {
        let records = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[::2]:1", "[::3]:1"];
        let list = Listed::of("m:1", &records.map(|record| record.parse().unwrap()));
        let mut identity = Identity::new(Some(OLD));
        // IPv6 is not routed here: three of six addresses never answer.
        assert_eq!(identity.report(&list, records[0], Some(NodeId(1)), NEW), Verdict::Foreign { ours: OLD });
        assert_eq!(identity.report(&list, records[1], Some(NodeId(2)), NEW), Verdict::Replaced);
    }

    #[test]
    fn one_foreign_master_is_refused_and_a_majority_of_the_list_is_followed() {
        let list = three();
        let mut identity = Identity::new(None);
        assert_eq!(identity.report(&list, "a", Some(NodeId(97)), OLD), Verdict::Ours);
        assert_eq!(identity.report(&list, "b", Some(NodeId(98)), NEW), Verdict::Foreign { ours: OLD });
        assert_eq!(
            identity.report(&list, "b", Some(NodeId(98)), NEW),
            Verdict::Foreign { ours: OLD },
            "saying it twice is no majority"
        );
        assert_eq!(
            identity.report(&list, "x", Some(NodeId(120)), NEW),
            Verdict::Foreign { ours: OLD },
            "not of the list"
        );
        assert_eq!(identity.report(&list, "a", Some(NodeId(97)), OLD), Verdict::Ours);
        assert_eq!(identity.report(&list, "c", Some(NodeId(99)), NEW), Verdict::Replaced);
        assert_eq!(identity.ours(), Some(NEW));
        assert_eq!(identity.report(&list, "a", Some(NodeId(97)), OLD), Verdict::Foreign { ours: NEW });
    }

    #[test]
    fn a_master_that_was_corrected_no_longer_counts_for_the_other_cluster() {
        let list = three();
        let mut identity = Identity::new(Some(OLD));
        identity.report(&list, "b", Some(NodeId(98)), NEW);
        identity.report(&list, "b", Some(NodeId(98)), OLD);
        assert_eq!(identity.report(&list, "c", Some(NodeId(99)), NEW), Verdict::Foreign { ours: OLD });
    }
}
