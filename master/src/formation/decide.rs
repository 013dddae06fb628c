use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use mc_log::MasterNode;
use mc_proto::common_version;
use mc_types::{ClusterId, HostPort, NodeId};

use super::{Advertise, FormationError};
use crate::identity::Belonging;
use crate::peers::{Entries, list};

/// Drawn at every start of a process: a node finds itself in a list by meeting its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance(pub u128);

/// This node's own state when a round of meetings begins. It is empty: a node with data does not form.
#[derive(Clone, Debug)]
pub struct Own {
    /// This start of this process.
    pub instance: Instance,
    /// This node.
    pub node: NodeId,
    /// The cluster that its identity file names, if any.
    pub belonging: Option<Belonging>,
    /// The cluster of a Raft call that came in for this node's id.
    pub called: Option<ClusterId>,
    /// The masters that `--peers` stands for now.
    pub list: Entries,
    /// How others reach it.
    pub advertise: Advertise,
    /// Protocol versions of this build.
    pub versions: RangeInclusive<u32>,
}

/// The answer of one address of the list.
#[derive(Clone, Debug)]
pub struct Met {
    /// The address as listed.
    pub address: HostPort,
    /// The node there, or why there was no answer.
    pub answer: Result<Answer, String>,
}

/// A peer's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its start.
    pub instance: Instance,
    /// Its id.
    pub node: NodeId,
    /// The cluster that its identity names.
    pub cluster: Option<ClusterId>,
    /// Whether it has Raft state.
    pub formed: bool,
    /// Its list, as text.
    pub list: Vec<String>,
    /// Its addresses; empty until it has found itself in its list.
    pub addresses: MasterNode,
    /// Protocol versions of its build.
    pub versions: RangeInclusive<u32>,
    /// Its build.
    pub software: String,
    /// The highest cluster version that its build supports.
    pub cluster_version_max: u32,
}

/// Outcome of a round of meetings.
#[derive(Debug)]
pub enum Decision {
    /// Meet again, for these reasons.
    Wait(Vec<Reason>),
    /// This node founds, with these members, by these calls.
    Found {
        /// Everyone, this node included.
        members: BTreeMap<NodeId, MasterNode>,
        /// Everyone else.
        invitations: Vec<Invitation>,
    },
    /// This node belongs to this formed cluster and starts Raft uninitialized.
    Join(Belonging),
    /// Waiting would not help.
    Fatal(FormationError),
}

/// Whom a founder asks, and what it saw there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Where.
    pub address: HostPort,
    /// Whom.
    pub node: NodeId,
    /// The cluster id that it showed.
    pub replaces: Option<ClusterId>,
}

/// Reason to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The list is not complete: names without addresses, or fewer masters than there should be.
    List(String),
    /// Nobody answers there.
    Unreachable(HostPort, String),
    /// It lists other masters.
    OtherList(HostPort, Vec<String>, Vec<HostPort>),
    /// It has not yet found itself in its list.
    NotReady(HostPort),
    /// It calls itself by another entry of the list.
    OtherEntry(HostPort, String),
    /// A cluster is formed, and this node is not in it.
    Formed(ClusterId, Vec<HostPort>),
    /// Peers are formed in different clusters.
    SeveralClusters(Vec<(HostPort, ClusterId)>),
    /// This node was taken in by a cluster of which nobody is there.
    Absent(ClusterId),
    /// The peer with the smallest id founds.
    Founder(HostPort, NodeId),
    /// It did not take part in this node's founding.
    Refused(HostPort, String),
}

impl fmt::Display for Reason {
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
                write!(f, "{}; this node is new and joins the one that most of the list are of", list(&each))
            }
            Self::Absent(cluster) => {
                write!(f, "this node belongs to cluster {cluster} and none of it is there")
            }
            Self::Founder(at, node) => write!(f, "{at} (node {node}, the smallest id) forms the cluster"),
            Self::Refused(at, why) => write!(f, "{at} did not take part: {why}"),
        }
    }
}

/// Which entry of the list this node is, by what the entries answered or by `--advertise`; `None` while that is not
/// known. Of its IPv4 and IPv6 addresses it is the one of the family at which more of the list answered.
///
/// # Errors
/// [`FormationError::SelfTwice`], or [`FormationError::SelfMissing`] once every master has answered.
pub fn find_self(own: &Own, met: &[Met]) -> Result<Option<HostPort>, FormationError> {
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
    // By node: a master that restarts during the round answers as two instances.
    let nodes: BTreeSet<NodeId> = answered(met).map(|(_, answer)| answer.node).collect();
    let all_answered = met.len() == own.list.addresses.len() && nodes.len() >= own.list.masters;
    if found.is_none() && all_answered {
        return Err(FormationError::SelfMissing(own.list.addresses.clone()));
    }
    Ok(found)
}

fn answered(met: &[Met]) -> impl Iterator<Item = (&HostPort, &Answer)> {
    met.iter().filter_map(|met| Some((&met.address, met.answer.as_ref().ok()?)))
}

