//! Every state that a death during formation can leave on the disks, and what the next start makes of it.

use mc_proto::v1::{FoundRequest, Founder};

use super::*;

async fn restart(names: &Names, machines: &[Machine; 3]) -> ([Process; 3], Vec<Formed>) {
    let mut processes = [
        machines[0].start(names, "a,b,c").await,
        machines[1].start(names, "a,b,c").await,
        machines[2].start(names, "a,b,c").await,
    ];
    let mut formed = Vec::new();
    for process in &mut processes {
        formed.push(process.formed().await.unwrap());
    }
    (processes, formed)
}

fn smallest(machines: &[Machine; 3]) -> NodeId {
    machines.iter().map(|machine| machine.identity().node()).min().unwrap()
}

#[tokio::test]
async fn a_founding_that_stopped_before_raft_wrote_is_done_anew() {
    // Masters that had recorded the founding: the founder alone; the founder and one more; all of them.
    for recorded in 1..=3 {
        let names = Names::default();
        let mut machines = ["a", "b", "c"].map(Machine::new);
        machines.sort_by_key(|machine| machine.identity().node());
        let founder = smallest(&machines);
        for machine in &machines[..recorded] {
            machine.belong(6, Some(founder));
        }
        let (_processes, formed) = restart(&names, &machines).await;
        let ids: Vec<ClusterId> = formed.iter().map(Formed::cluster).collect();
        assert!(ids.iter().all(|id| *id == ids[0] && *id != ClusterId(6)), "{recorded}: {ids:?}");
        assert!(matches!(formed[0], Formed::Founder { .. }), "{formed:?}");
    }
}

#[tokio::test]
async fn a_founder_that_died_after_raft_wrote_goes_on_and_its_members_wait_for_it() {
    let names = Names::default();
    let machines = ["a", "b", "c"].map(Machine::new);
    let founder = machines[0].identity().node();
    for machine in &machines {
        machine.belong(6, Some(founder));
    }
    machines[0].identity().record_formed().unwrap();

    let mut b = machines[1].start(&names, "a,b,c").await;
    let mut c = machines[2].start(&names, "a,b,c").await;
    b.waits("a:50055 does not answer").await;
    c.waits("a:50055 does not answer").await;
    let mut a = machines[0].start(&names, "a,b,c").await;
    assert_eq!(a.formed().await.unwrap(), Formed::Restarted(ClusterId(6)));
    assert_eq!(b.formed().await.unwrap(), Formed::Member(ClusterId(6)));
    assert_eq!(c.formed().await.unwrap(), Formed::Member(ClusterId(6)));
}

#[tokio::test]
async fn members_that_accepted_follow_the_first_raft_call_of_their_cluster() {
    let names = Names::default();
    let b = Machine::new("b");
    b.belong(6, Some(NodeId(1)));
    let mut on_b = b.start(&names, "a,b,c").await;
    on_b.waits("a:50055 does not answer").await;
    network::call_until_admitted(&names, "b:50055", ClusterId(6), on_b.service.node()).await;
    assert_eq!(on_b.formed().await.unwrap(), Formed::Member(ClusterId(6)));
}

#[tokio::test]
async fn a_founder_that_was_wiped_before_raft_wrote_leaves_nobody_bound() {
    let names = Names::default();
    let machines = ["a", "b", "c"].map(Machine::new);
    for machine in &machines[1..] {
        machine.belong(6, Some(NodeId(1)));
    }
    let (_processes, formed) = restart(&names, &machines).await;
    assert!(formed.iter().all(|it| it.cluster() == formed[0].cluster() && it.cluster() != ClusterId(6)));
}

#[tokio::test]
async fn a_member_with_a_vote_on_disk_keeps_a_wiped_founder_from_founding_again() {
    let names = Names::default();
    let machines = ["a", "b", "c"].map(Machine::new);
    machines[1].belong(6, Some(NodeId(1)));
    machines[1].identity().record_formed().unwrap();
    machines[2].belong(6, Some(NodeId(1)));
    let mut a = machines[0].start(&names, "a,b,c").await;
    let mut b = machines[1].start(&names, "a,b,c").await;
    let mut c = machines[2].start(&names, "a,b,c").await;
    assert_eq!(b.formed().await.unwrap(), Formed::Restarted(ClusterId(6)));
    assert_eq!(c.formed().await.unwrap(), Formed::Member(ClusterId(6)));
    a.waits("is already formed by b:50055").await;
}

