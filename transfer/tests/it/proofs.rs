//! Grants that work for their holder alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_transfer::{
    Checksum, DataEncryption, Memory, Seal, ShmAccess, TcpOptions, TcpTransport, Transport as _, WriteOp,
};
use mc_types::TlsLevel;
use mc_types::{Access, Grant, Nonce, SealedGrant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::certificates::{CertificateAuthority, at, options};
use crate::common::host::{Host, MIB, client};
use crate::common::relay::Relay;
use crate::common::{
    CLUSTER, EPOCH, KEY, STORE, Store, grant, pattern, peer_at, range, read, refusal, sealed, soon, write,
};

const LEN: u64 = 4096;
const READ: [u8; 2] = [1, 0];
const WRITE: [u8; 2] = [2, 0];
const PROVEN: u8 = 0x80;
/// First version with proofs.
const NONCE_SINCE: u16 = 7;

/// A grant of one range that needs proofs.
fn held(access: Access, index: u64, len: u64) -> SealedGrant {
    Grant { needs_proof: true, ..grant(access, vec![range(0, len, index)]) }.seal(&KEY)
}

/// What a thief has who has seen a grant, but not its key.
fn stolen(grant: &SealedGrant) -> SealedGrant {
    SealedGrant::from(grant.bytes.clone())
}

/// A connection of a client that is made by hand.
struct ByHand {
    stream: TcpStream,
    nonce: Option<Nonce>,
}

impl ByHand {
    async fn connect(store: &Store, version: u16) -> Self {
        let mut stream = TcpStream::connect(&store.address).await.unwrap();
        let hello = [&b"mcTX\0\x01"[..], &version.to_be_bytes(), &CLUSTER.to_bytes(), &STORE.to_bytes()];
        stream.write_all(&[&hello.concat()[..], &EPOCH.to_bytes()].concat()).await.unwrap();
        let mut reply = [0; 13];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(
            reply[8..],
            [&version.to_be_bytes()[..], &[0; 3]].concat(),
            "the version, and a good verdict"
        );
        let mut nonce = Nonce([0; Nonce::LEN]);
        if version < NONCE_SINCE {
            return Self { stream, nonce: None };
        }
        stream.read_exact(&mut nonce.0).await.unwrap();
        Self { stream, nonce: Some(nonce) }
    }

    /// A request on bytes of the first range, with a proof if the grant has its key; and where its operation begins.
    fn request(&self, id: u64, [access, kind]: [u8; 2], grant: &SealedGrant, len: u64) -> (Vec<u8>, usize) {
        let proving = grant.proof_key.zip(self.nonce);
        let kind = if proving.is_some() { kind | PROVEN } else { kind };
        let grant_len = (grant.bytes.len() as u32).to_be_bytes();
        let header = [&id.to_be_bytes()[..], &[access, kind, 0, 1], &grant_len].concat();
        let op = [&[0; 12][..], &len.to_be_bytes()].concat();
        let proof =
            proving.map(|(key, nonce)| key.prove(nonce, header[..].try_into().unwrap(), &op).to_bytes());
        let proof = proof.as_ref().map_or(&[][..], |proof| proof);
        ([&header[..], &grant.bytes, &op, proof].concat(), header.len() + grant.bytes.len())
    }

    /// Sends a request with its payload, and returns the verdict on it as a whole.
    async fn answer(&mut self, request: &[u8], payload: &[u8]) -> Result<(), String> {
        self.stream.write_all(&[request, payload].concat()).await.unwrap();
        self.stream.read_u64().await.unwrap();
        self.verdict().await
    }

    async fn verdict(&mut self) -> Result<(), String> {
        let status = self.stream.read_u8().await.unwrap();
        let mut reason = vec![0; self.stream.read_u16().await.unwrap().into()];
        self.stream.read_exact(&mut reason).await.unwrap();
        if status == 0 { Ok(()) } else { Err(String::from_utf8(reason).unwrap()) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_works_for_its_holder() {
    let len = 9 << 20;
    let store = Store::start(len).await;
    let relay = Relay::to(&store.address).await;
    let (transport, peer) = (TcpTransport::default(), peer_at(&relay.address));
    for (index, size) in [(1, 100), (2, 64 << 10), (3, len)] {
        let bytes = pattern(size as usize, index);
        let wrote = write(&transport, &peer, &held(Access::Write, index, size), &bytes).await;
        assert_eq!(wrote, Ok(Checksum::of(&bytes)));
        let (back, _) = read(&transport, &peer, &held(Access::Read, index, size), bytes.len()).await.unwrap();
        assert!(back == bytes);
    }
    let bytes = pattern(len as usize, 4);
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let sealed =
        transport.write(&peer, &held(Access::Write, 4, len), &ops, Seal::Yes, soon()).await.remove(0);
    assert!(
        sealed.unwrap().receipt.is_some(),
        "with a request of its own after those on several connections"
    );
    let key = held(Access::Write, 4, len).proof_key.unwrap().to_bytes();
    assert!(!relay.recorded().windows(16).any(|seen| seen == &key[..16] || seen == &key[16..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_share_a_connection_prove_too() {
    let store = Store::start(1 << 20).await;
    let transport = TcpTransport::new(TcpOptions { connections_per_peer: 1, ..TcpOptions::default() });
    let peer = store.peer();
    let one = async |nth: u64| {
        let bytes = pattern(1000, nth);
        let ranges = vec![range(nth * 1000, 1000, 1)];
        let held = |access| Grant { needs_proof: true, ..grant(access, ranges.clone()) }.seal(&KEY);
        write(&transport, &peer, &held(Access::Write), &bytes).await.unwrap();
        assert!(read(&transport, &peer, &held(Access::Read), 1000).await.unwrap().0 == bytes);
        let reason = refusal(read(&transport, &peer, &stolen(&held(Access::Read)), 1000).await);
        assert!(reason.contains("no proof"), "{reason}");
    };
    futures::future::join_all((0..200).map(one)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_through_shared_memory_prove_too() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let ((transport, moved), bytes) = (client(ShmAccess::SameUid), pattern(MIB, 1));
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let held = host.held(Access::Write, &[(0, MIB, 1)]);
    let answer = transport.write(&host.peer, &stolen(&held), &ops, Seal::Yes, soon()).await.remove(0);
    assert!(refusal(answer).contains("no proof"));
    assert!(transport.write(&host.peer, &held, &ops, Seal::Yes, soon()).await.remove(0).is_ok());
    assert_eq!(moved.load(Ordering::SeqCst), MIB as u64);
    assert!(host.bytes(0, MIB) == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_stores_own_process_show_their_key() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let ((transport, moved), bytes) = (client(ShmAccess::SameUid), pattern(MIB, 1));
    let memory = Arc::new(Memory::of(Vec::new()));
    host.server.admit_own_calls(&memory);
    let transport = transport.with_own_store(host.store, Arc::downgrade(&memory));
    // The tasks of the host begin.
    host.write(0, &[0], 1).await;
    let ops = [WriteOp { range: 0, offset: 0, from: vec![(&bytes).into()] }];
    let (held, another) =
        (host.held(Access::Write, &[(0, MIB, 2)]), host.held(Access::Write, &[(0, MIB, 3)]));
    let guessed = SealedGrant { proof_key: another.proof_key, ..held.clone() };
    for not_held in [&stolen(&held), &guessed] {
        let answer = transport.write(&host.peer, not_held, &ops, Seal::Yes, soon()).await.remove(0);
        assert!(refusal(answer).contains("proof"));
    }
    assert_eq!(moved.load(Ordering::SeqCst), 0);
    let connections = || host.server.counters().connections_opened.load(Ordering::SeqCst);
    let before = connections();
    assert!(transport.write(&host.peer, &held, &ops, Seal::Yes, soon()).await.remove(0).is_ok());
    assert_eq!((moved.load(Ordering::SeqCst), connections()), (MIB as u64, before));
}

#[tokio::test]
async fn a_stolen_grant_is_refused_at_every_level() {
    let authority = CertificateAuthority::new();
    for level in [TlsLevel::Allow, TlsLevel::Prefer, TlsLevel::Require] {
        let tls = at(level, authority.issue("store/kv"));
        let store = Store::start_secured(LEN, mc_transfer::Timeouts::default(), tls).await;
        let transport = TcpTransport::new(options(authority.issue("tenant/thief/rw/engine")));
        let (good, bytes) = (held(Access::Write, 1, LEN), pattern(LEN as usize, 1));
        let reason = refusal(write(&transport, &store.peer(), &stolen(&good), &bytes).await);
        assert!(reason.contains("no proof"), "{reason}");
        let guessed = SealedGrant { proof_key: held(Access::Write, 2, LEN).proof_key, ..good.clone() };
        let reason = refusal(write(&transport, &store.peer(), &guessed, &bytes).await);
        assert!(reason.contains("proof") && reason.contains("wrong"), "{reason}");
        let reason = refusal(read(&transport, &store.peer(), &stolen(&held(Access::Read, 1, LEN)), 1).await);
        assert!(reason.contains("no proof"), "{reason}");
        assert!(store.bytes(0, LEN as usize).iter().all(|byte| *byte == 0), "nothing was written");
        assert!(write(&transport, &store.peer(), &good, &bytes).await.is_ok());
    }
}

#[tokio::test]
async fn a_grant_that_needs_proofs_is_refused_without_one_whatever_the_version() {
    let store = Store::start(LEN).await;
    for version in 1..=NONCE_SINCE {
        let mut client = ByHand::connect(&store, version).await;
        for (kind, access, len) in [(READ, Access::Read, 0), (WRITE, Access::Write, 8)] {
            let (request, _) = client.request(1, kind, &stolen(&held(access, 1, LEN)), len);
            let reason = client.answer(&request, &vec![7; len as usize]).await.unwrap_err();
            assert!(reason.contains("no proof"), "{version}: {reason}");
        }
        // A client of that version with a grant of its time.
        let (request, _) =
            client.request(2, WRITE, &grant(Access::Write, vec![range(8, 8, 1)]).seal_older(&KEY), 8);
        assert_eq!(client.answer(&request, &[7; 8]).await, Ok(()));
        assert_eq!(client.verdict().await, Ok(()));
    }
    assert!(store.bytes(0, 8).iter().all(|byte| *byte == 0), "nothing was written");
}

#[tokio::test]
async fn a_client_of_this_build_is_refused_by_a_proof_less_version_and_served_without_need() {
    let store = Store::start(LEN).await;
    let relay = Relay::to(&store.address).await;
    relay.offer_version_1();
    let (transport, peer) = (TcpTransport::default(), peer_at(&relay.address));
    let reason = refusal(write(&transport, &peer, &held(Access::Write, 1, LEN), &[1; 8]).await);
    assert!(reason.contains("no proof"), "{reason}");
    let granted = grant(Access::Write, vec![range(0, LEN, 1)]).seal_older(&KEY);
    assert!(write(&transport, &peer, &granted, &[1; 8]).await.is_ok());
}

#[tokio::test]
async fn a_recorded_request_is_refused_on_its_connection_and_on_others() {
    let store = Store::start(LEN).await;
    let (mut client, mut other) = (ByHand::connect(&store, 7).await, ByHand::connect(&store, 7).await);
    assert_ne!(client.nonce, other.nonce);
    let grant = held(Access::Write, 1, LEN);
    let (request, _) = client.request(5, WRITE, &grant, 8);
    assert_eq!(client.answer(&request, &[1; 8]).await, Ok(()));
    assert_eq!(client.verdict().await, Ok(()));
    let reason = client.answer(&request, &[2; 8]).await.unwrap_err();
    assert!(reason.contains("repeated"), "{reason}");
    let (earlier, _) = client.request(4, WRITE, &grant, 8);
    let reason = client.answer(&earlier, &[2; 8]).await.unwrap_err();
    assert!(reason.contains("repeated"), "{reason}");
    let reason = other.answer(&request, &[2; 8]).await.unwrap_err();
    assert!(reason.contains("wrong"), "{reason}");
    assert_eq!(store.bytes(0, 8), [1; 8]);
    // Its holder goes on.
    let (next, _) = client.request(6, WRITE, &grant, 8);
    assert_eq!(client.answer(&next, &[3; 8]).await, Ok(()));
}

#[tokio::test]
async fn an_altered_request_is_refused() {
    let store = Store::start(LEN).await;
    let grant = held(Access::Write, 1, LEN);
    let (request, op) = ByHand::connect(&store, 7).await.request(5, WRITE, &grant, 8);
    let proof = request.len() - 16;
    // Each bit of the id, that of a seal, of range and offset, and of the proof. The length decides on the payload.
    let id = (0..64).map(|bit| (bit / 8, bit % 8));
    let place = (0..96).map(|bit| (op + bit / 8, bit % 8));
    let proof = (0..128).map(|bit| (proof + bit / 8, bit % 8));
    for (byte, bit) in id.chain([(9, 0)]).chain(place).chain(proof) {
        let mut client = ByHand::connect(&store, 7).await;
        let (mut request, _) = client.request(5, WRITE, &grant, 8);
        request[byte] ^= 1 << bit;
        let reason = client.answer(&request, &[1; 8]).await.unwrap_err();
        assert!(reason.contains("wrong"), "byte {byte}, bit {bit}: {reason}");
    }
    for len in [0, 7, 9] {
        let mut client = ByHand::connect(&store, 7).await;
        let (mut request, op) = client.request(5, WRITE, &grant, 8);
        request[op + 12..op + 20].copy_from_slice(&u64::to_be_bytes(len));
        let reason = client.answer(&request, &vec![1; len as usize]).await.unwrap_err();
        assert!(reason.contains("wrong"), "length {len}: {reason}");
    }
    // The proof itself is left out, with its bit in the kind.
    let mut client = ByHand::connect(&store, 7).await;
    let (mut request, _) = client.request(5, WRITE, &grant, 8);
    request[9] &= !PROVEN;
    request.truncate(request.len() - 16);
    assert!(client.answer(&request, &[1; 8]).await.unwrap_err().contains("no proof"));
    assert!(store.bytes(0, LEN as usize).iter().all(|byte| *byte == 0), "nothing was written");
}

#[tokio::test]
async fn a_store_may_take_data_in_the_clear_from_those_who_prove_that_they_hold_their_grants() {
    let authority = CertificateAuthority::new();
    let store = Store::start_unencrypted(LEN, authority.issue("store/kv")).await;
    let relay = Relay::to(&store.address).await;
    let mut peer = peer_at(&relay.address);
    peer.endpoints[0].attributes.push(DataEncryption::Off.attribute());
    let transport = TcpTransport::new(options(authority.issue("tenant/team/rw/engine")));
    let bytes = pattern(LEN as usize, 1);
    write(&transport, &peer, &held(Access::Write, 1, LEN), &bytes).await.unwrap();
    assert!(read(&transport, &peer, &held(Access::Read, 1, LEN), bytes.len()).await.unwrap().0 == bytes);
    for wire in [relay.recorded(), relay.recorded_down()] {
        assert!(wire.windows(32).any(|part| part == &bytes[..32]), "in the clear");
    }

    // With a grant that needs no proof the same client goes by TLS.
    let before = relay.recorded().len();
    assert!(read(&transport, &peer, &sealed(Access::Read, 0, LEN, 1), 8).await.is_ok());
    assert_eq!(relay.recorded()[before], 22, "the type of a record of a handshake");

    // Nobody else gets anything over a plain connection.
    let plain = TcpTransport::default();
    let reason = refusal(read(&plain, &peer, &sealed(Access::Read, 0, LEN, 1), 8).await);
    assert!(reason.contains("from clients that show no identity"), "{reason}");
    let reason = refusal(read(&plain, &peer, &stolen(&held(Access::Read, 1, LEN)), 8).await);
    assert!(reason.contains("no proof"), "{reason}");
    let without_certificate = TcpTransport::new(options(authority.anonymous()));
    let reason =
        refusal(read(&without_certificate, &store.peer(), &sealed(Access::Read, 0, LEN, 1), 8).await);
    assert!(reason.contains("show no identity"), "{reason}");

    // A store that encrypts data takes none in the clear, whatever its endpoint is said to be.
    let strict =
        Store::start_secured(LEN, mc_transfer::Timeouts::default(), authority.issue("store/kv")).await;
    let mut peer = strict.peer();
    peer.endpoints[0].attributes.push(DataEncryption::Off.attribute());
    let reason = refusal(write(&transport, &peer, &held(Access::Write, 1, LEN), &bytes).await);
    assert!(reason.contains("requires TLS"), "{reason}");
}
