use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use mc_log::MasterNode;
use mc_proto::common_version;
use mc_types::{ClusterId, HostPort, NodeId};

use super::{Advertise, FormationError, TlsReport};
use crate::config::{Entries, list};
use crate::data_dir::Belonging;

/// Number drawn at every start of a process. A node finds itself in a list when an address answers with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instance(pub u128);

/// This node's own state when a round of meetings begins. The node is empty: a node with data forms no cluster.
#[derive(Clone, Debug)]
pub(crate) struct OwnState {
    /// Number of this start of its process.
    pub(crate) instance: Instance,
    /// Its node id.
    pub(crate) node: NodeId,
    /// The cluster that its identity file names, if any.
    pub(crate) belonging: Option<Belonging>,
    /// The cluster that sent a Raft call for this node's id, if any.
    pub(crate) called: Option<ClusterId>,
    /// The masters that `--peers` stands for now.
    pub(crate) list: Entries,
    /// How others reach it.
    pub(crate) advertise: Advertise,
    /// Protocol versions of this build.
    pub(crate) versions: RangeInclusive<u32>,
}

/// Result of a call to one address of the list.
#[derive(Clone, Debug)]
pub(crate) struct PeerReply {
    /// The address as listed.
    pub(crate) address: HostPort,
    /// The node there, or why there was no answer.
    pub(crate) answer: Result<PeerState, String>,
}

/// A master's answer to `Meet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerState {
    /// Number of its process's start.
    pub(crate) instance: Instance,
    /// Its node id.
    pub(crate) node: NodeId,
    /// The cluster that its identity names.
    pub(crate) cluster: Option<ClusterId>,
    /// Whether it has Raft state.
    pub(crate) formed: bool,
    /// Its list, as text.
    pub(crate) list: Vec<String>,
    /// Its addresses; empty until it has found itself in its list.
    pub(crate) addresses: MasterNode,
    /// Protocol versions of its build.
    pub(crate) versions: RangeInclusive<u32>,
    /// Its build.
    pub(crate) software: String,
    /// The highest cluster version that its build supports.
    pub(crate) cluster_version_max: u32,
    /// Its report on TLS; `None` from an older build.
    pub(crate) tls: Option<TlsReport>,
}

/// Outcome of one round of meetings.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Meet again, for these reasons.
    Wait(Vec<FormingReason>),
    /// Found a cluster with these members, by these calls.
    Found {
        /// Every member, this node included.
        members: BTreeMap<NodeId, MasterNode>,
        /// Calls to the other members.
        invitations: Vec<Invitation>,
    },
    /// Join this formed cluster: start Raft uninitialized.
    Join(Belonging),
    /// Give up, because waiting would not help.
    Fatal(FormationError),
}

/// Call of a founder to one peer, with the cluster id that the peer showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invitation {
    /// Address of the peer.
    pub(crate) address: HostPort,
    /// Node id of the peer.
    pub(crate) node: NodeId,
    /// Cluster id that the peer showed.
    pub(crate) replaces: Option<ClusterId>,
}

/// Reason to wait with forming a cluster or joining one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FormingReason {
    /// The list is not complete: names without addresses, or fewer masters than there should be.
    List(String),
    /// The peer at this address does not answer; the text says why.
    Unreachable(HostPort, String),
    /// The peer lists other masters: its list, and this node's.
    OtherList(HostPort, Vec<String>, Vec<HostPort>),
    /// The peer has not yet found itself in its list.
    NotReady(HostPort),
    /// The peer calls itself by another entry of the list.
    OtherEntry(HostPort, String),
    /// A cluster is formed, and this node is not in it.
    Formed(ClusterId, Vec<HostPort>),
    /// Peers are formed in different clusters.
    SeveralClusters(Vec<(HostPort, ClusterId)>),
    /// This node was taken in by a cluster of which no master answers.
    Absent(ClusterId),
    /// The peer with the smallest id founds.
    Founder(HostPort, NodeId),
    /// The peer did not take part in this node's founding; the text says why.
    Refused(HostPort, String),
}

impl fmt::Display for FormingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(why) => f.write_str(why),
            Self::Unreachable(at, why) => write!(f, "{at} does not answer ({why})"),
            Self::OtherList(at, theirs, ours) => {
                write!(f, "{at} lists other masters ({}; this one lists {})", list(theirs), list(ours))
            }
            Self::NotReady(at) => write!(f, "{at} has not found itself in its list yet"),
            Self::OtherEntry(at, itself) => write!(f, "{at} answers as {itself}"),
            Self::Formed(cluster, by) => write!(
                f,
                "cluster {cluster} is already formed by {}; this node is new and waits to be taken in",
                list(by)
            ),
            Self::SeveralClusters(clusters) => {
                let each: Vec<String> =
                    clusters.iter().map(|(at, cluster)| format!("{at} is of cluster {cluster}")).collect();
                write!(
                    f,
                    "{}; this node is new and joins the cluster that most masters of its list belong to",
                    list(&each)
                )
            }
            Self::Absent(cluster) => {
                write!(f, "this node belongs to cluster {cluster} and none of its masters answers")
            }
            Self::Founder(at, node) => write!(f, "{at} (node {node}, the smallest id) forms the cluster"),
            Self::Refused(at, why) => write!(f, "{at} did not take part: {why}"),
        }
    }
}

