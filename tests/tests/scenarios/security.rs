//! Who gets in, and what they may do there: a pool whose processes have certificates.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_client::{Bytes, Client, Outcome};
use mc_console::certificates::{Authority, IssueOptions};
use mc_net::{ChannelOptions, Network, TcpNetwork};
use mc_process::http;
use mc_proto::v1::{self, raft_client::RaftClient};
use mc_tests::by_hand::{ByHand, SIZE};
use mc_tests::{
    Certificates, Cluster, Workload, by_hand, checker, http_get, mcctl, mcctl_as, network_of, until,
};
use mc_transfer::{Seal, TcpOptions, TcpTransport};
use mc_types::Code;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn pool() -> Cluster {
    Cluster::builder().stores(2).tls().start().await
}

fn certificates(cluster: &Cluster) -> &Certificates {
    cluster.certificates().expect("a pool with certificates")
}

/// Connects a client of some network that may be refused everything.
async fn client_over(cluster: &Cluster, network: Arc<dyn Network>, tenant: &str) -> Client {
    cluster.client_builder().network(network).tenant(tenant).connect().await.expect("settings of a client")
}

/// Connects a user of a tenant, who does not name it.
async fn user(cluster: &Cluster, identity: &str) -> Client {
    let client = client_over(cluster, certificates(cluster).network(identity), "").await;
    assert!(client.connected(Duration::from_secs(60)).await, "{identity} found no leader");
    client
}

