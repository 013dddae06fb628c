use std::collections::{BTreeMap, BTreeSet};

use mc_base::ClusterId;

/// Which cluster this client belongs to: the first one met, until a majority of the list reports another.
#[derive(Debug)]
pub(crate) struct Identity {
    ours: Option<ClusterId>,
    /// The user named it.
    given: bool,
    reports: BTreeMap<String, ClusterId>,
}

/// What a report of a cluster id means.
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
        Self { ours, given: ours.is_some(), reports: BTreeMap::new() }
    }

    pub(crate) fn ours(&self) -> Option<ClusterId> {
        self.ours
    }

    /// The master at `address` says that it belongs to `reported`. `list` is what the user listed, resolved.
    pub(crate) fn report(&mut self, list: &BTreeSet<String>, address: &str, reported: ClusterId) -> Verdict {
        self.reports.insert(address.to_owned(), reported);
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
    pub(crate) fn is_settled(&self, list: &BTreeSet<String>) -> bool {
        self.given || self.ours.is_none_or(|ours| self.is_majority(list, ours))
    }

    fn is_majority(&self, list: &BTreeSet<String>, cluster: ClusterId) -> bool {
        list.iter().filter(|address| self.reports.get(*address) == Some(&cluster)).count() * 2 > list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: ClusterId = ClusterId(1);
    const NEW: ClusterId = ClusterId(2);

    #[test]
    fn one_foreign_master_is_refused_and_a_majority_of_the_list_is_followed() {
        let list: BTreeSet<String> = ["a", "b", "c"].map(String::from).into();
        let mut identity = Identity::new(None);
        assert_eq!(identity.report(&list, "a", OLD), Verdict::Ours);
        assert_eq!(identity.report(&list, "b", NEW), Verdict::Foreign { ours: OLD });
        assert_eq!(
            identity.report(&list, "b", NEW),
            Verdict::Foreign { ours: OLD },
            "saying it twice is no majority"
        );
        assert_eq!(identity.report(&list, "x", NEW), Verdict::Foreign { ours: OLD }, "not of the list");
        assert_eq!(identity.report(&list, "a", OLD), Verdict::Ours);
        assert_eq!(identity.report(&list, "c", NEW), Verdict::Replaced);
        assert_eq!(identity.ours(), Some(NEW));
        assert_eq!(identity.report(&list, "a", OLD), Verdict::Foreign { ours: NEW });
    }

    #[test]
    fn a_master_that_was_corrected_no_longer_counts_for_the_other_cluster() {
        let list: BTreeSet<String> = ["a", "b", "c"].map(String::from).into();
        let mut identity = Identity::new(Some(OLD));
        identity.report(&list, "b", NEW);
        identity.report(&list, "b", OLD);
        assert_eq!(identity.report(&list, "c", NEW), Verdict::Foreign { ours: OLD });
    }
}
