//! The pool as its masters describe it, put together from what each of them answers.

use std::collections::{BTreeMap, BTreeSet};

use mc_client::ClusterStatus;
use mc_proto::v1::{StatusReply, StoreStatus};
use mc_types::NodeId;
use serde::Serialize;

/// An address and its answer, or why there was none.
type Answer<'a> = (&'a str, Result<&'a StatusReply, &'a str>);

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
    /// Reasons why it is not healthy, in words.
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
    /// leader, follower, learner, candidate, forming, unreachable; or no member: it was removed, or is another cluster's,
    /// or nothing is there any more.
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

impl View {
    /// Sums up the masters' answers.
    pub(crate) fn of(status: &ClusterStatus) -> Self {
        let answers: Vec<_> = status
            .masters
            .iter()
            .map(|report| {
                (report.address.as_str(), report.status.as_ref().map_err(|error| error.why.as_str()))
            })
            .collect();
        Self::put_together(&answers, status.authority, status.leader.as_ref().map(|l| l.address.as_str()))
    }

    /// Puts the answers together, or the reasons why there is none. `authority` is the place of the one to believe.
    fn put_together(answers: &[Answer<'_>], authority: Option<usize>, leader: Option<&str>) -> Self {
        let replies = || answers.iter().filter_map(|(_, reply)| reply.as_ref().ok());
        let authority = authority.and_then(|at| answers.get(at)).and_then(|(_, reply)| reply.ok());
        let leads = leader.is_some();
        let stores: Vec<_> = authority.map(|r| r.stores.iter().map(store_view).collect()).unwrap_or_default();

        let mut problems = Vec::new();
        if !leads {
            let waiting = replies().map(|r| r.waiting_for.as_str()).find(|w| !w.is_empty());
            problems.push(match waiting {
                Some(waiting) => format!("no leader: {waiting}"),
                None => "no leader".to_owned(),
            });
        }
        let members = Members::of(authority.filter(|_| leads), answers);
        for (address, reply) in answers {
            if let Err(why) = reply
                && !members.all_answer
            {
                problems.push(format!("master {address} does not answer ({why})"));
            }
        }
        if let Some(status) = authority.filter(|_| leads) {
            // A master that came back empty is another node at the address of a member that is gone for good.
            let answers_at =
                |address: &str| answers.iter().any(|(at, reply)| *at == address && reply.is_ok());
            let gone = status.masters.iter().filter(|member| {
                member.voter
                    && answers_at(&member.client_address)
                    && !replies().any(|reply| reply.node_id == member.node_id)
            });
            problems.extend(gone.map(|member| {
                let (address, id) = (&member.client_address, node_id(&member.node_id));
                let there = answers.iter().find(|(at, reply)| at == address && reply.is_ok());
                let taken_in =
                    there.and_then(|(_, reply)| reply.ok()).is_some_and(|reply| members.has(reply));
                let new = if taken_in { "new and has no vote yet" } else { "new and not a member" };
                format!("the master at {address} is {new}; the member {id} that was there is gone")
            }));
            let votes = |reply: &StatusReply| {
                status.masters.iter().any(|member| member.voter && member.node_id == reply.node_id)
            };
            let starting = answers.iter().filter_map(|(address, reply)| Some((address, reply.ok()?)));
            let starting = starting.filter(|(_, reply)| !reply.waiting_for.is_empty() && votes(reply));
            problems.extend(
                starting.map(|(address, reply)| {
                    format!("master {address} is not ready yet: {}", reply.waiting_for)
                }),
            );
            if !status.no_puts.is_empty() {
                problems.push(status.no_puts.clone());
            }
            let missing = stores.iter().filter(|s| !s.is_alive());
            problems.extend(missing.map(|s| format!("store {} is {}", s.addr, s.state)));
            if stores.is_empty() {
                problems.push("no store is mounted: puts are refused".to_owned());
            }
        }
        Self {
            health: match (leads, problems.as_slice()) {
                (false, _) => Health::Down,
                (true, []) => Health::Healthy,
                (true, _) => Health::Degraded,
            },
            problems,
            cluster_id: authority.map(|r| hex(&r.cluster_id)).filter(|id| !id.is_empty()),
            leader: leader.map(str::to_owned),
            keys: authority.map(|r| r.keys),
            masters: masters(answers, &members),
            stores,
        }
    }
}

/// The members of the cluster, as its leader reports them.
struct Members<'a> {
    /// `None` where nobody knows.
    ids: Option<BTreeSet<&'a [u8]>>,
    /// So whoever does not is none.
    all_answer: bool,
}