/// The code of a call that was refused for good, and the reason.
fn refused<T: std::fmt::Debug>(called: Result<T, mc_client::Error>) -> (Code, String) {
    let error = called.expect_err("it is refused");
    assert_eq!(error.outcome, Outcome::Definite, "{error}");
    (error.code, error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_user_reaches_the_objects_of_its_tenant_and_no_others() {
    let cluster = pool().await;
    let (ours, theirs) = (user(&cluster, "tenant/a/rw/w").await, user(&cluster, "tenant/b/rw/w").await);
    let reader = user(&cluster, "tenant/a/ro/r").await;
    let value = Bytes::from(vec![7; 3_000_000]);
    ours.put("k", &value).await.unwrap();
    assert_eq!(ours.get("k").await.unwrap(), Some(value.clone()));
    assert_eq!(reader.get("k").await.unwrap(), Some(value.clone()));
    assert_eq!(theirs.get("k").await.unwrap(), None, "the key of another tenant is another key");
    // By name, too.
    let by_name = client_over(&cluster, certificates(&cluster).network("tenant/b/rw/w"), "a").await;
    for called in [
        by_name.get("k").await.map(drop),
        by_name.put("k", &value).await.map(drop),
        by_name.remove("k", true).await.map(drop),
    ] {
        let (code, why) = refused(called);
        assert!(code == Code::PermissionDenied && why.contains("tenant"), "{why}");
    }
    let (code, why) = refused(reader.put("k2", &value).await);
    assert!(code == Code::PermissionDenied && why.contains("tenant/a/ro/r"), "{why}");
    assert_eq!(refused(reader.remove("k", true).await).0, Code::PermissionDenied);
    // An admin names any tenant.
    let admin = client_over(&cluster, certificates(&cluster).network("admin/root"), "a").await;
    assert!(admin.connected(Duration::from_secs(60)).await);
    assert_eq!(admin.get("k").await.unwrap(), Some(value.clone()));
    // A tenant's user can't change the pool.
    for command in [&["config", "set", "read-lease", "20s"][..], &["members", "list"], &["tenants", "list"]] {
        let (code, said) = mcctl_as(&cluster, &certificates(&cluster).of("tenant/a/rw/w"), command).await;
        assert!(code != 0 && said.contains("PERMISSION_DENIED"), "{command:?}: {said}");
    }
    assert_eq!(mcctl(&cluster, &["members", "list"]).await.0, 0);
    assert_eq!(ours.get("k").await.unwrap(), Some(value));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_certificate_of_the_pool_reads_or_changes_anything() {
    let cluster = pool().await;
    let certificates = certificates(&cluster);
    let owner = user(&cluster, "tenant/a/rw/w").await;
    owner.put("k", &Bytes::from_static(b"secret")).await.unwrap();
    // In the clear, and with TLS but without a certificate.
    let anonymous = cluster.dir().join("anonymous");
    std::fs::create_dir(&anonymous).unwrap();
    std::fs::write(anonymous.join("ca.crt"), certificates.authority().cert_pem()).unwrap();
    for network in [TcpNetwork::shared(), network_of(&anonymous)] {
        let client = client_over(&cluster, network, "a").await;
        assert!(client.connected(Duration::from_secs(60)).await, "anybody may ask who leads");
        for called in [
            client.get("k").await.map(drop),
            client.put("k2", &Bytes::from_static(b"x")).await.map(drop),
            client.remove("k", true).await.map(drop),
        ] {
            let (code, why) = refused(called);
            assert!(code == Code::Unauthenticated && why.contains("--tls-dir"), "{why}");
        }
    }
    // With certificates that are not good: none of these finds a leader, and each is told why.
    let others = Authority::generate("test", 30).unwrap();
    let now = SystemTime::now();
    let valid = |from: SystemTime, to: SystemTime| IssueOptions {
        not_before: from,
        not_after: to,
        ..IssueOptions::days(1)
    };
    let folder = cluster.dir().join("bad");
    let ours = certificates.authority();
    for (name, authority, options) in [
        ("another authority", &others, IssueOptions::days(1)),
        ("expired", ours, valid(now - 2 * DAY, now - DAY)),
        ("not yet valid", ours, valid(now + DAY, now + 2 * DAY)),
    ] {
        certificates.write(&folder, authority, "spiffe://test/mc/tenant/a/rw/w", options);
        let client = client_over(&cluster, network_of(&folder), "").await;
        assert!(!client.connected(Duration::from_secs(2)).await, "{name}");
    }
    assert_eq!(owner.get("k").await.unwrap().as_deref(), Some(&b"secret"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_is_good_for_its_role_alone() {
    let cluster = pool().await;
    let certificates = certificates(&cluster);
    let leader = cluster.leader().await;
    let refused = |status: tonic::Status| {
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
    };
    let status = cluster.status(leader).await.expect("the leader answers");
    let first = status
        .stores
        .iter()
        .find(|store| store.name.starts_with("store-1-"))
        .expect("it has the name in its certificate");
    // Only the store itself and an admin may unmount its memory.
    for identity in ["tenant/a/rw/w", "store/store-2", "master/master-1"] {
        let network = certificates.network(identity);
        let mut master = by_hand::master_over(network.as_ref(), cluster.master_address(leader));
        let caller = Some(by_hand::greeted(&mut master).await);
        let (store_id, epoch) = (first.store_id.clone(), first.epoch.clone());
        let gone = v1::UnmountStoreRequest { caller, store_id, epoch };
        refused(master.unmount_store(gone).await.unwrap_err());
    }
    // Anything but a master on the Raft port.
    for identity in ["tenant/a/rw/w", "store/store-1", "admin/root"] {
        let channel =
            certificates.network(identity).channel(cluster.master_raft(leader), ChannelOptions::default());
        let mut raft = RaftClient::new(channel.unwrap());
        refused(raft.vote(v1::VoteRequest::default()).await.unwrap_err());
        refused(raft.meet(v1::MeetRequest::default()).await.unwrap_err());
    }
    let mut plain =
        RaftClient::new(TcpNetwork.channel(cluster.master_raft(leader), ChannelOptions::default()).unwrap());
    let status = plain.vote(v1::VoteRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_everybody_sees_that_a_process_lives_and_only_an_admin_more() {
    let cluster = pool().await;
    for address in [cluster.master_http(0), cluster.store_http(0)] {
        for open in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(http_get(address, open).await.unwrap().0, 200, "{open}");
        }
        assert_eq!(http_get(address, "/status").await.unwrap().0, 403);
    }
    let (code, why) = http::request("DELETE", cluster.store_http(0), "/segments/0").await.unwrap();
    assert!(code == 403 && why.contains("TLS"), "{code}: {why}");
    assert_eq!(http::request("PUT", cluster.store_http(0), "/masters?list=a:1").await.unwrap().0, 403);
    assert_eq!(http_get(cluster.master_http(0), "/metadata?key=k").await.unwrap().0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_are_taken_while_a_pool_is_used() {
    let cluster = pool().await;
    let certificates = certificates(&cluster);
    let client = user(&cluster, "tenant/a/rw/w").await;
    let value = Bytes::from(vec![3; 100_000]);
    client.put("k", &value).await.unwrap();
    let load = Workload::new(13).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    load.acknowledged(20).await;
    // Another authority, which everybody trusts before it issues anything.
    let next = Authority::generate("test", 30).unwrap();
    let both = format!("{}{}", certificates.authority().cert_pem(), next.cert_pem());
    let processes: Vec<String> = (1..=3)
        .map(|n| format!("master/master-{n}"))
        .chain((1..=2).map(|n| format!("store/store-{n}")))
        .collect();
    let replace = |folder: &Path, name: &str, text: &str| {
        let fresh = folder.join("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, folder.join(name)).unwrap();
    };
    for process in processes.iter().map(String::as_str).chain(["admin/test", "tenant/a/rw/w"]) {
        replace(&certificates.of(process), "ca.crt", &both);
    }
    let reloaded = |times: usize| {
        let cluster = &cluster;
        async move {
            until(format!("each process has new certificates {times} times"), async || {
                cluster
                    .masters
                    .iter()
                    .chain(&cluster.stores)
                    .all(|process| process.output().matches("new certificates are used").count() >= times)
            })
            .await;
        }
    };
    reloaded(1).await;
    for process in &processes {
        let folder = certificates.of(process);
        let issued = next
            .issue(&format!("spiffe://test/mc/{process}").parse().unwrap(), IssueOptions::days(1))
            .unwrap();
        replace(&folder, "tls.key", &issued.key_pem);
        replace(&folder, "tls.crt", &issued.chain_pem);
    }
    reloaded(2).await;
    load.acknowledged(20).await;
    assert_eq!(client.get("k").await.unwrap(), Some(value.clone()), "connections that are open go on");
    // A client that trusts the old authority alone is told that it knows nobody here.
    let folder = cluster.dir().join("late");
    certificates.write(
        &folder,
        certificates.authority(),
        "spiffe://test/mc/tenant/a/rw/late",
        IssueOptions::days(1),
    );
    let late = client_over(&cluster, network_of(&folder), "").await;
    assert!(!late.connected(Duration::from_secs(2)).await);
    replace(&folder, "ca.crt", &both);
    let late = client_over(&cluster, network_of(&folder), "").await;
    assert!(late.connected(Duration::from_secs(60)).await);
    assert_eq!(late.get("k").await.unwrap(), Some(value));
    let (errors, history) = (load.errors(), load.stop().await);
    let failed = [checker::Outcome::Failed, checker::Outcome::Unknown].map(|how| history.outcomes(how));
    assert_eq!(failed, [0, 0], "{errors:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_let_go_when_they_are_old_and_nobody_notices() {
    // At 1 s, five of these tests side by side on two cores were without a leader for a moment: each client shakes hands all the time.
    let age = ["--connection-age", "2s"];
    let cluster = Cluster::builder().stores(2).tls().master_args(age).store_args(age).start().await;
    let load = Workload::new(14).pace(Duration::from_millis(2)).start(&cluster.client_builder()).await;
    load.acknowledged(20).await;
    let opened = async || {
        let all = futures::future::join_all(
            (0..2).map(|store| cluster.store_metric_sum(store, "mc_store_connections_opened_total")),
        );
        all.await.iter().sum::<f64>()
    };
    let before = opened().await;
    until("clients have reconnected to stores many times", async || opened().await > before + 40.0).await;
    load.acknowledged(100).await;
    let (errors, history) = (load.errors(), load.stop().await);
    let failed = [checker::Outcome::Failed, checker::Outcome::Unknown].map(|how| history.outcomes(how));
    assert_eq!(failed, [0, 0], "{errors:#?}");
    assert!(!cluster.has_suspected_a_store(), "stores come back before they are missed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_grant_works_for_nobody_but_its_holder() {
    let cluster = pool().await;
    let certificates = certificates(&cluster);
    let leader = cluster.master_address(cluster.leader().await);
    let mut holder = ByHand::over(certificates.network("tenant/a/rw/w").as_ref(), leader).await;
    let transport = |identity: &str| {
        let tls = certificates.network(identity).tls().cloned();
        TcpTransport::new(TcpOptions { tls, ..TcpOptions::default() })
    };
    let thieves = ["tenant/a/rw/other", "tenant/b/rw/w", "admin/root", "tenant/a/rw/w"];
    let bytes = vec![7; SIZE];
    let put = holder.start("k", 60_000).await;
    for thief in thieves {
        let refused = put.stolen().write_by(&transport(thief), &bytes, Seal::Yes).await.unwrap_err();
        assert!(refused.to_string().contains("no proof"), "{thief}: {refused}");
    }
    let written = put.write_by(&transport("tenant/a/rw/w"), &bytes, Seal::Yes).await.unwrap();
    assert_eq!(holder.end(&put, "k", Some(written)).await, Code::Ok as i32);
    let found = holder.find("k").await;
    for thief in thieves {
        let refused = found.stolen().read_by(&transport(thief)).await.unwrap_err();
        assert!(refused.to_string().contains("no proof"), "{thief}: {refused}");
    }
    assert_eq!(found.read_by(&transport("tenant/a/rw/w")).await.unwrap(), written.checksum);
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_without_encryption_of_data_serve_those_who_hold_their_grants_alone() {
    let builder = Cluster::builder().stores(2).store_args(["--data-encryption", "off"]);
    let cluster = builder.tls().start().await;
    let certificates = certificates(&cluster);
    let client = user(&cluster, "tenant/a/rw/w").await;
    let value = Bytes::from(vec![7; SIZE]);
    client.put("k", &value).await.unwrap();
    assert_eq!(client.get("k").await.unwrap(), Some(value.clone()));
    // The key of the proofs is all that it takes: no certificate is shown to the store.
    let leader = cluster.master_address(cluster.leader().await);
    let mut holder = ByHand::over(certificates.network("tenant/a/rw/w").as_ref(), leader).await;
    let found = holder.find("k").await;
    assert!(found.read().await.is_ok());
    let refused = found.stolen().read().await.unwrap_err().to_string();
    assert!(refused.contains("no proof"), "{refused}");
}
