//! Foundings in every order of their messages. Two founders do not know of each other, calls arrive late, nodes die and
//! restart at any step, and a machine is replaced while its old process still runs. Whatever happens, no two clusters
//! get a majority.

use std::net::SocketAddr;

use mc_log::MasterNode;
use mc_types::HostPort;
use proptest::prelude::*;

use super::*;
use crate::config::Entries;
use crate::formation::accept::{Founding, InviteeState, refusal};

const NAMES: [&str; 3] = ["a", "b", "c"];

struct Node {
    slot: usize,
    instance: u128,
    standing: InviteeState,
    round: Round,
}

/// Progress of a node in its round.
enum Round {
    Meeting { was: Option<Belonging>, met: Vec<PeerReply> },
    Asking { cluster: ClusterId, missing: Vec<NodeId>, members: Vec<NodeId> },
    Over,
}

struct World {
    nodes: Vec<Node>,
    /// Which node answers at each address.
    occupants: [usize; 3],
    /// Calls that were sent and may arrive at any later time.
    sent: Vec<Founding>,
    /// Clusters whose founder's Raft has written, and their members.
    initialized: Vec<(ClusterId, Vec<NodeId>)>,
    drawn: u128,
    replaced: bool,
}

fn start() -> Round {
    Round::Meeting { was: None, met: Vec::new() }
}

fn addresses(slot: usize) -> MasterNode {
    MasterNode { raft: format!("{}:50055", NAMES[slot]), ..MasterNode::default() }
}

impl World {
    fn new() -> Self {
        let node = |slot: usize, id: u64| Node {
            slot,
            instance: u128::from(id),
            standing: InviteeState { node: NodeId(id), belonging: None, bound: None, formed: false },
            round: start(),
        };
        Self {
            nodes: vec![node(0, 5), node(1, 7), node(2, 9)],
            occupants: [0, 1, 2],
            sent: Vec::new(),
            initialized: Vec::new(),
            drawn: 100,
            replaced: false,
        }
    }

    fn step(&mut self, action: u8, which: u8) {
        let at = usize::from(which) % self.nodes.len();
        match action {
            0..=5 => self.advance(at),
            6..=9 => self.deliver(usize::from(which)),
            10 => self.nodes[at].round = start(),
            11 | 12 => self.follow(at),
            13 | 14 => self.write(at),
            15 => self.restart(at),
            _ => self.replace(usize::from(which) % 3, which & 4 == 0),
        }
    }

    fn advance(&mut self, at: usize) {
        let bound = self.nodes[at].standing.bound.is_some();
        match &self.nodes[at].round {
            _ if bound => {}
            Round::Over => self.nodes[at].round = start(),
            Round::Meeting { met, .. } if met.len() < 3 => {
                let there = &self.nodes[self.occupants[met.len()]];
                let answer = PeerState {
                    instance: Instance(there.instance),
                    node: there.standing.node,
                    cluster: there.standing.belonging.map(|it| it.cluster),
                    formed: there.standing.formed,
                    list: NAMES.map(|name| format!("{name}:50055")).into(),
                    addresses: addresses(there.slot),
                    versions: 1..=1,
                    software: String::new(),
                    cluster_version_max: 1,
                    tls: None,
                };
                let address = HostPort::parse(NAMES[met.len()], 50055).unwrap();
                let belonging = self.nodes[at].standing.belonging;
                if let Round::Meeting { was, met } = &mut self.nodes[at].round {
                    if met.is_empty() {
                        *was = belonging;
                    }
                    met.push(PeerReply { address, answer: Ok(answer) });
                }
            }
            Round::Meeting { .. } => self.conclude(at),
            Round::Asking { missing, .. } if missing.is_empty() => self.bind(at),
            Round::Asking { .. } => {}
        }
    }

    fn conclude(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Round::Meeting { was, met } = std::mem::replace(&mut node.round, Round::Over) else { return };
        let any = SocketAddr::new([0, 0, 0, 0].into(), 50055);
        let own = OwnState {
            instance: Instance(node.instance),
            node: node.standing.node,
            belonging: was,
            called: None,
            list: Entries {
                addresses: NAMES.map(|name| HostPort::parse(name, 50055).unwrap()).into(),
                masters: 3,
            },
            advertise: Advertise { host: None, bound: BoundAddresses { raft: any, client: any, http: any } },
            versions: 1..=1,
        };
        match decide(&own, &met) {
            Decision::Found { members, invitations } => {
                self.drawn += 1;
                let members: Vec<NodeId> = members.into_keys().collect();
                let call = |to, replaces| Founding {
                    cluster: ClusterId(self.drawn),
                    from: own.node,
                    to,
                    members: members.clone(),
                    replaces,
                };
                let mine = call(own.node, was.map(|it| it.cluster));
                self.sent.extend(invitations.iter().map(|it| call(it.node, it.replaces)));
                if accept(&mut self.nodes[at], &mine) {
                    self.nodes[at].round = Round::Asking {
                        cluster: mine.cluster,
                        missing: invitations.iter().map(|it| it.node).collect(),
                        members,
                    };
                }
            }
            Decision::Join(belonging) if node.standing.belonging == was => {
                node.standing.belonging = Some(belonging);
                node.standing.bound = Some(belonging.cluster);
            }
            _ => {}
        }
    }

