//! A person who restarts the masters one after the other, by SIGTERM, each once the one before is ready again and the
//! cluster is healthy.

use std::sync::Arc;
use std::time::Duration;

use mc_proto::v1;
use mc_tests::Seeded;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::caller::{Caller, caller};
use crate::client::CLIENTS;
use crate::http::{Request, exchange};
use crate::invariants::views;
use crate::net::{Host, Net};
use crate::operator::PATIENCE;
use crate::schedule::{Schedule, TO_CONVERGE};

/// In a roll, so long until a master that is asked to stop has ended, and between two puts that are acknowledged.
const TO_STOP: u64 = 10_000;
const TO_STORE: u64 = 3_000;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// A member that the leader has not heard for so long, in ms, is down.
const SILENT: u64 = 1_000;

/// What the person waits for.
type Lacking = Arc<Mutex<String>>;

/// Returns once `host` says that it is ready, and its leader that all `members` vote and all stores live.
async fn healthy(net: Net, from: Host, host: Host, members: usize, mut masters: Caller, lacking: Lacking) {
    loop {
        let request = Request { from, to: host, method: "GET", path: "/readyz", body: "" };
        let ready = timeout(masters.patience, exchange(&net, request)).await;
        let lacks = match ready {
            Ok(Ok((200, _))) => match lacks(&mut masters, members).await {
                None => return,
                Some(lacks) => lacks,
            },
            other => format!("it is not ready: {other:?}"),
        };
        *lacking.lock() = lacks;
        sleep(LOOK).await;
    }
}

/// What the cluster lacks by the word of its leader.
async fn lacks(masters: &mut Caller, members: usize) -> Option<String> {
    let request = v1::StatusRequest { caller: caller() };
    let Ok(status) = masters.attempt(async |mut master| master.status(request).await).await else {
        return Some("a master says nothing of the cluster".to_owned());
    };
    if status.role != "leader" {
        masters.anyone();
        return Some("the leader was not asked yet".to_owned());
    }
    let request = v1::ListMembersRequest { caller: caller() };
    let Ok(listed) = masters.attempt(async |mut master| master.list_members(request).await).await else {
        return Some("the leader does not list its members".to_owned());
    };
    let up = |member: &v1::MemberStatus| {
        let heard = member.silent_ms.is_some_and(|silent| silent < SILENT);
        member.voter && (heard || member.node_id == status.node_id)
    };
    if listed.members.len() != members || !listed.members.iter().all(up) {
        return Some(format!("not all members are up: {:?}", listed.members));
    }
    let down = status.stores.iter().find(|store| store.state != "alive");
    down.map(|store| format!("store {} is {}", store.name, store.state))
}

impl Schedule {
    /// Restarts every member, each once the one before is ready again and the cluster is healthy. Clients are served
    /// meanwhile.
    pub(crate) fn roll(&mut self, mut rng: Seeded) -> Result<(), String> {
        let began = self.now;
        while !self.converged() {
            self.step_with_all()?;
            if self.now - began > TO_CONVERGE {
                return Err(format!(
                    "no leader {TO_CONVERGE} ms after the last fault{}",
                    views(&self.machines)
                ));
            }
        }
        self.oracle.stored_now();
        let mut left: Vec<_> = self.nemesis.members.iter().copied().collect();
        while !left.is_empty() {
            let host = left.remove(rng.below(left.len() as u64) as usize);
            self.machines[host].terminate();
            let began = self.now;
            while self.machines[host].is_running() {
                self.serve_for(began, TO_STOP, || format!("master {host} does not stop"))?;
            }
            self.machines[host].start();
            let lacking = Lacking::default();
            let healthy = {
                let _inside = self.outside.enter();
                let (masters, from) = (self.machines.len(), self.machines.len() + CLIENTS);
                let network = self.net.of(from);
                let caller = Caller::new(&network, masters, PATIENCE, rng.part(host as u64));
                let members = self.nemesis.members.len();
                tokio::spawn(healthy(self.net.clone(), from, host, members, caller, lacking.clone()))
            };
            let began = self.now;
            while !healthy.is_finished() {
                self.serve_for(began, TO_CONVERGE, || {
                    format!("no healthy cluster after a restart of {host}, {}", lacking.lock())
                })?;
            }
            self.rolled += 1;
        }
        Ok(())
    }

    /// A step during a roll that has waited since `began`, in which puts must be acknowledged as ever.
    fn serve_for(&mut self, began: u64, most: u64, what: impl FnOnce() -> String) -> Result<(), String> {
        self.step(false)?;
        let gap = self.now - self.oracle.last_stored();
        if gap > TO_STORE {
            return Err(format!("no put was acknowledged for {gap} ms of a roll{}", views(&self.machines)));
        }
        match self.now - began > most {
            true => Err(format!("{} within {most} ms{}", what(), views(&self.machines))),
            false => Ok(()),
        }
    }
}
