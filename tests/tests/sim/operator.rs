//! A person who changes the members by hand.

use std::time::Duration;

use bytes::Bytes;
use mc_base::NodeId;
use mc_proto::v1;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::client::{Caller, caller};
use crate::machine::RAFT;
use crate::net::{Host, address_of};

/// Patience with one attempt: a change is committed before it is answered.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1_000);
/// A removal that is not done after so many attempts is let be: too few masters are up, or the leader has only begun.
const ATTEMPTS: u32 = 20;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Remove(NodeId),
    /// Tried until it is done.
    Add(Host),
}

/// Carries out one order after the other.
pub(crate) async fn operate(mut masters: Caller, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        let mut attempts = 0;
        while !carry_out(&mut masters, order).await {
            attempts += 1;
            if matches!(order, Order::Remove(_)) && attempts >= ATTEMPTS {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn carry_out(masters: &mut Caller, order: Order) -> bool {
    match order {
        Order::Remove(node) => {
            let node_id = Bytes::copy_from_slice(&node.to_bytes());
            let request = v1::RemoveMemberRequest { caller: caller(), node_id };
            masters.attempt(async |mut master| master.remove_member(request).await).await.is_ok()
        }
        Order::Add(host) => {
            let raft_address = address_of(host, RAFT).to_string();
            let request = v1::AddMemberRequest { caller: caller(), raft_address };
            masters.attempt(async |mut master| master.add_member(request).await).await.is_ok()
        }
    }
}
