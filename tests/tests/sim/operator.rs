//! A person who configures the cluster, and changes the members by hand.

use std::time::Duration;

use mc_proto::v1;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::caller::{Caller, caller};
use crate::keys::{BOUND, BOUND_OBJECTS};
use crate::machine::RAFT;
use crate::net::{Host, address_of};
use crate::pool::Pool;

/// Patience with one attempt: a change is committed before it is answered.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1_000);
/// A removal that is not done in so long is let be: too few masters are up.
const REMOVAL: Duration = Duration::from_secs(3);

/// Order to the person.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Given up after a while.
    Remove(Host),
    /// Tried until it is done.
    RemoveSurely(Host),
    /// Tried until it is done.
    Add(Host),
}

/// Configures the cluster, then carries out one order after the other.
pub(crate) async fn operate(mut masters: Caller, mut orders: mpsc::UnboundedReceiver<Order>, pool: Pool) {
    configure(&mut masters, pool).await;
    while let Some(order) = orders.recv().await {
        let began = Instant::now();
        while carry_out(&mut masters, order).await.is_none() {
            if matches!(order, Order::Remove(_)) && began.elapsed() > REMOVAL {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Adds a host, until it is a member.
pub(crate) async fn add_surely(mut masters: Caller, host: Host) {
    while carry_out(&mut masters, Order::Add(host)).await.is_none() {
        sleep(Duration::from_millis(50)).await;
    }
}

async fn configure(masters: &mut Caller, pool: Pool) {
    let quota = Some(v1::Quota { bytes: 0, objects: BOUND_OBJECTS });
    let request = v1::SetTenantRequest {
        caller: caller(),
        tenant: BOUND.to_owned(),
        quota,
        calls_per_s: None,
        rdma: None,
    };
    while masters.attempt(async |mut master| master.set_tenant(request.clone()).await).await.is_err() {}
    for (name, value) in pool.settings() {
        let (name, value) = ((*name).to_owned(), (*value).to_owned());
        let request = v1::SetConfigRequest { caller: caller(), name, value };
        while masters.attempt(async |mut master| master.set_config(request.clone()).await).await.is_err() {}
    }
}

/// One attempt; `None` unless it is done.
async fn carry_out(masters: &mut Caller, order: Order) -> Option<()> {
    match order {
        Order::Remove(host) | Order::RemoveSurely(host) => remove(masters, host).await,
        Order::Add(host) => {
            let raft_address = address_of(host, RAFT).to_string();
            let request = v1::AddMemberRequest { caller: caller(), raft_address };
            masters.attempt(async |mut master| master.add_member(request).await).await.ok().map(drop)
        }
    }
}

/// Removes whoever is a member at the address of `host`; done when nobody is.
async fn remove(masters: &mut Caller, host: Host) -> Option<()> {
    let raft_address = address_of(host, RAFT).to_string();
    let request = v1::ListMembersRequest { caller: caller() };
    let listed = masters.attempt(async |mut master| master.list_members(request).await).await.ok()?;
    let Some(member) = listed.members.into_iter().find(|member| member.raft_address == raft_address) else {
        return Some(());
    };
    let request = v1::RemoveMemberRequest { caller: caller(), node_id: member.node_id };
    let _ = masters.attempt(async |mut master| master.remove_member(request).await).await;
    None
}
