//! Summary of the pool, combined from the answers of all masters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use mc_client::{ClusterStatus, MasterStatus, NodeId, StoreState, StoreStatus, TlsLevel, TransportStatus};
use mc_types::{DEFAULT_TENANT, STORE_TENANT};
use serde::Serialize;

/// A master's address with its status, or with the reason why it did not answer.
type Answer<'a> = (&'a str, Result<&'a MasterStatus, &'a str>);

/// Health of the pool; the value is the exit code of `mcctl status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// A leader exists, every master answers, and every store is alive.
    Healthy = 0,
    /// The pool works, but something is missing.
    Degraded = 1,
    /// There is no leader: nothing can be put.
    Down = 2,
}

/// The state of the pool, as `mcctl status -o json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// Health of the pool.
    pub health: Health,
    /// Reasons why the pool is not healthy, in words.
    pub problems: Vec<String>,
    /// Reason to worry about who can read along or call, in words; it is no reason why the pool would not be healthy.
    pub warning: Option<String>,
    /// The cluster's id; `None` until it has formed.
    pub cluster_id: Option<String>,
    /// Client address of the leader.
    pub leader: Option<String>,
    /// Objects in the index.
    pub keys: Option<u64>,
    /// Every master that was asked, including those that other masters named.
    pub masters: Vec<MasterView>,
    /// Every store as the leader sees it; without a leader, as the most advanced master does.
    pub stores: Vec<StoreView>,
}

/// One master. Values that only it knows are absent while it does not answer.
#[derive(Clone, Debug, Serialize)]
pub struct MasterView {
    /// Id, if a master that answers knows it.
    pub id: Option<String>,
    /// Client address.
    pub addr: String,
    /// leader, follower, learner, candidate, forming or unreachable; "no member" for a master that was removed, that
    /// belongs to another cluster, or that no longer exists.
    pub role: String,
    /// Id of its process.
    pub pid: Option<u32>,
    /// Its term.
    pub term: Option<u64>,
    /// Index of the last log entry that it has applied.
    pub applied: Option<u64>,
    /// lan or wan; `None` until the master takes part in Raft.
    pub raft_timing: Option<String>,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreView {
    /// Id of the store.
    pub id: String,
    /// Address of its memory.
    pub addr: String,
    /// alive, suspect, or unknown, because only a leader can tell.
    pub state: String,
    /// Bytes of memory that it lends.
    pub capacity_bytes: u64,
    /// Bytes of that memory that objects take.
    pub used_bytes: u64,
    /// Tenant whose memory it is; absent for a store that takes objects of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its transports; empty without a leader that has heard of them.
    pub transports: Vec<TransportView>,
}

/// A transport of a store.
#[derive(Clone, Debug, Serialize)]
pub struct TransportView {
    /// tcp, shm or rdma.
    pub name: String,
    /// Whether the store offers it.
    pub offered: bool,
    /// How it is offered, or why it is not.
    pub how: String,
    /// Bytes that clients read by it since the store started.
    pub read_bytes: u64,
    /// Bytes that clients wrote by it since the store started.
    pub written_bytes: u64,
}

impl StoreView {
    /// Returns whether the leader hears from it.
    pub fn is_alive(&self) -> bool {
        self.state == "alive"
    }