impl<'a> Members<'a> {
    fn of(leader: Option<&'a StatusReply>, answers: &[Answer<'_>]) -> Self {
        let ids = leader.map(|reply| reply.masters.iter().map(|member| &member.node_id[..]).collect());
        let answers = |id: &&[u8]| {
            answers.iter().any(|(_, reply)| reply.as_ref().is_ok_and(|reply| reply.node_id == **id))
        };
        let all_answer =
            ids.as_ref().is_some_and(|ids: &BTreeSet<_>| !ids.is_empty() && ids.iter().all(answers));
        Self { ids, all_answer }
    }

    fn has(&self, reply: &StatusReply) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&reply.node_id[..]))
    }
}

/// One entry per node that answered (two names of one node are one), then those that did not.
fn masters(answers: &[Answer<'_>], cluster: &Members<'_>) -> Vec<MasterView> {
    const NO_MEMBER: &str = "no member";
    let replies = || answers.iter().filter_map(|(_, reply)| reply.as_ref().ok());
    let members: BTreeMap<_, _> =
        replies().flat_map(|r| &r.masters).map(|m| (m.client_address.as_str(), &m.node_id[..])).collect();
    let mut answered: BTreeMap<&[u8], MasterView> = BTreeMap::new();
    let mut silent = Vec::new();
    for (address, reply) in answers {
        match reply {
            Ok(reply) => {
                answered.entry(&reply.node_id).or_insert_with(|| MasterView {
                    id: Some(node_id(&reply.node_id)),
                    addr: (*address).to_owned(),
                    role: if cluster.has(reply) { reply.role.clone() } else { NO_MEMBER.to_owned() },
                    pid: Some(reply.pid),
                    term: Some(reply.term),
                    applied: Some(reply.applied),
                });
            }
            Err(_) => silent.push(MasterView {
                id: members.get(address).map(|id| node_id(id)),
                addr: (*address).to_owned(),
                role: if cluster.all_answer { NO_MEMBER } else { "unreachable" }.to_owned(),
                pid: None,
                term: None,
                applied: None,
            }),
        }
    }
    let mut masters: Vec<_> = answered.into_values().chain(silent).collect();
    masters.sort_by(|a, b| a.addr.cmp(&b.addr));
    masters
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

    type Report = (String, Result<StatusReply, &'static str>);

    fn address(id: u64) -> String {
        format!("10.0.0.{id}:50051")
    }

    fn store(state: &str) -> StoreStatus {
        StoreStatus {
            store_id: vec![0, 0, 0, 0, 0, 0, 0, 9].into(),
            endpoints: vec![Endpoint { address: "10.0.1.1:50060".into(), ..Endpoint::default() }],
            state: state.into(),
            capacity_bytes: 100,
            used_bytes: 40,
            ..StoreStatus::default()
        }
    }

    fn answer(id: u64, role: &str) -> Report {
        let member = |id: u64| MemberStatus {
            node_id: NodeId(id).to_bytes().to_vec().into(),
            client_address: address(id),
            voter: true,
            ..MemberStatus::default()
        };
        let reply = StatusReply {
            cluster_id: vec![7; 16].into(),
            node_id: NodeId(id).to_bytes().to_vec().into(),
            role: role.into(),
            term: 4,
            applied: 10,
            keys: 3,
            masters: vec![member(1), member(2), member(3)],
            stores: vec![store(if role == "leader" { "alive" } else { "unknown" })],
            pid: 100 + id as u32,
            ..StatusReply::default()
        };
        (address(id), Ok(reply))
    }

    fn silence(id: u64) -> Report {
        (address(id), Err("Connection refused"))
    }

    fn view_of(reports: &[Report]) -> View {
        let is_leader = |(_, reply): &Report| reply.as_ref().is_ok_and(|r| r.role == "leader");
        let leads = reports.iter().position(is_leader);
        let answers: Vec<_> = reports
            .iter()
            .map(|(address, reply)| (address.as_str(), reply.as_ref().map_err(|why| *why)))
            .collect();
        let authority = leads.or_else(|| reports.iter().position(|(_, reply)| reply.is_ok()));
        View::put_together(&answers, authority, leads.map(|at| answers[at].0))
    }

    #[test]
    fn a_leader_all_masters_and_all_stores_are_healthy() {
        let view = view_of(&[answer(1, "follower"), answer(2, "leader"), answer(3, "follower")]);
        assert_eq!((view.health, view.problems.len()), (Health::Healthy, 0));
        assert_eq!(view.leader, Some(address(2)));
        assert_eq!(view.health as u8, 0, "exit code");
    }

    #[test]
    fn a_silent_master_or_a_suspect_store_is_degraded() {
        let view = view_of(&[answer(1, "follower"), answer(2, "leader"), silence(3)]);
        assert_eq!((view.health, view.health as u8), (Health::Degraded, 1));
        assert!(view.problems[0].contains(&address(3)) && view.problems[0].contains("refused"));
        let silent = &view.masters[2];
        assert_eq!((silent.role.as_str(), silent.pid), ("unreachable", None));
        assert_eq!(silent.id, Some(NodeId(3).to_string()), "the others know whose address it is");

        let with_stores = |stores| {
            let mut leader = answer(2, "leader");
            leader.1.as_mut().unwrap().stores = stores;
            view_of(&[leader]).health
        };
        assert_eq!(with_stores(vec![store("alive"), store("suspect")]), Health::Degraded);
        assert_eq!(with_stores(Vec::new()), Health::Degraded, "without a store nothing can be put");
    }

    #[test]
    fn without_a_leader_it_is_down_and_says_why() {
        let mut forming = answer(1, "forming");
        forming.1.as_mut().unwrap().waiting_for = "waiting for 10.0.0.3:50055".into();
        let view = view_of(&[forming, silence(2)]);
        assert_eq!((view.health, view.health as u8), (Health::Down, 2));
        assert!(view.problems[0].contains("waiting for 10.0.0.3:50055"), "{:?}", view.problems);
        let silent = view_of(&[silence(1)]);
        assert_eq!((silent.health, silent.keys), (Health::Down, None));
    }

    #[test]
    fn who_is_no_member_is_said_to_be_none_and_missed_by_nobody() {
        let well = [answer(1, "follower"), answer(2, "leader"), answer(3, "follower")];
        let removed = view_of(&[&well[..], &[answer(4, "follower"), silence(5)]].concat());
        assert_eq!((removed.health, removed.problems.len()), (Health::Healthy, 0));
        let roles: Vec<_> = removed.masters.iter().map(|master| master.role.as_str()).collect();
        assert_eq!(roles, ["follower", "leader", "follower", "no member", "no member"]);

        // With a member missing, whoever is silent may be that one, by another name.
        let one_is_silent = view_of(&[&well[..2], &[silence(5)]].concat());
        assert_eq!(one_is_silent.health, Health::Degraded);
        assert_eq!(one_is_silent.masters[2].role, "unreachable");
        let leaderless = view_of(&[answer(1, "candidate"), answer(4, "follower")]);
        assert_eq!(leaderless.masters[1].role, "follower", "nobody knows the members");
    }

    #[test]
    fn a_leader_that_starts_no_puts_is_degraded_and_says_why() {
        let mut leader = answer(2, "leader");
        leader.1.as_mut().unwrap().no_puts = "the disk is nearly full".into();
        let view = view_of(&[answer(1, "follower"), leader, answer(3, "follower")]);
        assert_eq!(
            (view.health, &*view.problems),
            (Health::Degraded, &["the disk is nearly full".to_owned()][..])
        );
    }

    #[test]
    fn a_voter_that_reads_its_disk_is_degraded_until_it_is_ready() {
        let mut starting = answer(3, "forming");
        starting.1.as_mut().unwrap().waiting_for = "its log: 40 of 256 MiB are read".into();
        let masters = [answer(1, "follower"), answer(2, "leader"), starting];
        let view = view_of(&masters);
        assert_eq!(view.health, Health::Degraded);
        assert_eq!(
            view.problems,
            ["master 10.0.0.3:50051 is not ready yet: its log: 40 of 256 MiB are read".to_owned()]
        );
    }

    #[test]
    fn two_names_of_one_master_are_one_master() {
        let mut alias = answer(2, "leader");
        alias.0 = "localhost:50051".into();
        assert_eq!(view_of(&[answer(2, "leader"), alias]).masters.len(), 1);
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let view = view_of(&[answer(2, "leader"), silence(3)]);
        let json = serde_json::to_value(&view).unwrap();
        for key in ["leader", "keys", "masters", "stores", "health", "problems", "cluster_id"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let keys = |at: &str| json[at][0].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys("masters"), ["addr", "applied", "id", "pid", "role", "term"]);
        assert_eq!(keys("stores"), ["addr", "capacity_bytes", "id", "state", "used_bytes"]);
        assert_eq!(json["health"], "degraded");
        assert_eq!(json["stores"][0]["used_bytes"], 40);
        assert_eq!(json["masters"][1]["pid"], serde_json::Value::Null);
    }
}