#[tokio::test]
async fn a_node_that_lost_a_part_of_its_data_does_not_start() {
    let names = Names::default();
    let a = Machine::new("a");
    a.belong(6, Some(NodeId(1)));
    a.identity().record_formed().unwrap();
    let start = |has_state| Process::start("a", a.identity(), has_state, &names, Plan::Restart, None);
    let said = start(false).await.formed().await.unwrap_err().to_string();
    assert!(said.contains("its Raft log is gone"), "{said}");

    std::fs::remove_file(a.dir.path().join("identity")).unwrap();
    let start = |has_state| Process::start("a", a.identity(), has_state, &names, Plan::Restart, None);
    let said = start(true).await.formed().await.unwrap_err().to_string();
    assert!(said.contains("its identity file names no cluster"), "{said}");
}

#[tokio::test]
async fn a_newcomer_that_restarts_empty_waits_for_its_cluster_even_beside_empty_peers() {
    let names = Names::default();
    let machines = ["a", "b", "c"].map(Machine::new);
    machines[0].belong(6, None);
    let mut a = machines[0].start(&names, "a,b,c").await;
    let mut others = [machines[1].start(&names, "a,b,c").await, machines[2].start(&names, "a,b,c").await];
    a.waits("and none of its masters answers").await;
    let founder = usize::from(others[0].service.node() > others[1].service.node());
    if others[founder].service.node() < a.service.node() {
        others[founder].waits("a:50055 did not take part: this node waits to be taken in by cluster").await;
    } else {
        others[founder].waits("a:50055 (node").await;
    }
}

fn request(cluster: u128, to: NodeId, replaces: Option<u128>) -> FoundRequest {
    let bytes = |id: NodeId| id.to_bytes().to_vec().into();
    FoundRequest {
        cluster_id: ClusterId(cluster).to_bytes().to_vec().into(),
        from: bytes(NodeId(1)),
        to: bytes(to),
        members: [NodeId(1), to].map(|id| Founder { node_id: bytes(id), addresses: None }).into(),
        replaces: replaces.map(|id| ClusterId(id).to_bytes().to_vec().into()).unwrap_or_default(),
    }
}

/// A late call that a later founding has overtaken changes nothing; otherwise two clusters could form.
#[tokio::test]
async fn a_founding_that_arrives_late_does_not_undo_a_later_one() {
    let a = Machine::new("a");
    let service = FormationService::new(a.identity(), false, None);
    let to = service.node();
    let late = request(6, to, None);
    assert!(service.found(request(7, to, None)).await.unwrap().accepted);
    let reply = service.found(late).await.unwrap();
    assert!(!reply.accepted && reply.reason.contains("accepted another founding since"), "{reply:?}");
    assert!(service.found(request(8, to, Some(7))).await.unwrap().accepted, "one that has seen it may");
    drop(service);
    assert_eq!(a.identity().belonging().unwrap().cluster, ClusterId(8), "an acceptance is on disk");
}

#[tokio::test]
async fn a_node_never_binds_to_one_founding_and_accepts_another() {
    for _ in 0..50 {
        let a = Machine::new("a");
        let service = Arc::new(FormationService::new(a.identity(), false, None));
        let to = service.node();
        assert!(service.found(request(6, to, None)).await.unwrap().accepted);
        let first = Belonging { cluster: ClusterId(6), founder: Some(NodeId(1)) };
        let (bound, accepted) = tokio::join!(
            tokio::spawn({
                let service = Arc::clone(&service);
                async move { service.bind(Some(first), first).await.unwrap() }
            }),
            tokio::spawn({
                let service = Arc::clone(&service);
                async move { service.found(request(7, to, Some(6))).await.unwrap().accepted }
            }),
        );
        let (bound, accepted) = (bound.unwrap(), accepted.unwrap());
        assert!(bound != accepted, "bound to 6: {bound}, accepted 7: {accepted}");
        drop(service);
        let expected = if bound { 6 } else { 7 };
        assert_eq!(a.identity().belonging().unwrap().cluster, ClusterId(expected));
    }
}

#[tokio::test]
async fn a_request_that_is_no_request_is_refused_without_harm() {
    let a = Machine::new("a");
    let service = FormationService::new(a.identity(), false, None);
    for broken in [
        FoundRequest::default(),
        FoundRequest { replaces: vec![1, 2].into(), ..request(6, service.node(), None) },
        FoundRequest { to: vec![].into(), ..request(6, service.node(), None) },
    ] {
        assert_eq!(service.found(broken).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    drop(service);
    assert_eq!(a.identity().belonging(), None);
}
