use std::net::SocketAddr;

use mc_log::MasterNode;
use mc_types::HostPort;

use super::*;
use crate::config::Entries;

fn at(name: &str) -> HostPort {
    HostPort::parse(name, 50055).unwrap()
}

fn names(list: &[&str]) -> Vec<HostPort> {
    list.iter().map(|name| at(name)).collect()
}

/// Node 1, an empty master that lists a, b and c, and is a.
fn own() -> OwnState {
    let any = |port| SocketAddr::new([0, 0, 0, 0].into(), port);
    OwnState {
        instance: Instance(1),
        node: NodeId(1),
        belonging: None,
        called: None,
        list: Entries { addresses: names(&["a", "b", "c"]), masters: 3 },
        advertise: Advertise {
            host: None,
            bound: BoundAddresses { raft: any(50055), client: any(50051), http: any(9003) },
        },
        versions: 1..=1,
    }
}

fn node(name: &str) -> MasterNode {
    MasterNode {
        raft: format!("{name}:50055"),
        client: format!("{name}:50051"),
        http: format!("{name}:9003"),
    }
}

/// An empty master that shows the same list.
fn empty(id: u64, name: &str) -> PeerState {
    PeerState {
        instance: Instance(id.into()),
        node: NodeId(id),
        cluster: None,
        formed: false,
        list: vec!["a:50055".into(), "b:50055".into(), "c:50055".into()],
        addresses: node(name),
        versions: 1..=1,
        software: "0.1.0".into(),
        cluster_version_max: 1,
        tls: None,
    }
}

fn formed(id: u64, name: &str, cluster: u128) -> PeerState {
    PeerState { cluster: Some(ClusterId(cluster)), formed: true, ..empty(id, name) }
}

fn met(name: &str, answer: PeerState) -> PeerReply {
    PeerReply { address: at(name), answer: Ok(answer) }
}

fn silent(name: &str) -> PeerReply {
    PeerReply { address: at(name), answer: Err("connection refused".into()) }
}

/// A round of this node (at a) with what b and c answered.
fn round(b: PeerReply, c: PeerReply) -> Vec<PeerReply> {
    vec![met("a", PeerState { addresses: MasterNode::default(), ..empty(1, "a") }), b, c]
}

fn waits(decision: &Decision) -> String {
    match decision {
        Decision::Wait(reasons) => reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        other => panic!("does not wait: {other:?}"),
    }
}

fn fatal(decision: Decision) -> String {
    match decision {
        Decision::Fatal(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "one sentence: {text}");
            text
        }
        other => panic!("is not fatal: {other:?}"),
    }
}

fn joins(decision: &Decision, cluster: u128, founder: Option<NodeId>) {
    match decision {
        Decision::Join(belonging) => {
            assert_eq!(*belonging, Belonging { cluster: ClusterId(cluster), founder });
        }
        other => panic!("does not join: {other:?}"),
    }
}

#[test]
fn the_smallest_id_founds_when_all_agree_and_only_it() {
    let decision = decide(&own(), &round(met("b", empty(2, "b")), met("c", empty(3, "c"))));
    let Decision::Found { members, invitations } = decision else { panic!("{decision:?}") };
    assert_eq!(members, [(1, "a"), (2, "b"), (3, "c")].map(|(id, name)| (NodeId(id), node(name))).into());
    let replaces: Vec<_> = invitations.iter().map(|it| (it.node, it.replaces)).collect();
    assert_eq!(replaces, [(NodeId(2), None), (NodeId(3), None)]);

    let decision = decide(&own(), &round(met("b", empty(2, "b")), met("c", empty(0, "c"))));
    assert_eq!(waits(&decision), "c:50055 (node 0000000000000000, the smallest id) forms the cluster");
}

#[test]
fn a_founding_that_came_to_nothing_is_founded_over() {
    let own =
        OwnState { belonging: Some(Belonging { cluster: ClusterId(5), founder: Some(NodeId(1)) }), ..own() };
    let accepted = PeerState { cluster: Some(ClusterId(5)), ..empty(2, "b") };
    let decision = decide(&own, &round(met("b", accepted), met("c", empty(3, "c"))));
    let Decision::Found { invitations, .. } = decision else { panic!("{decision:?}") };
    assert_eq!(invitations[0].replaces, Some(ClusterId(5)));
    assert_eq!(invitations[1].replaces, None);
}

#[test]
fn every_listed_peer_has_to_answer() {
    let decision = decide(&own(), &round(met("b", empty(2, "b")), silent("c")));
    assert_eq!(waits(&decision), "c:50055 does not answer (connection refused)");
}

#[test]
fn lists_that_differ_are_both_shown() {
    let other = PeerState { list: vec!["a:50055".into(), "b:50055".into()], ..empty(2, "b") };
    let decision = decide(&own(), &round(met("b", other), met("c", empty(3, "c"))));
    let expected = "b:50055 lists other masters (a:50055, b:50055; this one lists a:50055, b:50055, c:50055)";
    assert_eq!(waits(&decision), expected);
}

#[test]
fn a_peer_that_does_not_know_its_addresses_is_waited_for() {
    let lost = PeerState { addresses: MasterNode::default(), ..empty(2, "b") };
    let decision = decide(&own(), &round(met("b", lost), met("c", empty(3, "c"))));
    assert_eq!(waits(&decision), "b:50055 has not found itself in its list yet");
    let crossed = PeerState { addresses: node("c"), ..empty(2, "b") };
    let decision = decide(&own(), &round(met("b", crossed), met("c", empty(3, "c"))));
    assert_eq!(waits(&decision), "b:50055 answers as c:50055");
}

