use std::collections::BTreeMap;
use std::time::Duration;

use mc_base::NodeId;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;

use super::{AddressBook, MasterNode, RaftNode};

/// How long a change of the membership is waited for; one that comes later is seen in the membership.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);

impl RaftNode {
    /// Every member, as the membership records it.
    #[must_use]
    pub fn members(&self) -> BTreeMap<NodeId, MasterNode> {
        let metrics = self.metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        membership.nodes().map(|(node, addresses)| (*node, addresses.clone())).collect()
    }

    /// Where the masters are reached from here.
    #[must_use]
    pub fn addresses(&self) -> &AddressBook {
        &self.addresses
    }

    /// Records the addresses of the members that were met elsewhere than the membership says, and returns those. For
    /// a leader; who votes is unchanged.
    ///
    /// # Errors
    /// What openraft says: this node does not lead (any more), or another change is under way.
    pub async fn record_moved(&self) -> Result<BTreeMap<NodeId, MasterNode>, String> {
        let moved = {
            let metrics = self.metrics.borrow_watched();
            self.addresses.moved(metrics.membership_config.membership())
        };
        if moved.is_empty() {
            return Ok(moved);
        }
        let change = self.raft().change_membership(ChangeMembers::SetNodes(moved.clone()), true);
        match tokio::time::timeout(CHANGE_TIMEOUT, change).await {
            Ok(Ok(_)) => Ok(moved),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no majority of the masters confirmed it within {CHANGE_TIMEOUT:?}")),
        }
    }
}
