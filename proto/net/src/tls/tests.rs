use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::connection::Connection;
use crate::network::{Listener, Network, TcpNetwork};
use crate::tls_network::TlsNetwork;

pub(crate) const MASTER: &str = "spiffe://here/mc/master/m";
const STORE: &str = "spiffe://here/mc/store/s";
pub(crate) const WRITER: &str = "spiffe://here/mc/tenant/a/rw/w";

pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes a process' folder, with a certificate of these URIs, valid in these years.
    fn write(&self, dir: &Path, uris: &[&str], years: std::ops::Range<i32>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        fs::write(dir.join("ca.crt"), &self.pem).unwrap();
        fs::write(dir.join("tls.crt"), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    }

    fn process_with(&self, uris: &[&str], years: std::ops::Range<i32>) -> Process {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path(), uris, years);
        let tls = Tls::load(dir.path()).unwrap();
        Process { network: TlsNetwork::shared(Some(tls.clone())), tls, dir }
    }

    pub(crate) fn process(&self, uri: &str) -> Process {
        self.process_with(&[uri], 2000..4000)
    }
}

/// A process with certificates.
pub(crate) struct Process {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) tls: Arc<Tls>,
    dir: TempDir,
}

impl Process {
    pub(crate) async fn listen(&self) -> Listener {
        self.network.listen("127.0.0.1:0").await.unwrap()
    }
}

/// Accepts a connection, answers its first byte with `!`, and returns who it is.
async fn serve_one(listener: &mut Listener) -> io::Result<Peer> {
    let mut accepted = listener.incoming.next().await.unwrap()?;
    accepted.read_exact(&mut [0]).await?;
    accepted.write_all(b"!").await?;
    accepted.flush().await?;
    Ok(accepted.info().peer)
}

/// Sends a byte, and returns the answer.
async fn ask(connection: io::Result<Connection>) -> io::Result<u8> {
    let mut connection = connection?;
    connection.write_all(b"?").await?;
    connection.flush().await?;
    connection.read_u8().await
}

async fn met(server: &Process, client: &Process) -> (io::Result<Peer>, io::Result<u8>) {
    met_as(Server::Master, server, client).await
}

/// [`met`], where the client expects a server of some kind.
async fn met_as(kind: Server, server: &Process, client: &Process) -> (io::Result<Peer>, io::Result<u8>) {
    let mut listener = server.listen().await;
    let address = listener.address;
    let dial = async {
        let stream = crate::tcp::connect(address).await?;
        Ok(Connection::new(client.tls.connect(stream, kind).await?))
    };
    let asked = async { ask(dial.await).await };
    let both = async { tokio::join!(serve_one(&mut listener), asked) };
    tokio::time::timeout(Duration::from_secs(20), both).await.unwrap()
}

pub(crate) fn named(uri: &str) -> Peer {
    Peer::Named(Arc::new(uri.parse().unwrap()))
}

#[tokio::test]
async fn both_ends_know_each_other_by_their_certificates() {
    let ours = Authority::new();
    let (peer, answer) = met(&ours.process(MASTER), &ours.process(WRITER)).await;
    assert_eq!((peer.unwrap(), answer.unwrap()), (named(WRITER), b'!'));
}

#[tokio::test]
async fn a_server_that_is_no_master_of_ours_hears_nothing_from_a_client() {
    let (ours, others) = (Authority::new(), Authority::new());
    let client = ours.process(WRITER);
    for (server, why) in [
        (ours.process(STORE), "not of a master"),
        (ours.process(WRITER), "not of a master"),
        (ours.process("spiffe://elsewhere/mc/master/m"), "trust domain here"),
        (others.process(MASTER), "BadSignature"),
        (ours.process_with(&[MASTER], 2000..2001), "expired"),
        (ours.process_with(&[MASTER], 3000..4000), "not valid yet"),
    ] {
        let (peer, answer) = met(&server, &client).await;
        let error = answer.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(peer.is_err(), "{why}: the server got a byte");
    }
}

