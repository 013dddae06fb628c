use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::BitOr;
use std::time::Duration;

use futures::future::join_all;
use mc_types::{ClusterId, HostPort, NodeId};
use parking_lot::Mutex;

/// Time limit of a name lookup. A slower resolver counts as one that does not know the name.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(500);

/// The masters of a list, as its names resolve at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Addresses to dial.
    pub addresses: BTreeSet<String>,
    /// Number of masters behind the addresses. A master with an IPv4 and an IPv6 address is dialled at both and counts
    /// once.
    pub masters: usize,
}

/// The last known records of each name.
///
/// A failed lookup says nothing of the number of masters. If a name with three records then counted as one, one master
/// could speak for the majority.
#[derive(Debug, Default)]
pub struct LastKnown(Mutex<BTreeMap<String, Listed>>);

impl LastKnown {
    /// Returns the masters of a name by `records`, or by its last known records if there are none. A name that never
    /// resolved stays a name: the channel resolves it again when it connects, and reports why it cannot.
    pub fn or_last(&self, name: &str, records: &[SocketAddr]) -> Listed {
        let mut known = self.0.lock();
        if !records.is_empty() {
            known.insert(name.to_owned(), Listed::of(name, records));
        }
        known.get(name).cloned().unwrap_or_else(|| Listed::of(name, &[]))
    }
}

impl Listed {
    /// Resolves all names of the list at the same time.
    pub async fn resolve(list: &[HostPort], last: &LastKnown) -> Self {
        let lookups = list.iter().map(|address| async move {
            let found = tokio::time::timeout(RESOLVE_TIMEOUT, mc_net::resolve(address)).await;
            let records = found.ok().and_then(Result::ok).unwrap_or_default();
            last.or_last(&address.to_string(), &records)
        });
        join_all(lookups).await.into_iter().fold(Self::default(), |all, one| all | one)
    }

    /// Lists the masters of a name by its records.
    ///
    /// There are as many masters as the larger address family has records, and all records are dialled. One IPv4 and
    /// one IPv6 record are one machine. A name with one master is dialled by name, so that it follows its record.
    #[must_use]
    pub fn of(name: &str, records: &[SocketAddr]) -> Self {
        let records: BTreeSet<&SocketAddr> = records.iter().collect();
        let v4 = records.iter().filter(|record| record.is_ipv4()).count();
        let masters = v4.max(records.len() - v4).max(1);
        let addresses = match masters {
            1 => BTreeSet::from([name.to_owned()]),
            _ => records.iter().map(ToString::to_string).collect(),
        };
        Self { addresses, masters }
    }
}

/// Adds another entry of the list. Duplicates count once.
impl BitOr for Listed {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        if !other.addresses.is_subset(&self.addresses) {
            self.masters += other.masters;
            self.addresses.extend(other.addresses);
        }
        self
    }
}

/// The cluster that the master at each address reports.
#[derive(Clone, Debug, Default)]
pub struct Reports(BTreeMap<String, Report>);

#[derive(Clone, Copy, Debug)]
struct Report {
    node: Option<NodeId>,
    cluster: ClusterId,
}

impl Reports {
    /// Records that the master at `address` belongs to `cluster`. `node` is its node id if it gave one.
    pub fn note(&mut self, address: &str, node: Option<NodeId>, cluster: ClusterId) {
        let node = node.or_else(|| self.0.get(address)?.node);
        self.0.insert(address.to_owned(), Report { node, cluster });
    }

    /// Forgets the report of the master at `address`, which does not answer.
    pub fn silent(&mut self, address: &str) {
        self.0.remove(address);
    }

    /// Counts the masters of the list that belong to `cluster`, each once for all its addresses.
    #[must_use]
    pub fn of(&self, list: &Listed, cluster: ClusterId) -> usize {
        let reports = list.addresses.iter().filter_map(|address| Some((address, self.0.get(address)?)));
        let theirs = reports.filter(|(_, report)| report.cluster == cluster);
        let masters: BTreeSet<_> = theirs
            .map(|(address, report)| match report.node {
                Some(node) => Ok(node),
                None => Err(address),
            })
            .collect();
        masters.len()
    }

    /// Returns the number of the list's masters that make a majority.
    #[must_use]
    pub fn needed(list: &Listed) -> usize {
        list.masters / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    fn of(records: &[&str]) -> Listed {
        let records: Vec<_> = records.iter().map(|record| record.parse().unwrap()).collect();
        Listed::of("m:1", &records)
    }

    fn addresses(listed: &Listed) -> Vec<&str> {
        listed.addresses.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_name_is_as_many_masters_as_its_larger_family_has_records_and_all_are_dialled() {
        for one in [&[][..], &["10.0.0.1:1"], &["10.0.0.1:1", "[::2]:1"]] {
            assert_eq!((addresses(&of(one)), of(one).masters), (vec!["m:1"], 1), "{one:?}");
        }
        let both = of(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[::2]:1", "[::3]:1"]);
        assert_eq!((both.addresses.len(), both.masters), (6, 3));
        let more_v6 = of(&["10.0.0.1:1", "[::1]:1", "[::2]:1"]);
        assert_eq!((more_v6.addresses.len(), more_v6.masters), (3, 2));
    }

    #[test]
    fn with_one_family_unroutable_a_majority_is_still_reached() {
        let list = of(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::1]:1", "[::2]:1", "[::3]:1"]);
        let mut reports = Reports::default();
        reports.note("10.0.0.1:1", Some(NodeId(1)), CLUSTER);
        assert!(reports.of(&list, CLUSTER) < Reports::needed(&list));
        reports.note("[::1]:1", Some(NodeId(1)), CLUSTER);
        assert_eq!(reports.of(&list, CLUSTER), 1, "the same master at its other address");
        reports.note("10.0.0.2:1", Some(NodeId(2)), CLUSTER);
        assert!(reports.of(&list, CLUSTER) >= Reports::needed(&list), "two of three");
        reports.note("10.0.0.2:1", None, CLUSTER);
        reports.note("[::2]:1", Some(NodeId(2)), CLUSTER);
        assert_eq!(reports.of(&list, CLUSTER), 2, "a watch does not say who it is; the hello before it did");
        reports.silent("10.0.0.1:1");
        reports.silent("[::1]:1");
        assert_eq!(reports.of(&list, CLUSTER), 1);
    }

    #[test]
    fn a_lookup_that_fails_leaves_a_name_the_masters_that_it_last_stood_for() {
        let last = LastKnown::default();
        assert_eq!(last.or_last("m:1", &[]).masters, 1, "it never resolved");
        let three = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|record| record.parse().unwrap());
        assert_eq!(last.or_last("m:1", &three).masters, 3);
        assert_eq!(last.or_last("m:1", &[]), Listed::of("m:1", &three));
        assert_eq!(last.or_last("m:1", &three[..2]).masters, 2);
        assert_eq!(last.or_last("n:1", &[]).masters, 1, "each name has its own");
    }

    #[tokio::test]
    async fn literal_addresses_and_names_with_one_record_are_kept_as_they_are() {
        let list = mc_types::parse_list("127.0.0.1:1,[::1]:2,localhost,127.0.0.1:1", 3).unwrap();
        let listed = Listed::resolve(&list, &LastKnown::default()).await;
        assert_eq!(addresses(&listed), ["127.0.0.1:1", "[::1]:2", "localhost:3"]);
        assert_eq!(listed.masters, 3);
    }
}
