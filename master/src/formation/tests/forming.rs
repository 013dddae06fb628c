use super::*;

#[tokio::test]
async fn three_masters_form_one_cluster_in_any_start_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let names = Names::default();
        let machines = ["a", "b", "c"].map(Machine::new);
        let lists = ["a,b,c", "c:50055,b,a", "b,a,c"];
        let mut running: Vec<Process> = Vec::new();
        for (step, machine) in order.into_iter().enumerate() {
            running.push(machines[machine].start(&names, lists[machine]).await);
            // Every running master says that it waits for the missing ones.
            for missing in &order[step + 1..] {
                let name = machines[*missing].name;
                for process in &mut running {
                    process.waits(&format!("{name}:50055 does not answer (nobody listens there)")).await;
                }
            }
        }
        let smallest = running.iter().map(|process| process.service.node()).min().unwrap();
        let mut ids = Vec::new();
        for process in &mut running {
            let formed = process.formed().await.unwrap();
            ids.push(formed.cluster());
            match formed {
                Formed::Founder { members, .. } => {
                    assert_eq!(process.service.node(), smallest);
                    let raft: Vec<&str> = members.values().map(|node| node.raft.as_str()).collect();
                    assert_eq!(members.len(), 3);
                    assert!(["a:50055", "b:50055", "c:50055"].iter().all(|at| raft.contains(at)), "{raft:?}");
                    assert!(members.values().any(|node| node.client == "b:50051" && node.http == "b:9003"));
                }
                Formed::Member(_) => assert_ne!(process.service.node(), smallest),
                other => panic!("{other:?}"),
            }
            assert_eq!(process.service.waiting(), None);
        }
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        for machine in &machines {
            assert_eq!(machine.identity_after_kill(&mut running).await, Some(ids[0]), "it is on disk");
        }
    }
}

impl Machine {
    async fn identity_after_kill(&self, running: &mut Vec<Process>) -> Option<ClusterId> {
        let place = running.iter().position(|process| process.name == self.name).unwrap();
        running.remove(place).kill().await;
        self.identity().belonging().map(|belonging| belonging.cluster)
    }
}

#[tokio::test]
async fn masters_whose_lists_differ_wait_and_show_both() {
    let names = Names::default();
    let (a, b) = (Machine::new("a"), Machine::new("b"));
    let mut on_a = a.start(&names, "a,b").await;
    let mut on_b = b.start(&names, "a,b,c").await;
    on_a.waits("b:50055 lists other masters (a:50055, b:50055, c:50055; this one lists a:50055, b:50055)")
        .await;
    on_b.waits("c:50055 does not answer").await;
    on_b.waits("a:50055 lists other masters (a:50055, b:50055; this one lists a:50055, b:50055, c:50055)")
        .await;
}

