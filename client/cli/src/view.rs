//! The pool as its masters describe it, put together from what each of them answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use mc_base::NodeId;
use mc_base::net::{ChannelOptions, Network, TcpNetwork};
use mc_proto::v1::master_client::MasterClient;
use mc_proto::v1::{Caller, StatusReply, StatusRequest, StoreStatus};
use serde::Serialize;

/// How the pool is, and the exit code that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Health {
    /// A leader, every master answers, every store is alive.
    Healthy = 0,
    /// The pool works, and something is missing.
    Degraded = 1,
    /// No leader: nothing can be put.
    Down = 2,
}

/// `mcctl status`, in the form that `-o json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct View {
    /// How it is.
    pub(crate) health: Health,
    /// What keeps it from being healthy, in words.
    pub(crate) problems: Vec<String>,
    /// The cluster's id; `None` until it has formed.
    pub(crate) cluster_id: Option<String>,
    /// Client address of the leader.
    pub(crate) leader: Option<String>,
    /// Objects in the index.
    pub(crate) keys: Option<u64>,
    /// Every master that was asked or is known to one that was.
    pub(crate) masters: Vec<MasterView>,
    /// Every store, as the leader sees it (without one: as the most advanced master does).
    pub(crate) stores: Vec<StoreView>,
}

/// One master. What only it can tell is absent while it does not answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MasterView {
    pub(crate) id: Option<String>,
    pub(crate) addr: String,
    /// leader, follower, learner, candidate, forming, or unreachable.
    pub(crate) role: String,
    pub(crate) pid: Option<u32>,
    pub(crate) term: Option<u64>,
    pub(crate) applied: Option<u64>,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StoreView {
    pub(crate) id: String,
    pub(crate) addr: String,
    /// alive, suspect, or unknown (without a leader nobody can tell).
    pub(crate) state: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
}

impl StoreView {
    pub(crate) fn is_alive(&self) -> bool {
        self.state == "alive"
    }
}

/// What one address answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) address: String,
    /// The reply, or why there is none.
    pub(crate) reply: Result<StatusReply, String>,
}