/// How many addresses of the same family answered.
fn reached(at: &HostPort, met: &[Met]) -> usize {
    let family = |address: &HostPort| address.ip().map(|ip| ip.is_ipv4());
    answered(met).filter(|(address, _)| family(address) == family(at)).count()
}

/// The masters that answered: one that did at its IPv4 and its IPv6 address counts once, at the one by which it calls
/// itself.
fn distinct<'a>(own: &Own, met: &'a [Met]) -> Vec<(&'a HostPort, &'a Answer)> {
    let mut masters: Vec<(&HostPort, &Answer)> = Vec::new();
    for (at, answer) in answered(met) {
        let same = |(other, earlier): &(&HostPort, &Answer)| {
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

/// Decides after a round: `met` has one item for every address of the list.
#[must_use]
pub fn decide(own: &Own, met: &[Met]) -> Decision {
    match checked(own, met) {
        Ok(decision) => decision,
        Err(error) => Decision::Fatal(error),
    }
}

fn checked(own: &Own, met: &[Met]) -> Result<Decision, FormationError> {
    check_versions(own, met)?;
    let me = find_self(own, met)?;
    // This node itself is not among those that can be formed, absent or of another opinion.
    let mut answers = distinct(own, met);
    answers.retain(|(at, answer)| Some(*at) != me.as_ref() && answer.instance != own.instance);
    check_distinct(own, me.as_ref(), &answers)?;
    if let Some(decision) = formed_elsewhere(own, &answers)? {
        return Ok(decision);
    }

    let mut reasons = Vec::new();
    if let Some(Belonging { cluster, founder: None }) = own.belonging {
        reasons.push(Reason::Absent(cluster));
    }
    // With both families of all masters' records, one family is enough.
    let all_met = me.is_some() && answers.len() + 1 >= own.list.masters;
    for met in met.iter().filter(|met| !all_met && Some(&met.address) != me.as_ref()) {
        if let Err(why) = &met.answer {
            reasons.push(Reason::Unreachable(met.address.clone(), why.clone()));
        }
    }
    if answers.len() + usize::from(me.is_some()) > own.list.masters {
        let (listed, there) = (own.list.masters, answers.len() + 1);
        reasons.push(Reason::List(format!(
            "the list is {listed} masters and {there} answer: correct the records"
        )));
    }
    let mine: Vec<String> = own.list.addresses.iter().map(ToString::to_string).collect();
    for (at, answer) in &answers {
        let at = (*at).clone();
        match answer {
            // Its first round has not begun.
            answer if answer.list.is_empty() => reasons.push(Reason::NotReady(at)),
            answer if answer.list != mine => {
                let ours = own.list.addresses.clone();
                reasons.push(Reason::OtherList(at, answer.list.clone(), ours));
            }
            answer if answer.addresses.raft.is_empty() => reasons.push(Reason::NotReady(at)),
            // The members' map would send Raft calls to an address where another node is met.
            answer if answer.addresses.raft != at.to_string() && mine.contains(&answer.addresses.raft) => {
                reasons.push(Reason::OtherEntry(at, answer.addresses.raft.clone()));
            }
            _ => {}
        }
    }
    let Some(me) = me.filter(|_| reasons.is_empty()) else { return Ok(Decision::Wait(reasons)) };

    if let Some((at, answer)) = answers.iter().min_by_key(|(_, answer)| answer.node)
        && answer.node < own.node
    {
        return Ok(Decision::Wait(vec![Reason::Founder((*at).clone(), answer.node)]));
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

fn check_versions(own: &Own, met: &[Met]) -> Result<(), FormationError> {
    let range = |versions: &RangeInclusive<u32>| format!("{} to {}", versions.start(), versions.end());
    for Met { address, answer } in met {
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
    own: &Own,
    me: Option<&HostPort>,
    answers: &[(&HostPort, &Answer)],
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

/// Decides when peers are formed; `None` when none that answered is.
fn formed_elsewhere(own: &Own, answers: &[(&HostPort, &Answer)]) -> Result<Option<Decision>, FormationError> {
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
        // A founding that was accepted and came to nothing binds nobody; all else does.
        if with_us || belonging.founder.is_none() {
            if let Some((address, theirs)) = formed.iter().find(|(_, cluster)| *cluster != ours) {
                return Err(FormationError::Foreign { address: address.clone(), theirs: *theirs, ours });
            }
            return Ok(Some(Decision::Join(belonging)));
        }
    }
    // A node has no say in a cluster whose members don't name its id, so joining the id is safe whoever reports it;
    // it takes most of the list, or a call from a leader for this very id, so that a stray answer can't claim a node.
    let joinable = formed.iter().map(|(_, cluster)| *cluster).find(|cluster| {
        let by = formed.iter().filter(|(_, other)| other == cluster).count();
        2 * by > own.list.masters || (agree && own.called == Some(*cluster))
    });
    Ok(Some(match joinable {
        Some(cluster) => Decision::Join(Belonging { cluster, founder: None }),
        None if agree => {
            Decision::Wait(vec![Reason::Formed(*some, formed.iter().map(|(at, _)| at.clone()).collect())])
        }
        None => Decision::Wait(vec![Reason::SeveralClusters(formed)]),
    }))
}