    /// Binds the founder when all have accepted, unless it has accepted another founding meanwhile.
    fn bind(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Round::Asking { cluster, .. } = &node.round else { return };
        if node.standing.belonging.map(|it| it.cluster) == Some(*cluster) {
            node.standing.bound = Some(*cluster);
        } else {
            node.round = start();
        }
    }

    /// Delivers a call where its address leads now. The answer reaches the founder if that still waits for it.
    fn deliver(&mut self, which: usize) {
        if self.sent.is_empty() {
            return;
        }
        let call = self.sent.remove(which % self.sent.len());
        let Some(to) = self.occupants.into_iter().find(|at| self.nodes[*at].standing.node == call.to) else {
            return;
        };
        if !accept(&mut self.nodes[to], &call) {
            return;
        }
        for node in &mut self.nodes {
            if let Round::Asking { cluster, missing, .. } = &mut node.round
                && *cluster == call.cluster
            {
                missing.retain(|id| *id != call.to);
            }
        }
    }

    /// Delivers the first Raft call of the cluster that the node has accepted.
    fn follow(&mut self, at: usize) {
        let reachable = self.occupants.contains(&at);
        let standing = &mut self.nodes[at].standing;
        let Some(belonging) = standing.belonging else { return };
        let called = self
            .initialized
            .iter()
            .any(|(cluster, members)| *cluster == belonging.cluster && members.contains(&standing.node));
        if reachable && called && standing.bound.is_none() {
            standing.bound = Some(belonging.cluster);
        }
    }

    /// Lets Raft write: the founder its first entry, a member its vote.
    fn write(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(cluster) = node.standing.bound else { return };
        if let Round::Asking { cluster: founded, members, .. } = &node.round
            && *founded == cluster
            && !node.standing.formed
        {
            self.initialized.push((cluster, members.clone()));
        }
        node.standing.formed = true;
    }

    fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.instance += 1000;
        node.round = start();
        node.standing.bound = node.standing.belonging.filter(|_| node.standing.formed).map(|it| it.cluster);
    }

    /// Replaces the machine at an address by an empty one. The old process still runs but cannot be reached any more.
    fn replace(&mut self, slot: usize, small: bool) {
        if std::mem::replace(&mut self.replaced, true) {
            return;
        }
        let id = NodeId(if small { 4 } else { 8 });
        self.nodes.push(Node {
            slot,
            instance: 77,
            standing: InviteeState { node: id, belonging: None, bound: None, formed: false },
            round: start(),
        });
        self.occupants[slot] = self.nodes.len() - 1;
    }

    /// Returns the clusters in which a majority of the members has written.
    fn with_majority(&self) -> Vec<ClusterId> {
        let has_written = |cluster: ClusterId, id: NodeId| {
            self.nodes.iter().any(|node| {
                node.standing.node == id && node.standing.formed && node.standing.bound == Some(cluster)
            })
        };
        self.initialized
            .iter()
            .filter(|(cluster, members)| {
                2 * members.iter().filter(|id| has_written(*cluster, **id)).count() > members.len()
            })
            .map(|(cluster, _)| *cluster)
            .collect()
    }
}

fn accept(node: &mut Node, call: &Founding) -> bool {
    let accepts = refusal(&node.standing, call).is_none();
    if accepts {
        node.standing.belonging = Some(Belonging { cluster: call.cluster, founder: Some(call.from) });
    }
    accepts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_clusters_get_a_majority(steps in prop::collection::vec((0_u8..17, any::<u8>()), 20..160)) {
        let mut world = World::new();
        for (action, which) in steps {
            world.step(action, which);
            let majorities = world.with_majority();
            prop_assert!(majorities.len() < 2, "{majorities:?}");
        }
    }
}

/// Checks that the schedules can form a cluster at all; otherwise they would prove nothing.
#[test]
fn without_faults_a_cluster_gets_its_majority() {
    let mut world = World::new();
    for _ in 0..5 {
        for node in [0, 1, 2] {
            world.step(0, node);
        }
    }
    for _ in 0..2 {
        world.step(6, 0);
    }
    for (action, node) in [(0, 0), (13, 0), (11, 1), (13, 1)] {
        world.step(action, node);
    }
    assert_eq!(world.with_majority().len(), 1);
}

/// The shortest schedule that would make two clusters if a late founding were accepted over a later one.
#[test]
fn a_replaced_founder_and_its_late_call_do_not_make_a_second_cluster() {
    let mut world = World::new();
    let rounds = |world: &mut World, node: u8, steps: usize| (0..steps).for_each(|_| world.step(0, node));
    // 5 founds; 7 hears it, the call to 9 is late.
    rounds(&mut world, 0, 4);
    world.step(6, 0);
    // a is replaced by 8, and 7 founds with it.
    world.step(16, 3 * 5 + 6);
    assert_eq!(world.nodes[world.occupants[0]].standing.node, NodeId(8));
    rounds(&mut world, 1, 4);
    let late = world.sent.remove(0);
    world.step(6, 0);
    world.step(6, 0);
    for (action, node) in [(0, 1), (13, 1), (11, 3), (13, 3)] {
        world.step(action, node);
    }
    assert_eq!(world.with_majority().len(), 1, "7 and 8");
    // Now the late call reaches 9, which has accepted and has not voted.
    world.sent.push(late);
    world.step(6, 0);
    for (action, node) in [(0, 0), (13, 0), (11, 2), (13, 2)] {
        world.step(action, node);
    }
    assert_eq!(world.with_majority().len(), 1, "5 and 9 made a second one");
}
