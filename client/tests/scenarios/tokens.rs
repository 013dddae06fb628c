//! Tokens: who gets to see one, and over which connections.

use std::sync::Arc;
use std::time::Duration;

use mc_client::{Client, PrincipalChange, Tls, TlsLevel, TlsNetwork, Token};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::certificates::{Authority, write_token};
use crate::support::{Cluster, until};

/// First byte of a TLS connection: the type of a handshake record.
const HANDSHAKE: u8 = 0x16;

#[tokio::test]
async fn a_master_with_tls_is_shown_the_token_in_each_call() {
    let (ours, token) = (Authority::new(), Token::random());
    let cluster = Cluster::start_on(&*ours.master()).await;
    let dir = ours.folder_with(&token);
    let client = cluster.builder().tls_dir(dir.path()).connect().await.unwrap();
    let admin = client.admin();
    let known = PrincipalChange::default().with_token(&token);
    admin.add_principal("tenant/a/ro/x", known).await.unwrap();
    assert_eq!(admin.who_am_i().await.unwrap().identity.as_deref(), Some("spiffe://here/mc/tenant/a/ro/x"));

    let bearers = || cluster.world.lock().security.bearers.clone();
    until("a hello, a watch and two calls have come", || bearers().len() >= 4).await;
    let (bearers, shown) = (bearers(), Some(format!("Bearer {}", token.secret())));
    assert!(bearers.iter().all(|bearer| *bearer == shown));
}

#[tokio::test]
async fn a_token_may_lie_in_a_file_of_its_own_and_is_read_again_when_it_changes() {
    let (ours, tokens) = (Authority::new(), [Token::random(), Token::random()]);
    let cluster = Cluster::start_on(&*ours.master()).await;
    let dir = ours.folder();
    let file = dir.path().join("mine");
    let builder = || cluster.builder().tls_dir(dir.path()).token_file(&file);
    let missing = builder().connect().await.unwrap_err().to_string();
    assert!(missing.contains("mine"), "{missing}");

    for token in &tokens {
        write_token(&file, token);
        builder().connect().await.unwrap();
        let shown = Some(format!("Bearer {}", token.secret()));
        assert!(cluster.world.lock().security.bearers.contains(&shown));
    }
}

#[tokio::test]
async fn a_plain_connection_never_carries_a_token() {
    let (ours, token) = (Authority::new(), Token::random());
    let dir = ours.folder_with(&token);

    // A master that answers a handshake in the clear gets handshakes, and nothing after them.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = Client::builder()
        .masters(&address)
        .tls_dir(dir.path())
        .leader_timeout(Duration::from_millis(1))
        .connect();
    let greeted = async {
        let mut count = 0;
        while count < 3 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut header = [0; 5];
            if stream.read_exact(&mut header).await.is_err() {
                // The client was too slow, and has closed it.
                continue;
            }
            assert_eq!(header[0], HANDSHAKE);
            let mut greeting = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
            stream.read_exact(&mut greeting).await.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            // An alert at most, which is 7 bytes.
            assert!(rest.len() <= 7, "{rest:?}");
            count += 1;
        }
    };
    // Unlike the client that `connect` returns, the search goes on for as long as this one lives.
    let (client, ()) = tokio::join!(client, greeted);
    drop(client);

    // A client whose user lets it connect in the clear shows none.
    let cluster = Cluster::start(1);
    let tls = Tls::load(dir.path()).unwrap();
    tls.set_level(TlsLevel::Allow);
    let client = cluster.builder().network(TlsNetwork::shared(Some(tls))).connect().await.unwrap();
    client.put("key", b"value").await.unwrap();
    let bearers = || cluster.world.lock().security.bearers.clone();
    // The call that watches the leader comes when it comes.
    until("the calls of a client and of a put were made", || bearers().len() >= 4).await;
    assert!(bearers().iter().all(Option::is_none), "{:?}", bearers());
}

#[tokio::test]
async fn a_client_goes_as_far_with_tls_to_stores_as_the_masters_say() {
    let ours = Authority::new();
    let cluster = Cluster::start_on(&*ours.master()).await;
    let dir = ours.folder();
    let tls = Tls::load(dir.path()).unwrap();
    let network = TlsNetwork::shared(Some(Arc::clone(&tls)));
    let client = cluster.builder().network(network).connect().await.unwrap();
    assert_eq!(tls.level_to_stores(), TlsLevel::Require, "the masters do not say");
    let says = &cluster.masters[0].says;
    for (number, level) in [(1, TlsLevel::Allow), (2, TlsLevel::Prefer), (3, TlsLevel::Require)] {
        says.tls_level.store(number, std::sync::atomic::Ordering::SeqCst);
        cluster.elect(0, 1 + u64::from(number));
        until("the level is known", || tls.level_to_stores() == level).await;
        assert_eq!(tls.level(), TlsLevel::Require, "masters are called by TLS alone");
        let status = client.admin().status().await;
        assert_eq!((status.has_tls, status.tls_level), (true, Some(level)));
    }
}