/// Asks one master what it knows.
pub(crate) async fn ask(address: &str, limit: Duration) -> Result<StatusReply, String> {
    let options = ChannelOptions { call_timeout: Some(limit), ..ChannelOptions::default() };
    let channel = TcpNetwork.channel(address, options).map_err(|e| format!("`{address}` is not host:port: {e}"))?;
    let versions = mc_proto::VERSIONS;
    let caller = Caller { version_min: *versions.start(), version_max: *versions.end(), ..Caller::default() };
    let call = MasterClient::new(channel);
    match tokio::time::timeout(limit, { call }.status(StatusRequest { caller: Some(caller) })).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(reason(&status)),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// The innermost cause is what a person can act on ("Connection refused"); the rest is plumbing.
fn reason(status: &tonic::Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if std::ptr::addr_eq(cause, std::ptr::from_ref(status)) { status.message().to_owned() } else { cause.to_string() }
}

impl View {
    /// Asks the masters at `addresses`, and those that their answers name.
    pub(crate) async fn gather(addresses: &[String], limit: Duration) -> Self {
        let mut answers = ask_all(addresses.to_vec(), limit).await;
        let known: BTreeSet<_> = answers.iter().filter_map(|a| a.reply.as_ref().ok()).map(|r| r.node_id.clone()).collect();
        let more: BTreeSet<_> = answers
            .iter()
            .filter_map(|a| a.reply.as_ref().ok())
            .flat_map(|reply| &reply.masters)
            .filter(|m| !known.contains(&m.node_id))
            .map(|m| m.client_address.clone())
            .filter(|address| !address.is_empty() && !addresses.contains(address))
            .collect();
        answers.extend(ask_all(more.into_iter().collect(), limit).await);
        Self::of(&answers)
    }

    /// Puts the answers together. Pure.
    pub(crate) fn of(answers: &[Answer]) -> Self {
        let replies = || answers.iter().filter_map(|a| a.reply.as_ref().ok().map(|reply| (a, reply)));
        // A deposed leader may not know it yet: the highest term is the one that counts.
        let leader = replies().filter(|(_, r)| r.role == "leader").max_by_key(|(_, r)| r.term);
        let best = leader.or_else(|| replies().max_by_key(|(_, r)| (r.term, r.applied)));

        let masters = masters(answers);
        let stores: Vec<_> = best.map(|(_, r)| r.stores.iter().map(store_view).collect()).unwrap_or_default();
        let mut problems = Vec::new();
        if leader.is_none() {
            let waiting = replies().map(|(_, r)| r.waiting_for.as_str()).find(|w| !w.is_empty());
            problems.push(match waiting {
                Some(waiting) => format!("no leader: {waiting}"),
                None => "no leader".to_owned(),
            });
        }
        for answer in answers {
            if let Err(why) = &answer.reply {
                problems.push(format!("master {} does not answer ({why})", answer.address));
            }
        }
        for store in stores.iter().filter(|s| !s.is_alive() && leader.is_some()) {
            problems.push(format!("store {} is {}", store.addr, store.state));
        }
        if stores.is_empty() && leader.is_some() {
            problems.push("no store is mounted: puts are refused".to_owned());
        }
        Self {
            health: match (leader, problems.as_slice()) {
                (None, _) => Health::Down,
                (Some(_), []) => Health::Healthy,
                (Some(_), _) => Health::Degraded,
            },
            problems,
            cluster_id: best.map(|(_, r)| hex(&r.cluster_id)).filter(|id| !id.is_empty()),
            leader: leader.map(|(answer, reply)| client_address(answer, reply)),
            keys: best.map(|(_, r)| r.keys),
            masters,
            stores,
        }
    }
}

async fn ask_all(addresses: Vec<String>, limit: Duration) -> Vec<Answer> {
    join_all(addresses.into_iter().map(|address| async move {
        let reply = ask(&address, limit).await;
        Answer { address, reply }
    }))
    .await
}

/// One entry per node that answered (two names of one node are one), then those that did not.
fn masters(answers: &[Answer]) -> Vec<MasterView> {
    let mut by_id: BTreeMap<Vec<u8>, MasterView> = BTreeMap::new();
    let mut silent = Vec::new();
    let ids: BTreeMap<_, _> = answers
        .iter()
        .filter_map(|a| a.reply.as_ref().ok())
        .flat_map(|reply| &reply.masters)
        .map(|m| (m.client_address.as_str(), m.node_id.as_slice()))
        .collect();
    for answer in answers {
        match &answer.reply {
            Ok(reply) => {
                by_id.entry(reply.node_id.clone()).or_insert_with(|| MasterView {
                    id: Some(node_id(&reply.node_id)),
                    addr: client_address(answer, reply),
                    role: reply.role.clone(),
                    pid: Some(reply.pid),
                    term: Some(reply.term),
                    applied: Some(reply.applied),
                });
            }
            Err(_) => silent.push(MasterView {
                id: ids.get(answer.address.as_str()).map(|id| node_id(id)),
                addr: answer.address.clone(),
                role: "unreachable".to_owned(),
                pid: None,
                term: None,
                applied: None,
            }),
        }
    }
    let mut masters: Vec<_> = by_id.into_values().chain(silent).collect();
    masters.sort_by(|a, b| a.addr.cmp(&b.addr));
    masters
}

/// The address that the cluster records for this node; before it has formed, the one that was asked.
fn client_address(answer: &Answer, reply: &StatusReply) -> String {
    reply
        .masters
        .iter()
        .find(|m| m.node_id == reply.node_id && !m.client_address.is_empty())
        .map_or_else(|| answer.address.clone(), |m| m.client_address.clone())
}

fn store_view(store: &StoreStatus) -> StoreView {
    StoreView {
        id: hex(&store.store_id),
        addr: store.endpoints.first().map_or_else(|| store.name.clone(), |e| e.address.clone()),
        state: store.state.clone(),
        capacity_bytes: store.capacity_bytes,
        used_bytes: store.used_bytes,
    }
}

fn node_id(bytes: &[u8]) -> String {
    NodeId::from_bytes(bytes).map_or_else(|| hex(bytes), |id| id.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_proto::v1::{Endpoint, MemberStatus};

    fn member(id: u64) -> MemberStatus {
        MemberStatus {
            node_id: NodeId(id).to_bytes().to_vec(),
            client_address: format!("10.0.0.{id}:50051"),
            voter: true,
            ..MemberStatus::default()
        }
    }

    fn store(state: &str) -> StoreStatus {
        StoreStatus {
            store_id: vec![0, 0, 0, 0, 0, 0, 0, 9],
            endpoints: vec![Endpoint { transport: "tcp".into(), address: "10.0.1.1:50060".into(), ..Endpoint::default() }],
            state: state.into(),
            capacity_bytes: 100,
            used_bytes: 40,
            ..StoreStatus::default()
        }
    }

    fn answer(id: u64, role: &str, term: u64) -> Answer {
        let reply = StatusReply {
            cluster_id: vec![7; 16],
            node_id: NodeId(id).to_bytes().to_vec(),
            role: role.into(),
            term,
            applied: 10,
            keys: 3,
            masters: vec![member(1), member(2), member(3)],
            stores: vec![store(if role == "leader" { "alive" } else { "unknown" })],
            pid: 100 + id as u32,
            ..StatusReply::default()
        };
        Answer { address: format!("10.0.0.{id}:50051"), reply: Ok(reply) }
    }

    fn silence(id: u64) -> Answer {
        Answer { address: format!("10.0.0.{id}:50051"), reply: Err("Connection refused".into()) }
    }

    #[test]
    fn a_leader_all_masters_and_all_stores_are_healthy() {
        let view = View::of(&[answer(1, "follower", 4), answer(2, "leader", 4), answer(3, "follower", 4)]);
        assert_eq!((view.health, view.problems.len()), (Health::Healthy, 0));
        assert_eq!(view.leader.as_deref(), Some("10.0.0.2:50051"));
        assert_eq!(view.health as u8, 0, "exit code");
    }

    #[test]
    fn a_silent_master_or_a_suspect_store_is_degraded() {
        let view = View::of(&[answer(1, "follower", 4), answer(2, "leader", 4), silence(3)]);
        assert_eq!((view.health, view.health as u8), (Health::Degraded, 1));
        assert!(view.problems[0].contains("10.0.0.3:50051") && view.problems[0].contains("refused"));
        let silent = &view.masters[2];
        assert_eq!((silent.role.as_str(), silent.pid), ("unreachable", None));
        assert_eq!(silent.id, Some(NodeId(3).to_string()), "the others know whose address it is");

        let mut leader = answer(2, "leader", 4);
        leader.reply.as_mut().unwrap().stores = vec![store("suspect")];
        assert_eq!(View::of(&[leader.clone()]).health, Health::Degraded);
        leader.reply.as_mut().unwrap().stores.clear();
        assert_eq!(View::of(&[leader]).health, Health::Degraded, "without a store nothing can be put");
    }

    #[test]
    fn without_a_leader_it_is_down_and_says_why() {
        let mut forming = answer(1, "forming", 0);
        forming.reply.as_mut().unwrap().waiting_for = "waiting for 10.0.0.3:50055".into();
        let view = View::of(&[forming, silence(2)]);
        assert_eq!((view.health, view.health as u8), (Health::Down, 2));
        assert!(view.problems[0].contains("waiting for 10.0.0.3:50055"), "{:?}", view.problems);
        assert_eq!(View::of(&[silence(1)]).health, Health::Down);
    }

    #[test]
    fn a_deposed_leader_that_does_not_know_it_yet_does_not_count() {
        let view = View::of(&[answer(1, "leader", 4), answer(2, "leader", 5)]);
        assert_eq!(view.leader.as_deref(), Some("10.0.0.2:50051"));
    }

    #[test]
    fn two_names_of_one_master_are_one_master() {
        let mut alias = answer(2, "leader", 4);
        alias.address = "localhost:50051".into();
        let view = View::of(&[answer(2, "leader", 4), alias]);
        assert_eq!(view.masters.len(), 1);
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let view = View::of(&[answer(2, "leader", 4), silence(3)]);
        let json = serde_json::to_value(&view).unwrap();
        for key in ["leader", "keys", "masters", "stores", "health", "problems", "cluster_id"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let keys = |at: &str| json[at][0].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys("masters"), ["addr", "applied", "id", "pid", "role", "term"]);
        assert_eq!(keys("stores"), ["addr", "capacity_bytes", "id", "state", "used_bytes"]);
        assert_eq!(json["stores"][0]["used_bytes"], 40);
        assert_eq!(json["masters"][1]["pid"], serde_json::Value::Null);
    }
}