/// Finds the entry of the list that is this node, by the answers or by `--advertise`; `None` while that is not known.
/// If both an IPv4 and an IPv6 address are this node's, takes the family at which more of the list answered.
///
/// # Errors
/// [`FormationError::SelfTwice`], or [`FormationError::SelfMissing`] once every master has answered.
pub(crate) fn find_self(own: &OwnState, met: &[PeerReply]) -> Result<Option<HostPort>, FormationError> {
    let mut found = own.advertise.entry(&own.list.addresses).cloned();
    let advertised = found.is_some();
    for (address, answer) in answered(met) {
        if answer.instance != own.instance {
            continue;
        }
        match &found {
            Some(other) if other == address => {}
            Some(other) if !own.list.may_be_one(other, address) => {
                return Err(FormationError::SelfTwice(other.clone(), address.clone()));
            }
            Some(other) if advertised || reached(other, met) >= reached(address, met) => {}
            _ => found = Some(address.clone()),
        }
    }
    // Counted by node id: a master that restarts during the round answers as two instances.
    let nodes: BTreeSet<NodeId> = answered(met).map(|(_, answer)| answer.node).collect();
    let all_answered = met.len() == own.list.addresses.len() && nodes.len() >= own.list.masters;
    if found.is_none() && all_answered {
        return Err(FormationError::SelfMissing(own.list.addresses.clone()));
    }
    Ok(found)
}

fn answered(met: &[PeerReply]) -> impl Iterator<Item = (&HostPort, &PeerState)> {
    met.iter().filter_map(|met| Some((&met.address, met.answer.as_ref().ok()?)))
}

/// Number of addresses of the family of `at` that answered.
fn reached(at: &HostPort, met: &[PeerReply]) -> usize {
    let family = |address: &HostPort| address.ip().map(|ip| ip.is_ipv4());
    answered(met).filter(|(address, _)| family(address) == family(at)).count()
}

/// Returns the masters that answered. A master that answered at its IPv4 and its IPv6 address counts once, at the
/// address that it calls its own.
fn distinct<'a>(own: &OwnState, met: &'a [PeerReply]) -> Vec<(&'a HostPort, &'a PeerState)> {
    let mut masters: Vec<(&HostPort, &PeerState)> = Vec::new();
    for (at, answer) in answered(met) {
        let same = |(other, earlier): &(&HostPort, &PeerState)| {
            earlier.instance == answer.instance && own.list.may_be_one(other, at)
        };
        match masters.iter().position(same) {
            None => masters.push((at, answer)),
            Some(place) if answer.addresses.raft == at.to_string() => masters[place] = (at, answer),
            Some(_) => {}
        }
    }
    masters
}

/// Decides after a round. `met` holds the result for each address of the list that was called.
#[must_use]
pub(crate) fn decide(own: &OwnState, met: &[PeerReply]) -> Decision {
    match checked(own, met) {
        Ok(decision) => decision,
        Err(error) => Decision::Fatal(error),
    }
}

fn checked(own: &OwnState, met: &[PeerReply]) -> Result<Decision, FormationError> {
    check_versions(own, met)?;
    let me = find_self(own, met)?;
    // This node is not one of the peers that can be formed, absent or of another opinion.
    let mut answers = distinct(own, met);
    answers.retain(|(at, answer)| Some(*at) != me.as_ref() && answer.instance != own.instance);
    check_distinct(own, me.as_ref(), &answers)?;
    if let Some(decision) = formed_elsewhere(own, &answers)? {
        return Ok(decision);
    }

    let mut reasons = Vec::new();
    if let Some(Belonging { cluster, founder: None }) = own.belonging {
        reasons.push(FormingReason::Absent(cluster));
    }
    // Once all masters have answered, an address of the other family need not answer.
    let all_met = me.is_some() && answers.len() + 1 >= own.list.masters;
    for met in met.iter().filter(|met| !all_met && Some(&met.address) != me.as_ref()) {
        if let Err(why) = &met.answer {
            reasons.push(FormingReason::Unreachable(met.address.clone(), why.clone()));
        }
    }
    if answers.len() + usize::from(me.is_some()) > own.list.masters {
        let (listed, there) = (own.list.masters, answers.len() + 1);
        reasons.push(FormingReason::List(format!(
            "by --peers there are {listed} masters, but {there} answer: correct it or its DNS records"
        )));
    }
    let mine: Vec<String> = own.list.addresses.iter().map(ToString::to_string).collect();
    for (at, answer) in &answers {
        let at = (*at).clone();
        match answer {
            // The peer's first round has not begun.
            answer if answer.list.is_empty() => reasons.push(FormingReason::NotReady(at)),
            answer if answer.list != mine => {
                let ours = own.list.addresses.clone();
                reasons.push(FormingReason::OtherList(at, answer.list.clone(), ours));
            }
            answer if answer.addresses.raft.is_empty() => reasons.push(FormingReason::NotReady(at)),
            // With this answer, the members' map would send Raft calls to an address where another node answers.
            answer if answer.addresses.raft != at.to_string() && mine.contains(&answer.addresses.raft) => {
                reasons.push(FormingReason::OtherEntry(at, answer.addresses.raft.clone()));
            }
            _ => {}
        }
    }
    let Some(me) = me.filter(|_| reasons.is_empty()) else { return Ok(Decision::Wait(reasons)) };

    if let Some((at, answer)) = answers.iter().min_by_key(|(_, answer)| answer.node)
        && answer.node < own.node
    {
        return Ok(Decision::Wait(vec![FormingReason::Founder((*at).clone(), answer.node)]));
    }
    let mut members: BTreeMap<NodeId, MasterNode> =
        answers.iter().map(|(_, answer)| (answer.node, answer.addresses.clone())).collect();
    members.insert(own.node, own.advertise.at(&me));
    let invitations = answers
        .iter()
        .map(|(at, answer)| Invitation {
            address: (*at).clone(),
            node: answer.node,
            replaces: answer.cluster,
        })
        .collect();
    Ok(Decision::Found { members, invitations })
}