#[tokio::test]
async fn a_name_with_several_records_forms_with_the_cluster_size_and_not_before_all_are_there() {
    let names = Names::default();
    let plan = |size| Plan::Peers(PeerList::parse(&["mc"], size).unwrap());
    names.set_records("mc", &["127.0.0.2", "127.0.0.3"]);
    let machines = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(Machine::new);

    let mut unsized_ = machines[0].start_with(&names, plan(None), None).await;
    let said = unsized_.formed().await.unwrap_err().to_string();
    assert!(said.contains("mc:50055 has 2 records") && said.contains("--cluster-size"), "{said}");
    unsized_.kill().await;

    let mut running = Vec::new();
    for machine in &machines {
        running.push(machine.start_with(&names, plan(Some(3)), None).await);
    }
    for process in &mut running {
        process.waits("--cluster-size is 3 and the list has 2 masters now").await;
    }
    names.set_records("mc", &["127.0.0.4", "127.0.0.3", "127.0.0.2"]);
    let mut ids = Vec::new();
    for process in &mut running {
        ids.push(process.formed().await.unwrap().cluster());
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

/// Three masters under one name with A and AAAA records: only IPv4 is routable, only IPv6, or both.
#[tokio::test]
async fn a_name_with_records_of_both_families_forms_when_one_of_them_is_routable() {
    const V4: [&str; 3] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    const V6: [&str; 3] = ["::2", "::3", "::4"];
    for (v4, v6) in [(true, false), (false, true), (true, true)] {
        let names = Names::default();
        names.set_records("mc", &[V4, V6].concat());
        let (main, other) = if v4 { (V4, V6) } else { (V6, V4) };
        let machines = main.map(Machine::new);
        let mut running = Vec::new();
        for (place, machine) in machines.iter().enumerate() {
            let plan = Plan::Peers(PeerList::parse(&["mc"], Some(3)).unwrap());
            running.push(machine.start_with(&names, plan, None).await);
            if v4 && v6 {
                names.alias(other[place], main[place]);
            }
        }
        let mut ids = Vec::new();
        for process in &mut running {
            let formed = process.formed().await.unwrap();
            if let Formed::Founder { members, .. } = &formed {
                let mut raft: Vec<&str> = members.values().map(|node| node.raft.as_str()).collect();
                raft.sort_unstable();
                let expected = if v4 {
                    ["127.0.0.2:50055", "127.0.0.3:50055", "127.0.0.4:50055"]
                } else {
                    ["[::2]:50055", "[::3]:50055", "[::4]:50055"]
                };
                assert_eq!(raft, expected, "v4 {v4}, v6 {v6}");
            }
            ids.push(formed.cluster());
        }
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

#[tokio::test]
async fn a_node_that_is_in_its_list_twice_or_not_at_all_says_so() {
    let names = Names::default();
    let (a, b) = (Machine::new("a"), Machine::new("b"));
    let mut on_b = b.start(&names, "b,c").await;
    on_b.waits("c:50055 does not answer").await;
    names.alias("c", "b");
    let said = on_b.formed().await.unwrap_err().to_string();
    assert_eq!(said, "--peers names this master twice: b:50055 and c:50055 are the same process");
    let mut on_a = a.start(&names, "b").await;
    let said = on_a.formed().await.unwrap_err().to_string();
    assert!(said.starts_with("--peers (b:50055) does not name this master"), "{said}");
}

#[tokio::test]
async fn advertise_names_the_addresses_that_others_are_told() {
    let names = Names::default();
    let a = Machine::new("a");
    let plan = Plan::Peers(PeerList::parse(&["a"], None).unwrap());
    let mut on_a = a.start_with(&names, plan, Some("a.example")).await;
    let Formed::Founder { members, .. } = on_a.formed().await.unwrap() else { panic!("it is alone") };
    let node = &members[&on_a.service.node()];
    assert_eq!((node.raft.as_str(), node.client.as_str()), ("a.example:50055", "a.example:50051"));
}

#[tokio::test]
async fn a_single_master_forms_at_once_and_neither_flag_is_an_error_only_without_data() {
    let names = Names::default();
    let a = Machine::new("a");
    let mut none = a.start_with(&names, Plan::Restart, None).await;
    let said = none.formed().await.unwrap_err().to_string();
    assert!(said.contains("--peers") && said.contains("--single"), "{said}");
    none.kill().await;

    let mut single = a.start_with(&names, Plan::Single, None).await;
    let Formed::Founder { cluster, members } = single.formed().await.unwrap() else { panic!("it is alone") };
    assert_eq!(members[&single.service.node()].client, "127.0.0.1:50051");
    single.kill().await;
    let mut again = a.start_with(&names, Plan::Restart, None).await;
    assert_eq!(again.formed().await.unwrap(), Formed::Restarted(cluster));
}

#[tokio::test]
async fn a_wiped_master_is_new_and_joins_without_a_say() {
    let names = Names::default();
    let (mut machines, processes, cluster) = three_formed(&names).await;
    let [a, b, c] = processes;
    let old = a.service.node();
    a.kill().await;
    machines[0].wipe();
    let mut new = machines[0].start(&names, "a,b,c").await;
    assert_eq!(new.formed().await.unwrap(), Formed::Newcomer(cluster));
    assert_ne!(new.service.node(), old);
    assert!(!new.service.has_state(), "a leader that looks finds an empty node");
    // A vote or an append that was meant for the node that lived here is refused before Raft sees it.
    let refused = new.service.admit(cluster, old).unwrap_err();
    assert!(refused.message().contains("the call is for node"), "{refused:?}");
    drop((b, c));
}

#[tokio::test]
async fn a_wiped_master_waits_while_the_leader_is_gone() {
    let names = Names::default();
    let (mut machines, processes, cluster) = three_formed(&names).await;
    let [a, b, c] = processes;
    a.kill().await;
    c.kill().await;
    machines[0].wipe();
    let mut new = machines[0].start(&names, "a,b,c").await;
    new.waits(&format!("cluster {cluster} is already formed by b:50055")).await;
    // A call for the old id, and one for the new id of an unknown cluster: neither is answered.
    assert!(new.service.admit(cluster, b.service.node()).is_err());
    assert!(new.service.admit(ClusterId(1), new.service.node()).is_err());
    new.waits("this node is new and waits to be taken in").await;
    // The cluster's leader takes it in: it calls the new id.
    network::call_until_admitted(&names, "a:50055", cluster, new.service.node()).await;
    assert_eq!(new.formed().await.unwrap(), Formed::Newcomer(cluster));
}

#[tokio::test]
async fn two_wiped_of_three_never_form_an_empty_cluster() {
    let names = Names::default();
    let (mut machines, processes, cluster) = three_formed(&names).await;
    for process in processes {
        process.kill().await;
    }
    machines[0].wipe();
    machines[1].wipe();
    let mut a = machines[0].start(&names, "a,b,c").await;
    let mut b = machines[1].start(&names, "a,b,c").await;
    a.waits("c:50055 does not answer").await;
    b.waits("c:50055 does not answer").await;
    let mut c = machines[2].start(&names, "a,b,c").await;
    assert_eq!(c.formed().await.unwrap(), Formed::Restarted(cluster));
    a.waits(&format!("cluster {cluster} is already formed by c:50055")).await;
    b.waits(&format!("cluster {cluster} is already formed by c:50055")).await;
    assert_eq!((a.service.cluster(), b.service.cluster()), (None, None));
}

#[tokio::test]
async fn a_foreign_cluster_at_a_reused_address_is_an_error_that_names_both() {
    let names = Names::default();
    let (machines, processes, ours) = three_formed(&names).await;
    let [a, b, c] = processes;
    b.kill().await;
    // Another cluster's master now has b's name.
    let stranger = Machine::new("b");
    let mut on_b = stranger.start_with(&names, Plan::Single, None).await;
    let theirs = on_b.formed().await.unwrap().cluster();

    let book = AddressBook::default();
    let mut follows = Box::pin(a.formation.follow(&book, ClusterView::default));
    // With our own masters answering, one address was just given to somebody else: no reason to end a member.
    assert!(tokio::time::timeout(SHORT, &mut follows).await.is_err());
    drop(follows);
    c.kill().await;
    // One of ours may be about to start at c.
    let waits = a.formation.follow(&book, ClusterView::default);
    assert!(tokio::time::timeout(SHORT, waits).await.is_err(), "it goes on while an address is silent");
    let other = Machine::new("c");
    let mut on_c = other.start_with(&names, Plan::Single, None).await;
    on_c.formed().await.unwrap();
    let said = a.formation.follow(&book, ClusterView::default).await.unwrap_err().to_string();
    assert!(said.contains(&format!("b:50055 belongs to cluster {theirs}")), "{said}");
    assert!(said.contains(&format!("this one to cluster {ours}")), "{said}");
    // A cluster that was rescued from one master, and the others have started again with what they have.
    let only = a.service.node();
    let alone = || ClusterView { members: [(only, MasterNode::default())].into(), led: true };
    assert!(tokio::time::timeout(SHORT, a.formation.follow(&book, alone)).await.is_err(), "it goes on");
    // The other cluster's calls do no harm.
    let refused = a.service.admit(theirs, a.service.node()).unwrap_err();
    assert!(refused.message().contains(&theirs.to_string()), "{refused:?}");

    // A new node that the cluster took in and that still holds no data.
    on_c.kill().await;
    a.kill().await;
    let new = Machine::new("a");
    new.belong(ours.0, None);
    let mut on_a = new.start(&names, "a,b,c").await;
    let said = on_a.formed().await.unwrap_err().to_string();
    assert!(said.contains(&theirs.to_string()) && said.contains(&ours.to_string()), "{said}");
    drop(machines);
}

#[tokio::test]
async fn a_copied_data_directory_is_an_error() {
    let names = Names::default();
    let (a, b) = (Machine::new("a"), Machine::new("b"));
    drop(a.identity());
    std::fs::copy(a.dir.path().join("identity"), b.dir.path().join("identity")).unwrap();
    let mut on_a = a.start(&names, "a,b").await;
    let _on_b = b.start(&names, "a,b").await;
    let said = on_a.formed().await.unwrap_err().to_string();
    assert!(said.contains("a data directory was copied"), "{said}");
}