    /// Says by which transports its bytes were moved, those of most bytes first.
    pub fn moved_by(&self) -> String {
        let bytes = |transport: &TransportView| transport.read_bytes.saturating_add(transport.written_bytes);
        let all = self.transports.iter().map(bytes).fold(0, u64::saturating_add);
        let mut used: Vec<_> = self.transports.iter().filter(|transport| bytes(transport) > 0).collect();
        used.sort_by_key(|transport| std::cmp::Reverse(bytes(transport)));
        let part = |transport: &&TransportView| {
            let percent = 100.0 * bytes(transport) as f64 / all as f64;
            if percent < 1.0 {
                format!("{} < 1 %", transport.name)
            } else {
                format!("{} {percent:.0} %", transport.name)
            }
        };
        used.iter().map(part).collect::<Vec<_>>().join(", ")
    }
}

/// Says which transports stores do not offer, and why: a line for each reason.
pub fn not_offered(stores: &[StoreView]) -> Vec<String> {
    let all =
        stores.iter().flat_map(|store| store.transports.iter().map(move |transport| (store, transport)));
    let lacking = all.filter(|(_, transport)| !transport.offered).map(|(store, transport)| Lacking {
        name: &transport.name,
        why: &transport.how,
        at: &store.addr,
    });
    lines_of(lacking, stores.len())
}

/// A transport by which no bytes go to a store.
pub struct Lacking<'a> {
    /// Name of the transport.
    pub name: &'a str,
    /// Reason why it is not offered.
    pub why: &'a str,
    /// Address of the store.
    pub at: &'a str,
}

/// Says of which transports there are none, and why: a line for each reason. There are `stores` stores in all.
pub fn lines_of<'a>(lacking: impl Iterator<Item = Lacking<'a>>, stores: usize) -> Vec<String> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for Lacking { name, why, at } in lacking {
        reasons.entry((name, why)).or_default().push(at);
    }
    let line = |((name, why), at): ((&str, &str), Vec<&str>)| match at.as_slice() {
        all if all.len() == stores => format!("no {name}: {why}"),
        [one] => format!("no {name} at {one}: {why}"),
        [first, others @ ..] => format!("no {name} at {first} and {} others: {why}", others.len()),
        [] => String::new(),
    };
    reasons.into_iter().map(line).collect()
}

impl View {
    /// Summarises the masters' answers.
    pub fn of(status: &ClusterStatus) -> Self {
        let answers: Vec<_> = status
            .masters
            .iter()
            .map(|report| {
                (report.address.as_str(), report.status.as_ref().map_err(|error| error.why.as_str()))
            })
            .collect();
        let leader = status.leader.as_ref().map(|leader| leader.address.as_str());
        let addresses = status.masters.iter().map(|report| report.address.as_str());
        Self {
            warning: unprotected(addresses, status.has_tls, status.tls_level),
            ..Self::put_together(&answers, status.authority, leader)
        }
    }

    /// Combines the answers, and the reasons for missing ones. `authority` is the index of the answer to believe.
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
        problems.extend(timings_differ(answers));
        let members = Members::of(authority.filter(|_| leads), answers);
        for (address, reply) in answers {
            if let Err(why) = reply
                && !members.all_answer
            {
                problems.push(format!("master {address} does not answer ({why})"));
            }
        }
        if let Some(status) = authority.filter(|_| leads) {
            // A master that came back empty is a new node. It answers at the address of a member that is gone for good.
            let answers_at =
                |address: &str| answers.iter().any(|(at, reply)| *at == address && reply.is_ok());
            let gone = status.members.iter().filter(|member| {
                member.voter
                    && answers_at(&member.client_address)
                    && !replies().any(|reply| reply.node == member.node)
            });
            problems.extend(gone.map(|member| {
                let (address, id) = (&member.client_address, member.node);
                let there = answers.iter().find(|(at, reply)| at == address && reply.is_ok());
                let taken_in =
                    there.and_then(|(_, reply)| reply.ok()).is_some_and(|reply| members.has(reply));
                let new = if taken_in { "new and has no vote yet" } else { "new and not a member" };
                format!("the master at {address} is {new}; the member {id} that was there is gone")
            }));
            let votes = |reply: &MasterStatus| {
                status.members.iter().any(|member| member.voter && member.node == reply.node)
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
            warning: None,
            cluster_id: authority.and_then(|r| r.cluster).map(|id| id.to_string()),
            leader: leader.map(str::to_owned),
            keys: authority.map(|r| r.keys),
            masters: masters(answers, &members),
            stores,
        }
    }
}