fn check_versions(own: &OwnState, met: &[PeerReply]) -> Result<(), FormationError> {
    let range = |versions: &RangeInclusive<u32>| format!("{} to {}", versions.start(), versions.end());
    for PeerReply { address, answer } in met {
        if let Ok(answer) = answer
            && common_version(own.versions.clone(), answer.versions.clone()).is_none()
        {
            return Err(FormationError::VersionSkew {
                address: address.clone(),
                software: answer.software.clone(),
                theirs: range(&answer.versions),
                ours: range(&own.versions),
            });
        }
    }
    Ok(())
}

fn check_distinct(
    own: &OwnState,
    me: Option<&HostPort>,
    answers: &[(&HostPort, &PeerState)],
) -> Result<(), FormationError> {
    for (place, (at, answer)) in answers.iter().enumerate() {
        if let (Some(me), true) = (me, answer.node == own.node) {
            return Err(FormationError::CopiedIdentity {
                first: me.clone(),
                second: (*at).clone(),
                node: own.node,
            });
        }
        for (other, earlier) in &answers[..place] {
            if earlier.instance == answer.instance {
                return Err(FormationError::SameMaster((*other).clone(), (*at).clone()));
            }
            if earlier.node == answer.node {
                return Err(FormationError::CopiedIdentity {
                    first: (*other).clone(),
                    second: (*at).clone(),
                    node: answer.node,
                });
            }
        }
    }
    Ok(())
}

/// Decides if peers are formed; `None` if none of those that answered is.
fn formed_elsewhere(
    own: &OwnState,
    answers: &[(&HostPort, &PeerState)],
) -> Result<Option<Decision>, FormationError> {
    let formed: Vec<(HostPort, ClusterId)> = answers
        .iter()
        .filter(|(_, answer)| answer.formed)
        .filter_map(|(at, answer)| Some(((*at).clone(), answer.cluster?)))
        .collect();
    let Some((_, some)) = formed.first() else { return Ok(None) };
    let agree = formed.iter().all(|(_, cluster)| cluster == some);

    if let Some(belonging) = own.belonging {
        let ours = belonging.cluster;
        let with_us = formed.iter().any(|(_, cluster)| *cluster == ours);
        // An accepted founding that came to nothing binds nobody; any other belonging does.
        if with_us || belonging.founder.is_none() {
            if let Some((address, theirs)) = formed.iter().find(|(_, cluster)| *cluster != ours) {
                return Err(FormationError::Foreign { address: address.clone(), theirs: *theirs, ours });
            }
            return Ok(Some(Decision::Join(belonging)));
        }
    }
    // Joining a cluster id is safe regardless of who reports it, because a node has no say in a cluster whose members
    // do not name it. It still takes most of the list, or a leader's call for this very id, so that a stray answer
    // cannot claim a node.
    let joinable = formed.iter().map(|(_, cluster)| *cluster).find(|cluster| {
        let by = formed.iter().filter(|(_, other)| other == cluster).count();
        2 * by > own.list.masters || (agree && own.called == Some(*cluster))
    });
    Ok(Some(match joinable {
        Some(cluster) => Decision::Join(Belonging { cluster, founder: None }),
        None if agree => Decision::Wait(vec![FormingReason::Formed(
            *some,
            formed.iter().map(|(at, _)| at.clone()).collect(),
        )]),
        None => Decision::Wait(vec![FormingReason::SeveralClusters(formed)]),
    }))
}
