use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_types::NodeId;
use parking_lot::Mutex;

use mc_log::{MasterNode, Membership};

/// Addresses at which this master reaches the others: those in the membership, or those where a master was met since,
/// which its leader then records.
///
/// A wrong address costs reachability and nothing else: every Raft call names the cluster and the node that it is
/// for.
#[derive(Clone, Debug, Default)]
pub struct AddressBook(Arc<Mutex<HashMap<NodeId, KnownAddresses>>>);

/// Addresses of one master; the [`AddressBook`] has those of all.
#[derive(Debug, Default)]
struct KnownAddresses {
    recorded: Option<MasterNode>,
    met: Option<MasterNode>,
}

impl KnownAddresses {
    fn current(&self) -> Option<&MasterNode> {
        self.met.as_ref().or(self.recorded.as_ref())
    }
}

impl AddressBook {
    /// Notes that `node` itself was met at these addresses.
    pub fn met(&self, node: NodeId, addresses: MasterNode) {
        self.0.lock().entry(node).or_default().met = Some(addresses);
    }

    /// Takes over the addresses of the membership. An address there that has changed is newer than one that was met.
    /// If the two still differ, the moved master keeps reporting its own.
    pub(crate) fn record(&self, membership: &Membership) {
        let mut book = self.0.lock();
        for (node, addresses) in membership.nodes() {
            let entry = book.entry(*node).or_default();
            if entry.recorded.as_ref() == Some(addresses) {
                continue;
            }
            if entry.recorded.is_some() || entry.met.as_ref() == Some(addresses) {
                entry.met = None;
            }
            entry.recorded = Some(addresses.clone());
        }
    }

    /// Returns the address of `node`.
    pub fn get(&self, node: NodeId) -> Option<MasterNode> {
        self.0.lock().get(&node).and_then(KnownAddresses::current).cloned()
    }

    /// Returns the members that were met at addresses other than those in the membership.
    pub fn moved(&self, membership: &Membership) -> BTreeMap<NodeId, MasterNode> {
        let book = self.0.lock();
        membership
            .nodes()
            .filter_map(|(node, recorded)| {
                let met = book.get(node)?.met.as_ref()?;
                (met != recorded).then(|| (*node, met.clone()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn at(host: &str) -> MasterNode {
        MasterNode { raft: format!("{host}:1"), client: format!("{host}:2"), http: format!("{host}:3") }
    }

    fn membership(addresses: MasterNode) -> Membership {
        Membership::new(vec![[NODE].into()], BTreeMap::from([(NODE, addresses)])).unwrap()
    }

    #[test]
    fn a_master_is_reached_where_it_was_met_until_the_membership_says_something_new() {
        let book = AddressBook::default();
        assert_eq!(book.get(NODE), None);
        book.record(&membership(at("a")));
        assert_eq!(book.get(NODE), Some(at("a")));

        book.met(NODE, at("b"));
        book.record(&membership(at("a")));
        assert_eq!(book.get(NODE), Some(at("b")), "the membership says nothing new");
        assert_eq!(book.moved(&membership(at("a"))), BTreeMap::from([(NODE, at("b"))]));

        book.record(&membership(at("b")));
        assert!(book.moved(&membership(at("b"))).is_empty());
        book.record(&membership(at("c")));
        assert_eq!(book.get(NODE), Some(at("c")), "moved again, and another master met it there");
    }

    #[test]
    fn who_was_met_before_the_membership_is_known_is_believed() {
        let book = AddressBook::default();
        book.met(NODE, at("b"));
        book.record(&membership(at("a")));
        assert_eq!(book.get(NODE), Some(at("b")));
    }
}