/// Returns a warning if connections to masters at these addresses can be read along, or if the cluster lets in callers without a
/// certificate.
fn unprotected<'a>(
    mut masters: impl Iterator<Item = &'a str>,
    has_tls: bool,
    level: Option<TlsLevel>,
) -> Option<String> {
    match level {
        _ if !has_tls => masters.any(|address| !is_loopback(address)).then(|| {
            "connections are not encrypted, and callers are not checked: make certificates with `mcctl cert`".to_owned()
        }),
        Some(level) if level < TlsLevel::Require => Some(format!(
            "callers without a certificate are let in (TLS: {level}): `mcctl security status` lists those that `require` would cut off"
        )),
        _ => None,
    }
}

/// Returns whether an address with a port is on this machine.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns a problem if masters run with different timings: masters refuse messages of another election timeout.
fn timings_differ(answers: &[Answer<'_>]) -> Option<String> {
    let mut masters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (address, reply) in answers {
        if let Ok(reply) = reply
            && !reply.raft_timing.is_empty()
        {
            masters.entry(&reply.raft_timing).or_default().push(address);
        }
    }
    let with = |(timing, masters): (&&str, &Vec<&str>)| format!("{timing} ({})", masters.join(", "));
    (masters.len() > 1).then(|| {
        let timings: Vec<_> = masters.iter().map(with).collect();
        format!(
            "the masters run with different --raft-timing and refuse each other: {}; restart all with the same",
            timings.join(", ")
        )
    })
}

/// The members of the cluster, as its leader reports them.
struct Members {
    /// Ids of the members; `None` where no leader reports them.
    ids: Option<BTreeSet<NodeId>>,
    /// Whether every member answers, so that any silent master is no member.
    all_answer: bool,
}

impl Members {
    fn of(leader: Option<&MasterStatus>, answers: &[Answer<'_>]) -> Self {
        let ids = leader.map(|reply| reply.members.iter().map(|member| member.node).collect());
        let answers = |id: &NodeId| {
            answers.iter().any(|(_, reply)| reply.as_ref().is_ok_and(|reply| reply.node == *id))
        };
        let all_answer =
            ids.as_ref().is_some_and(|ids: &BTreeSet<_>| !ids.is_empty() && ids.iter().all(answers));
        Self { ids, all_answer }
    }

    fn has(&self, reply: &MasterStatus) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&reply.node))
    }
}

