use std::collections::BTreeMap;

use mc_proto::v1::MeetRequest;

use super::*;
use crate::formation::meet;

/// View of a follower's Raft while the cluster has a leader.
fn view(members: &BTreeMap<NodeId, MasterNode>) -> impl Fn() -> ClusterView + Send {
    let members = members.clone();
    move || ClusterView { members: members.clone(), led: true }
}

fn recorded(processes: &[Process; 3]) -> BTreeMap<NodeId, MasterNode> {
    processes.iter().map(|it| (it.service.node(), it.service.addresses().unwrap())).collect()
}

async fn believes(book: &AddressBook, node: NodeId, raft: &str) {
    while book.get(node).is_none_or(|addresses| addresses.raft != raft) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_master_that_has_moved_is_reached_at_its_new_address() {
    let names = Names::default();
    let ([on_a, on_b, on_c], processes, _) = three_formed(&names).await;
    let members = recorded(&processes);
    let [a, b, c] = processes;
    a.kill().await;
    let mut moved = Machine { name: "d", dir: on_a.dir }.start(&names, "b,c,d").await;
    moved.formed().await.unwrap();
    assert!(members.contains_key(&moved.service.node()));

    let books = [AddressBook::default(), AddressBook::default(), AddressBook::default()];
    let [of_moved, of_b, of_c] = &books;
    let learned = async {
        let node = moved.service.node();
        futures::join!(believes(of_b, node, "d:50055"), believes(of_c, node, "d:50055"))
    };
    tokio::select! {
        result = moved.formation.follow(of_moved, view(&members)) => panic!("{result:?}"),
        result = b.formation.follow(of_b, view(&members)) => panic!("{result:?}"),
        result = c.formation.follow(of_c, view(&members)) => panic!("{result:?}"),
        learned = tokio::time::timeout(LONG, learned) => { learned.unwrap(); }
    }
    drop((on_b, on_c));
}

#[tokio::test]
async fn what_a_claim_says_is_believed_only_where_the_member_itself_answers() {
    let names = Names::default();
    let (machines, processes, cluster) = three_formed(&names).await;
    let members = recorded(&processes);
    let [a, b, c] = processes;
    let claim = |node: NodeId, raft: &str| MeetRequest {
        node_id: meet::bytes(&node.to_bytes()),
        cluster_id: meet::bytes(&cluster.to_bytes()),
        formed: true,
        addresses: Some(meet::to_wire(&MasterNode { raft: raft.into(), ..MasterNode::default() })),
        ..MeetRequest::default()
    };
    let book = AddressBook::default();
    // False claims: nobody is at the address, another member is there, or the node is no member.
    for (node, raft) in
        [(a.service.node(), "nowhere:1"), (a.service.node(), "c:50055"), (NodeId(5), "c:50055")]
    {
        b.service.meet(claim(node, raft)).await.unwrap();
        let followed = tokio::time::timeout(SHORT, b.formation.follow(&book, view(&members))).await;
        assert!(followed.is_err(), "it goes on");
        assert_eq!(book.get(node), None, "{raft}");
    }
    drop((machines, c));
}

#[tokio::test]
async fn a_copy_of_a_member_s_data_directory_is_not_the_member_that_moved() {
    let names = Names::default();
    let (machines, processes, _) = three_formed(&names).await;
    let members = recorded(&processes);
    let [a, b, c] = processes;
    let copy = Machine::new("d");
    std::fs::copy(machines[0].dir.path().join("identity"), copy.dir.path().join("identity")).unwrap();
    let mut on_d = copy.start(&names, "b,c,d").await;
    on_d.formed().await.unwrap();

    let (of_copy, of_b) = (AddressBook::default(), AddressBook::default());
    let both = async {
        tokio::select! {
            result = on_d.formation.follow(&of_copy, view(&members)) => panic!("{result:?}"),
            result = b.formation.follow(&of_b, view(&members)) => panic!("{result:?}"),
        }
    };
    assert!(tokio::time::timeout(SHORT, both).await.is_err());
    assert_eq!(of_b.get(a.service.node()), None);
    drop(c);
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_after_the_start_ends_no_member() {
    let names = Names::default();
    let (machines, processes, _) = three_formed(&names).await;
    let [a, b, c] = processes;
    a.kill().await;
    let mut a = machines[0].start(&names, "a,b,c").await;
    a.formed().await.unwrap();
    // Its own name leads nowhere at its first look, and to another master afterwards.
    names.remove("a");
    let book = AddressBook::default();
    let gone_wrong = async {
        tokio::time::sleep(SHORT).await;
        names.alias("a", "b");
        // Nobody leads, so it calls its list again, which does not contain it any more.
        tokio::time::sleep(4 * SHORT).await;
    };
    tokio::select! {
        result = a.formation.follow(&book, ClusterView::default) => panic!("{result:?}"),
        () = gone_wrong => {}
    }
    drop((machines, b, c));
}

#[tokio::test]
async fn a_master_without_a_list_goes_on() {
    let names = Names::default();
    let machine = Machine::new("a");
    let mut alone = machine.start_with(&names, Plan::Single, None).await;
    alone.formed().await.unwrap();
    let book = AddressBook::default();
    let followed = tokio::time::timeout(SHORT, alone.formation.follow(&book, ClusterView::default)).await;
    assert!(followed.is_err(), "{followed:?}");
    let me = alone.service.node();
    assert_eq!(book.get(me), alone.service.addresses(), "and knows where it is itself");
}