#[tokio::test]
async fn a_client_with_a_certificate_that_is_not_good_is_refused_and_one_without_is_anonymous() {
    let (ours, others) = (Authority::new(), Authority::new());
    let server = ours.process(MASTER);
    // It trusts the server, and shows what another authority has signed.
    let stranger = others.process(WRITER);
    fs::write(stranger.dir.path().join("ca.crt"), &ours.pem).unwrap();
    assert!(stranger.tls.reload().unwrap());
    for client in [stranger, ours.process_with(&[WRITER], 2000..2001)] {
        let (peer, answer) = met(&server, &client).await;
        assert!(peer.is_err() && answer.is_err());
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ca.crt"), &ours.pem).unwrap();
    let tls = Tls::load(dir.path()).unwrap();
    let client = Process { network: TlsNetwork::shared(Some(tls.clone())), tls, dir };
    let (peer, answer) = met(&server, &client).await;
    assert_eq!((peer.unwrap(), answer.unwrap()), (Peer::Anonymous, b'!'));
    assert!(client.network.listen("127.0.0.1:0").await.is_err(), "a server shows a certificate");
}

#[tokio::test]
async fn the_authority_of_users_vouches_for_users_of_our_tenants_alone() {
    let (ours, theirs, others) = (Authority::new(), Authority::new(), Authority::new());
    let server = ours.process(MASTER);
    fs::write(server.dir.path().join("users-ca.crt"), &theirs.pem).unwrap();
    assert!(server.tls.reload().unwrap());
    let trusting = |authority: &Authority, uri: &str| {
        let process = authority.process(uri);
        fs::write(process.dir.path().join("ca.crt"), &ours.pem).unwrap();
        process.tls.reload().unwrap();
        process
    };
    for (authority, uri, may) in [
        (&theirs, WRITER, true),
        (&ours, WRITER, true),
        (&ours, STORE, true),
        (&others, WRITER, false),
        (&theirs, STORE, false),
        (&theirs, MASTER, false),
        (&theirs, "spiffe://here/mc/admin/a", false),
        (&theirs, "spiffe://elsewhere/mc/tenant/a/rw/w", false),
    ] {
        let (peer, answer) = met(&server, &trusting(authority, uri)).await;
        assert_eq!((peer.ok(), answer.is_ok()), (may.then(|| named(uri)), may), "{uri}");
    }
    // Nor is a server known by it, except for the own store of a tenant.
    let client = ours.process(WRITER);
    let own_store = trusting(&theirs, WRITER);
    assert!(met_as(Server::OwnStore, &own_store, &client).await.1.is_err(), "it does not know the authority");
    fs::write(client.dir.path().join("users-ca.crt"), &theirs.pem).unwrap();
    assert!(client.tls.reload().unwrap());
    for (kind, uri, may) in [
        (Server::Master, MASTER, false),
        (Server::Store, STORE, false),
        (Server::Store, WRITER, false),
        (Server::OwnStore, WRITER, true),
        (Server::OwnStore, STORE, false),
        (Server::OwnStore, "spiffe://here/mc/tenant/a/ro/w", false),
        (Server::OwnStore, "spiffe://elsewhere/mc/tenant/a/rw/w", false),
    ] {
        let (_, answer) = met_as(kind, &trusting(&theirs, uri), &client).await;
        assert_eq!(answer.is_ok(), may, "{uri} as {kind:?}");
    }
    let by_ours = met_as(Server::OwnStore, &ours.process(WRITER), &client).await;
    assert!(by_ours.1.is_ok(), "the pool's authority vouches for all");
}

#[tokio::test]
async fn a_plain_connection_is_accepted_on_the_same_port_and_known_as_one() {
    let server = Authority::new().process(MASTER);
    let mut listener = server.listen().await;
    let stream = crate::tcp::connect(listener.address).await.unwrap();
    let (peer, answer) = tokio::join!(serve_one(&mut listener), ask(Ok(Connection::new(stream))));
    assert_eq!((peer.unwrap(), answer.unwrap()), (Peer::Plain, b'!'));
}

#[tokio::test]
async fn the_level_says_what_a_process_dials() {
    let ours = Authority::new();
    let (client, plain) = (ours.process(WRITER), TcpNetwork::shared());
    for (level, to_plain, to_tls) in [
        (TlsLevel::Allow, Ok(Peer::Plain), Peer::Plain),
        (TlsLevel::Prefer, Ok(Peer::Plain), named(WRITER)),
        (TlsLevel::Require, Err(()), named(WRITER)),
    ] {
        client.tls.set_level(level);
        let mut server = ours.process(MASTER).listen().await;
        let address = server.address.to_string();
        let (peer, answer) =
            tokio::join!(serve_one(&mut server), async { ask(client.network.connect(&address).await).await });
        assert_eq!((peer.unwrap(), answer.unwrap()), (to_tls, b'!'), "{level}");
        // A server without certificates closes a connection that begins with something else than it expects.
        let mut listener = plain.listen("127.0.0.1:0").await.unwrap();
        let address = listener.address.to_string();
        let served = async {
            loop {
                let mut accepted = listener.incoming.next().await.unwrap().unwrap();
                if accepted.read_u8().await.is_ok_and(|first| first == b'?') {
                    accepted.write_all(b"!").await.unwrap();
                    return;
                }
            }
        };
        let asked = async { ask(client.network.connect(&address).await).await };
        let answer = tokio::select! {
            ((), answer) = async { tokio::join!(served, async {
                let answer = asked.await;
                if answer.is_err() { std::future::pending::<()>().await; }
                answer
            }) } => answer.map_err(drop),
            () = tokio::time::sleep(Duration::from_secs(1)) => Err(()),
        };
        assert_eq!(answer.map(|_| Peer::Plain), to_plain, "{level}");
    }
}

#[tokio::test]
async fn new_certificates_are_used_from_the_next_connection_on_and_bad_ones_are_not() {
    let (ours, next) = (Authority::new(), Authority::new());
    let (server, client) = (ours.process(MASTER), ours.process(WRITER));
    assert!(!server.tls.reload().unwrap(), "nothing has changed");
    // Half a pair, a key of another certificate, no certificate at all.
    let dir = server.dir.path();
    let (certificate, key) = (fs::read(dir.join("tls.crt")).unwrap(), fs::read(dir.join("tls.key")).unwrap());
    fs::write(dir.join("tls.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(server.tls.reload().is_err());
    fs::remove_file(dir.join("tls.key")).unwrap();
    assert!(server.tls.reload().is_err());
    fs::remove_file(dir.join("tls.crt")).unwrap();
    assert!(server.tls.reload().is_err(), "a process that runs does not become nobody");
    ours.write(dir, &[STORE], 2000..4000);
    assert!(server.tls.reload().unwrap_err().to_string().contains("store/s"), "nor another one");
    assert_eq!(server.tls.failed_reloads(), 4);
    fs::write(dir.join("tls.key"), &key).unwrap();
    fs::write(dir.join("tls.crt"), "not a certificate").unwrap();
    let error = server.tls.reload().unwrap_err().to_string();
    assert!(error.contains("tls.crt") && error.contains("PEM"), "{error}");
    assert_eq!(met(&server, &client).await.1.unwrap(), b'!', "the certificates before stay");
    // Both authorities are trusted while the leaves change.
    fs::write(dir.join("tls.crt"), certificate).unwrap();
    let both = format!("{}{}", ours.pem, next.pem);
    for process in [&server, &client] {
        fs::write(process.dir.path().join("ca.crt"), &both).unwrap();
        assert!(process.tls.reload().unwrap());
    }
    next.write(dir, &[MASTER], 2000..4000);
    fs::write(dir.join("ca.crt"), &both).unwrap();
    assert!(server.tls.reload().unwrap());
    let (peer, answer) = met(&server, &client).await;
    assert_eq!((peer.unwrap(), answer.unwrap()), (named(WRITER), b'!'));
}

#[test]
fn a_folder_that_can_not_be_used_says_why() {
    let ours = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let error = || Tls::load(dir.path()).unwrap_err().to_string();
    assert!(error().contains("ca.crt"), "{}", error());
    for (uris, why) in [
        (&[][..], "have no URI"),
        (&[MASTER, STORE], "have 2 URIs"),
        (&["https://example.org"], "is not an identity"),
    ] {
        ours.write(dir.path(), uris, 2000..4000);
        assert!(error().contains(why), "{}", error());
    }
    ours.write(dir.path(), &[MASTER], 2000..4000);
    fs::write(dir.path().join("ca.crt"), "").unwrap();
    assert!(error().contains("holds no certificate"), "{}", error());
    assert!(Tls::find(Some(Path::new("none"))).unwrap().is_none());
}

#[tokio::test]
async fn a_handshake_that_stops_halfway_is_no_connection() {
    let ours = Authority::new();
    let mut listener = ours.process(MASTER).listen().await;
    let mut cut = crate::tcp::connect(listener.address).await.unwrap();
    cut.write_all(&[0x16, 3, 1, 0, 200, 1]).await.unwrap();
    drop(cut);
    assert!(serve_one(&mut listener).await.is_err());
}

#[test]
fn a_process_that_has_shown_its_token_keeps_to_tls_and_one_in_the_clear_shows_none() {
    let ours = Authority::new();
    let with_token = || {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.crt"), &ours.pem).unwrap();
        fs::write(dir.path().join("token"), format!("mct_{}\n", "7".repeat(64))).unwrap();
        Tls::load(dir.path()).unwrap()
    };
    for level in [TlsLevel::Allow, TlsLevel::Prefer] {
        let tls = with_token();
        let bearer = tls.bearer().unwrap();
        assert_eq!(bearer.to_str().unwrap(), format!("Bearer mct_{}", "7".repeat(64)));
        assert!(bearer.is_sensitive());
        tls.set_level(level);
        assert_eq!(tls.level(), TlsLevel::Require);

        let tls = with_token();
        tls.set_level(level);
        assert_eq!((tls.level(), tls.bearer()), (level, None));
        tls.set_level(TlsLevel::Require);
        assert_eq!(tls.bearer(), None, "a connection in the clear may be open");
    }
    assert_eq!(ours.process(WRITER).tls.bearer(), None);
}