#[test]
fn a_formed_peer_keeps_an_empty_node_from_founding_whatever_else_is_there() {
    for c in [met("c", empty(3, "c")), silent("c")] {
        let decision = decide(&own(), &round(met("b", formed(2, "b", 7)), c));
        let said = waits(&decision);
        assert!(said.contains("is already formed by b:50055; this node is new and waits"), "{said}");
    }
}

#[test]
fn an_empty_node_joins_what_most_of_the_list_has_formed() {
    joins(&decide(&own(), &round(met("b", formed(2, "b", 7)), met("c", formed(3, "c", 7)))), 7, None);
    let decision = decide(&own(), &round(met("b", formed(2, "b", 7)), met("c", formed(3, "c", 8))));
    assert!(waits(&decision).contains("b:50055 is of cluster"), "{decision:?}");
}

#[test]
fn a_leader_that_calls_this_very_id_takes_the_node_in() {
    let called = OwnState { called: Some(ClusterId(7)), ..own() };
    joins(&decide(&called, &round(met("b", formed(2, "b", 7)), silent("c"))), 7, None);
    let decision = decide(&called, &round(met("b", formed(2, "b", 8)), silent("c")));
    assert!(waits(&decision).contains("already formed"), "a call of a cluster that nobody listed is of");
    let decision = decide(&called, &round(met("b", formed(2, "b", 7)), met("c", formed(3, "c", 8))));
    assert!(waits(&decision).contains("joins the cluster that most"), "peers that disagree");
}

#[test]
fn a_member_goes_along_with_the_founding_that_it_accepted() {
    let member =
        OwnState { belonging: Some(Belonging { cluster: ClusterId(7), founder: Some(NodeId(2)) }), ..own() };
    joins(&decide(&member, &round(met("b", formed(2, "b", 7)), silent("c"))), 7, Some(NodeId(2)));
    // Another founding was completed instead.
    joins(&decide(&member, &round(met("b", formed(2, "b", 8)), met("c", formed(3, "c", 8)))), 8, None);
    let decision = decide(&member, &round(met("b", formed(2, "b", 8)), silent("c")));
    assert!(waits(&decision).contains("already formed"), "{decision:?}");
}

#[test]
fn a_peer_of_another_cluster_is_an_error_that_names_both() {
    for founder in [None, Some(NodeId(3))] {
        let own = OwnState { belonging: Some(Belonging { cluster: ClusterId(7), founder }), ..own() };
        let said = fatal(decide(&own, &round(met("b", formed(2, "b", 8)), met("c", formed(3, "c", 7)))));
        assert!(said.contains("b:50055 belongs to cluster 00000000000000000000000000000008"), "{said}");
        assert!(said.contains("this one to cluster 00000000000000000000000000000007"), "{said}");
    }
}

#[test]
fn a_node_that_was_taken_in_never_founds() {
    let own = OwnState { belonging: Some(Belonging { cluster: ClusterId(7), founder: None }), ..own() };
    let decision = decide(&own, &round(met("b", empty(2, "b")), met("c", empty(3, "c"))));
    assert!(waits(&decision).contains("and none of its masters answers"), "{decision:?}");
}

#[test]
fn a_node_is_in_its_list_exactly_once() {
    let twice = fatal(decide(&own(), &round(met("b", empty(1, "b")), met("c", empty(3, "c")))));
    assert!(twice.contains("a:50055 and b:50055 are the same process"), "{twice}");

    let stranger = OwnState { instance: Instance(9), node: NodeId(9), ..own() };
    let all = vec![met("a", empty(1, "a")), met("b", empty(2, "b")), met("c", empty(3, "c"))];
    let missing = fatal(decide(&stranger, &all));
    assert!(missing.contains("--peers (a:50055, b:50055, c:50055) does not name this master"), "{missing}");
    let some = vec![met("a", empty(1, "a")), met("b", empty(2, "b")), silent("c")];
    assert!(waits(&decide(&stranger, &some)).contains("c:50055 does not answer"), "c may yet be this node");
}

#[test]
fn advertise_says_which_entry_is_this_node() {
    let mut own = own();
    own.advertise.host = Some("a".into());
    let others = vec![met("b", empty(2, "b")), met("c", empty(3, "c"))];
    assert!(matches!(decide(&own, &others), Decision::Found { .. }), "without meeting itself");
    let twice = vec![met("b", empty(1, "b")), met("c", empty(3, "c"))];
    assert!(fatal(decide(&own, &twice)).contains("a:50055 and b:50055 are the same process"));
}

#[test]
fn two_entries_that_are_one_peer_and_copied_directories_are_errors() {
    let same = fatal(decide(&own(), &round(met("b", empty(2, "b")), met("c", empty(2, "c")))));
    assert!(same.contains("b:50055 and c:50055 are the same process"), "{same}");
    let copy = PeerState { instance: Instance(8), ..empty(2, "c") };
    let copied = fatal(decide(&own(), &round(met("b", empty(2, "b")), met("c", copy))));
    assert!(copied.contains("both have node id 0000000000000002"), "{copied}");
    let mine = PeerState { instance: Instance(8), ..empty(1, "c") };
    let copied = fatal(decide(&own(), &round(met("b", empty(2, "b")), met("c", mine))));
    assert!(copied.contains("a:50055 and c:50055 both have node id 0000000000000001"), "{copied}");
}

#[test]
fn versions_without_overlap_are_an_error_that_names_both() {
    for versions in [2..=3, 0..=0] {
        let newer = PeerState { versions: versions.clone(), software: "9.9".into(), ..empty(2, "b") };
        let said = fatal(decide(&own(), &round(met("b", newer), silent("c"))));
        let theirs = format!("(9.9) speaks protocol versions {} to {}", versions.start(), versions.end());
        assert!(said.contains(&theirs) && said.contains("speaks 1 to 1"), "{said}");
    }
}
