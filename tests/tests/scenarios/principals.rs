//! Callers that are known beyond their certificates: by tokens, until they are shut out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_client::{Bytes, Client, ShmAccess};
use mc_net::{Network, TcpNetwork};
use mc_process::http::exchange;
use mc_tests::{Cluster, http_get, mcctl, mcctl_as, network_of, until};
use mc_types::Code;
use tokio::time::Instant;
use tonic::codegen::http::Request;

async fn pool() -> Cluster {
    Cluster::builder().stores(2).tls().start().await
}

/// Writes a folder with the pool's authority, in which `mcctl` puts the token of a new principal.
async fn token_of(cluster: &Cluster, principal: &str) -> PathBuf {
    let folder = folder_without_certificate(cluster, &principal.replace('/', "-"));
    give_token(cluster, &["principals", "add", principal], &folder).await;
    folder
}

fn folder_without_certificate(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    let authority = cluster.certificates().expect("a pool with certificates").authority();
    std::fs::write(folder.join("ca.crt"), authority.cert_pem()).unwrap();
    folder
}

async fn give_token(cluster: &Cluster, command: &[&str], folder: &Path) {
    let file = folder.join("token");
    let _ = std::fs::remove_file(&file);
    let file = file.to_str().unwrap();
    let (code, said) = mcctl(cluster, &[command, &["--token-to", file]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let token = std::fs::read_to_string(file).unwrap();
    assert!(token.starts_with("mct_") && !said.contains(token.trim()), "{said}");
}

async fn client(cluster: &Cluster, folder: &Path) -> Client {
    let client = cluster.client_builder().network(network_of(folder)).connect().await.unwrap();
    assert!(client.connected(Duration::from_secs(60)).await);
    client
}

fn code_of<T: std::fmt::Debug>(called: Result<T, mc_client::Error>) -> Code {
    called.expect_err("it is refused").code
}

async fn is_ok(cluster: &Cluster, args: &[&str]) {
    let (code, said) = mcctl(cluster, args).await;
    assert_eq!(code, 0, "{args:?}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_stands_for_a_certificate_until_it_is_replaced_or_its_holder_is_denied() {
    const ENGINE: &str = "tenant/a/rw/engine";
    let cluster = pool().await;
    let folder = token_of(&cluster, ENGINE).await;
    let reader = client(&cluster, &token_of(&cluster, "tenant/a/ro/reader").await).await;
    let engine = client(&cluster, &folder).await;
    let value = Bytes::from(vec![7; 2_000_000]);
    engine.put("k", &value).await.unwrap();
    assert_eq!(reader.get("k").await.unwrap(), Some(value.clone()), "it moves bytes, too");
    assert_eq!(code_of(reader.put("k2", &value).await), Code::PermissionDenied);

    let (code, said) =
        mcctl_as(&cluster, &folder, &["whoami", "--can", "BatchPutStart", "--tenant", "a"]).await;
    assert!(code == 0 && said.contains("mc/tenant/a/rw/engine"), "{said}");
    for asked in [&["whoami", "--can", "SetConfig"][..], &["whoami", "--can", "BatchGet", "--tenant", "b"]] {
        assert_ne!(mcctl_as(&cluster, &folder, asked).await.0, 0, "{asked:?}");
    }

    // Denied from the answer on.
    is_ok(&cluster, &["principals", "deny", ENGINE]).await;
    assert_eq!(code_of(engine.get("k").await), Code::PermissionDenied);
    assert_eq!(reader.get("k").await.unwrap(), Some(value.clone()), "others are not");
    is_ok(&cluster, &["principals", "allow", ENGINE]).await;
    assert_eq!(engine.get("k").await.unwrap(), Some(value.clone()));

    // Replaced: the old one ends, and the client takes the new one from its file.
    let old = folder_without_certificate(&cluster, "old");
    std::fs::copy(folder.join("token"), old.join("token")).unwrap();
    give_token(&cluster, &["principals", "token", ENGINE], &folder).await;
    let stale = cluster.client_builder().network(network_of(&old)).connect().await.unwrap();
    assert_eq!(code_of(stale.get("k").await), Code::Unauthenticated);
    assert_eq!(client(&cluster, &folder).await.get("k").await.unwrap(), Some(value));

    // Forgotten, and expired.
    is_ok(&cluster, &["principals", "rm", ENGINE]).await;
    let gone = cluster.client_builder().network(network_of(&folder)).connect().await.unwrap();
    assert_eq!(code_of(gone.get("k").await), Code::Unauthenticated);
    let (_, said) = mcctl(&cluster, &["principals", "list"]).await;
    assert!(said.contains("tenant/a/ro/reader") && !said.contains(ENGINE), "{said}");
    assert!(!said.contains("mct_"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_denied_while_it_is_used_and_a_tenants_calls_are_limited() {
    let cluster = pool().await;
    let certificates = cluster.certificates().unwrap();
    let user = client(&cluster, &certificates.of("tenant/a/rw/w")).await;
    let other = client(&cluster, &certificates.of("tenant/b/rw/w")).await;
    user.put("k", &Bytes::from_static(b"value")).await.unwrap();

    is_ok(&cluster, &["principals", "deny", "tenant/a/rw/w"]).await;
    assert_eq!(code_of(user.get("k").await), Code::PermissionDenied);
    is_ok(&cluster, &["principals", "allow", "tenant/a/rw/w"]).await;
    user.get("k").await.unwrap();

    // A store that is denied loses its memory, as one that has died.
    let mounted = async || cluster.status(cluster.leader().await).await.unwrap().stores;
    let name = mounted().await[0].name.clone();
    let name = name.rsplit_once('-').map_or(name.as_str(), |(name, _)| name);
    is_ok(&cluster, &["principals", "deny", &format!("store/{name}")]).await;
    until("it is suspect", async || mounted().await.iter().any(|store| store.state == "suspect")).await;
    is_ok(&cluster, &["principals", "allow", &format!("store/{name}")]).await;
    until("it is back", async || mounted().await.iter().all(|store| store.state == "alive")).await;

    is_ok(&cluster, &["tenants", "set", "a", "--calls", "1", "--bytes", "1gb", "--objects", "1000"]).await;
    let (_, listed) = mcctl(&cluster, &["tenants", "list"]).await;
    assert!(listed.lines().any(|line| line.starts_with("a ") && line.contains('1')), "{listed}");
    let mut limited = 0;
    for _ in 0..4 {
        limited +=
            usize::from(user.exist("k").await.is_err_and(|error| error.code == Code::ResourceExhausted));
        other.exist("k").await.expect("another tenant is not held up");
    }
    println!("{limited} of 4 calls were over the limit for longer than the client waits");
    is_ok(&cluster, &["tenants", "set", "a", "--calls", "0", "--bytes", "1gb", "--objects", "1000"]).await;
    user.exist("k").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_tenants_are_shown_to_those_who_run_the_pool_alone() {
    let cluster = pool().await;
    let certificates = cluster.certificates().unwrap();
    client(&cluster, &certificates.of("tenant/secret/rw/w"))
        .await
        .put("k", &Bytes::from_static(b"v"))
        .await
        .unwrap();
    let leader = cluster.leader().await;
    let address = cluster.master_http(leader);
    let page = async |network: &dyn Network| {
        let request = Request::get("/metrics").body(Bytes::new()).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        let answer =
            exchange(network, address, end, 64 << 20, request).await.expect("metrics are for everybody");
        String::from_utf8_lossy(answer.body()).into_owned()
    };
    let observer = certificates.network("observer/grafana");
    until("the tenant is there", async || page(&*observer).await.contains("tenant=\"secret\"")).await;
    assert!(
        http_get(address, "/metrics").await.is_ok_and(|(code, page)| code == 200 && !page.contains("secret"))
    );
    let user = certificates.network("tenant/other/rw/w");
    for network in [TcpNetwork::shared(), user] {
        let page = page(&*network).await;
        assert!(page.contains("mc_objects") && !page.contains("secret"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_principal_that_may_share_memory_maps_that_of_a_store() {
    const ENGINE: &str = "tenant/a/rw/engine";
    let cluster = Cluster::builder().stores(1).tls().store_args(["--shm", "same-uid"]).start().await;
    let engine = token_of(&cluster, ENGINE).await;
    let other = token_of(&cluster, "tenant/b/rw/engine").await;
    is_ok(&cluster, &["principals", "set", ENGINE, "--shared-memory", "on"]).await;
    let sharing = async |folder: &Path| {
        let builder = cluster.client_builder().shared_memory(ShmAccess::SameUid);
        let client = builder.network(network_of(folder)).connect().await.unwrap();
        assert!(client.connected(Duration::from_secs(60)).await);
        client
    };
    let (engine, other) = (sharing(&engine).await, sharing(&other).await);
    let value = Bytes::from(vec![7; 2_000_000]);
    for client in [&engine, &other] {
        client.put("k", &value).await.unwrap();
        assert_eq!(client.get("k").await.unwrap(), Some(value.clone()));
    }
    assert_eq!(other.stats().shm_bytes_written + other.stats().shm_bytes_read, 0, "nobody has allowed it");
    let why = format!("{:?}", other.transports());
    assert!(why.contains("mcctl principals set NAME --shared-memory on"), "{why}");
    // A store that is too slow to share its memory is asked again after some seconds.
    until("a read goes through shared memory", async || {
        assert_eq!(engine.get("k").await.unwrap(), Some(value.clone()));
        engine.stats().shm_bytes_read > 0
    })
    .await;

    // A denied principal keeps its setting, and is refused all the same.
    is_ok(&cluster, &["principals", "deny", ENGINE]).await;
    assert_eq!(code_of(engine.get("k").await), Code::PermissionDenied);
    let (_, said) = mcctl(&cluster, &["principals", "list"]).await;
    let line = said.lines().find(|line| line.contains(ENGINE)).unwrap();
    assert!(line.contains("denied") && line.contains(" on "), "{said}");
}