/// Lists one entry per node that answered, even under two names, and one per address that did not.
fn masters(answers: &[Answer<'_>], cluster: &Members) -> Vec<MasterView> {
    const NO_MEMBER: &str = "no member";
    let replies = || answers.iter().filter_map(|(_, reply)| reply.as_ref().ok());
    let members: BTreeMap<_, _> =
        replies().flat_map(|r| &r.members).map(|m| (m.client_address.as_str(), m.node)).collect();
    let mut answered: BTreeMap<NodeId, MasterView> = BTreeMap::new();
    let mut silent = Vec::new();
    for (address, reply) in answers {
        match reply {
            Ok(reply) => {
                answered.entry(reply.node).or_insert_with(|| MasterView {
                    id: Some(reply.node.to_string()),
                    addr: (*address).to_owned(),
                    role: if cluster.has(reply) { reply.role.clone() } else { NO_MEMBER.to_owned() },
                    pid: Some(reply.pid),
                    term: Some(reply.term),
                    applied: Some(reply.applied),
                    raft_timing: Some(reply.raft_timing.clone()).filter(|timing| !timing.is_empty()),
                });
            }
            Err(_) => silent.push(MasterView {
                id: members.get(address).map(ToString::to_string),
                addr: (*address).to_owned(),
                role: if cluster.all_answer { NO_MEMBER } else { "unreachable" }.to_owned(),
                pid: None,
                term: None,
                applied: None,
                raft_timing: None,
            }),
        }
    }
    let mut masters: Vec<_> = answered.into_values().chain(silent).collect();
    masters.sort_by(|a, b| a.addr.cmp(&b.addr));
    masters
}

fn store_view(store: &StoreStatus) -> StoreView {
    StoreView {
        id: store.store.to_string(),
        addr: address(store).to_owned(),
        state: state_name(store.state).to_owned(),
        capacity_bytes: store.capacity.0,
        used_bytes: store.used.0,
        tenant: tenant_of(store),
        transports: store.transports.iter().map(transport_view).collect(),
    }
}

/// Returns the tenant whose memory a store is, by the name that certificates have for it.
fn tenant_of(store: &StoreStatus) -> Option<String> {
    let mut attributes = store.endpoints.iter().flat_map(|endpoint| &endpoint.attributes);
    let (_, tenant) = attributes.find(|(name, _)| name == STORE_TENANT)?;
    Some(if tenant.is_empty() { DEFAULT_TENANT.to_owned() } else { tenant.clone() })
}

fn transport_view(transport: &TransportStatus) -> TransportView {
    TransportView {
        name: transport.name.clone(),
        offered: transport.offered,
        how: transport.how.clone(),
        read_bytes: transport.read.0,
        written_bytes: transport.written.0,
    }
}

/// Returns host:port of the store's memory; its name if it has no endpoint.
pub fn address(store: &StoreStatus) -> &str {
    store.endpoints.first().map_or(&store.name, |endpoint| &endpoint.address)
}

/// Returns the word for a store's state in tables and documents.
pub fn state_name(state: StoreState) -> &'static str {
    match state {
        StoreState::Alive => "alive",
        StoreState::Suspect => "suspect",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use mc_client::{ByteSize, ClusterId, Member, StoreId};
    use mc_transfer::PeerEndpoint;
    use mc_types::SegmentEpoch;

    use super::*;

    #[test]
    fn transports_are_told_by_their_bytes_and_by_the_reasons_of_those_that_lack() {
        let transport = |name: &str, why: Option<&str>, bytes| TransportView {
            name: name.to_owned(),
            offered: why.is_none(),
            how: why.unwrap_or("always").to_owned(),
            read_bytes: bytes,
            written_bytes: bytes,
        };
        let at = |id: u64, transports| StoreView {
            id: id.to_string(),
            addr: format!("10.0.1.{id}:50060"),
            state: "alive".to_owned(),
            capacity_bytes: 1,
            used_bytes: 0,
            tenant: None,
            transports,
        };
        let stores = [
            at(
                1,
                vec![transport("tcp", None, 5), transport("shm", None, 15), transport("rdma", Some("x"), 0)],
            ),
            at(
                2,
                vec![
                    transport("tcp", None, 0),
                    transport("shm", Some("off"), 0),
                    transport("rdma", Some("x"), 0),
                ],
            ),
            at(
                3,
                vec![transport("tcp", None, 7), transport("shm", None, 0), transport("rdma", Some("x"), 0)],
            ),
        ];
        assert_eq!(stores.each_ref().map(StoreView::moved_by), ["shm 75 %, tcp 25 %", "", "tcp 100 %"]);
        assert_eq!(not_offered(&stores), ["no rdma: x", "no shm at 10.0.1.2:50060: off"]);
        assert_eq!(not_offered(&stores[1..]), ["no rdma: x", "no shm at 10.0.1.2:50060: off"]);
        assert!(not_offered(&[]).is_empty());
    }

    type Report = (String, Result<MasterStatus, &'static str>);

    fn address(id: u64) -> String {
        format!("10.0.0.{id}:50051")
    }

    fn store(state: StoreState) -> StoreStatus {
        let mut store = StoreStatus::default();
        (store.store, store.epoch, store.state) = (StoreId(9), SegmentEpoch(1), state);
        (store.capacity, store.used) = (ByteSize(100), ByteSize(40));
        store.endpoints.push(PeerEndpoint {
            transport: "tcp".into(),
            address: "10.0.1.1:50060".into(),
            attributes: Default::default(),
        });
        store
    }

    #[test]
    fn a_store_of_one_tenant_says_so() {
        let mut of_one = store(StoreState::Alive);
        assert_eq!(store_view(&of_one).tenant, None);
        for (tenant, shown) in [("a", "a"), ("", "default")] {
            of_one.endpoints[0].attributes = vec![(STORE_TENANT.to_owned(), tenant.to_owned())];
            assert_eq!(store_view(&of_one).tenant.as_deref(), Some(shown));
        }
    }

    fn answer(id: u64, role: &str) -> Report {
        let member = |id: u64| {
            let mut member = Member::default();
            (member.node, member.client_address, member.voter) = (NodeId(id), address(id), true);
            member
        };
        let state = if role == "leader" { StoreState::Alive } else { StoreState::Unknown };
        let mut reply = MasterStatus::default();
        (reply.cluster, reply.node, reply.role) = (Some(ClusterId(7)), NodeId(id), role.into());
        (reply.term, reply.applied, reply.keys, reply.pid) = (4, 10, 3, 100 + id as u32);
        (reply.members, reply.stores) = (vec![member(1), member(2), member(3)], vec![store(state)]);
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
    fn masters_with_different_timings_are_named() {
        let with = |(address, reply): Report, timing: &str| {
            let mut reply = reply;
            if let Ok(reply) = &mut reply {
                reply.raft_timing = timing.into();
            }
            (address, reply)
        };
        let all = [with(answer(1, "follower"), "lan"), with(answer(2, "leader"), "lan"), silence(3)];
        let view = view_of(&all);
        assert!(
            !view.problems.iter().any(|problem| problem.contains("--raft-timing")),
            "{:?}",
            view.problems
        );
        assert_eq!(view.masters[0].raft_timing.as_deref(), Some("lan"));
        let [first, second, _] = all;
        let view = view_of(&[first, second, with(answer(3, "follower"), "wan")]);
        assert_eq!(view.health, Health::Degraded);
        let (one, two, three) = (address(1), address(2), address(3));
        let named = format!("lan ({one}, {two}), wan ({three}); restart all");
        assert!(view.problems[0].contains(&named), "{:?}", view.problems);
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
        assert_eq!(with_stores(vec![store(StoreState::Alive), store(StoreState::Suspect)]), Health::Degraded);
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

        // With a member missing, a silent master may be that member under another name.
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
    fn a_pool_that_others_can_read_or_call_is_said_to_be_one() {
        let (here, beyond) = (["127.0.0.1:1", "localhost:2", "[::1]:3"], ["127.0.0.1:1", "10.0.0.7:1"]);
        let warning = |masters: &[&'static str], has_tls, level| {
            unprotected(masters.iter().copied(), has_tls, level).unwrap_or_default()
        };
        assert_eq!(warning(&here, false, None), "");
        assert!(warning(&beyond, false, Some(TlsLevel::Allow)).starts_with("connections are not encrypted"));
        for (level, text) in [(TlsLevel::Allow, "TLS: allow"), (TlsLevel::Prefer, "TLS: prefer")] {
            assert!(warning(&here, true, Some(level)).contains(text));
        }
        assert_eq!(warning(&beyond, true, Some(TlsLevel::Require)), "");
        assert_eq!(warning(&beyond, true, None), "", "masters of an older build");
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
        for key in ["leader", "keys", "masters", "stores", "health", "problems", "warning", "cluster_id"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let keys = |at: &str| json[at][0].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys("masters"), ["addr", "applied", "id", "pid", "raft_timing", "role", "term"]);
        assert_eq!(keys("stores"), ["addr", "capacity_bytes", "id", "state", "transports", "used_bytes"]);
        assert_eq!(json["health"], "degraded");
        assert_eq!(json["stores"][0]["used_bytes"], 40);
        assert_eq!(json["masters"][1]["pid"], serde_json::Value::Null);
    }
}
