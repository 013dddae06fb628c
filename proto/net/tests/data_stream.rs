//! Connections of the data port with TLS, moved by hand.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::io;
use std::sync::Arc;

use mc_net::{DataStream, Peer, Tls};
use mc_types::TlsLevel;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

/// Certificates of a store and of a client, by one authority.
fn certificates() -> [Arc<Tls>; 2] {
    let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    ["store/kv", "admin/root"].map(|role| {
        let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate().unwrap());
        params.subject_alt_names = vec![SanType::URI(format!("spiffe://here/mc/{role}").try_into().unwrap())];
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        let files = [("ca.crt", &authority), ("tls.crt", &certificate), ("tls.key", &key.serialize_pem())];
        files.iter().for_each(|(name, content)| std::fs::write(dir.path().join(name), content).unwrap());
        Tls::load(dir.path()).unwrap()
    })
}

/// Both ends of a connection: of the store, and of the client.
async fn connected() -> [DataStream; 2] {
    let [store, client] = certificates();
    let listener = mc_net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let accepted = async { DataStream::accept(listener.accept().await.unwrap().0, Some(&store)).await };
    let (store, client) = tokio::join!(accepted, DataStream::connect(address, Some(&client), None));
    [store.unwrap(), client.unwrap()]
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

async fn send(stream: &DataStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => {
                assert!(would_block(&error), "{error}");
                stream.writable().await.unwrap();
            }
        }
    }
    while let Err(error) = stream.try_flush() {
        assert!(would_block(&error) && stream.unsent() > 0, "{error}");
        stream.writable().await.unwrap();
    }
    assert_eq!(stream.unsent(), 0);
}

async fn receive(stream: &DataStream, len: usize) -> Vec<u8> {
    let (mut bytes, mut done) = (vec![0; len], 0);
    while done < len {
        // Reads of all sizes, which leave decrypted bytes behind.
        let end = len.min(done + 1 + done % 70_000);
        match stream.try_read(&mut bytes[done..end]) {
            Ok(0) => panic!("closed after {done} bytes"),
            Ok(n) => done += n,
            Err(error) => {
                assert!(would_block(&error), "{error}");
                stream.free_buffers();
                stream.readable().await.unwrap();
            }
        }
    }
    bytes
}

#[tokio::test]
async fn bytes_come_whole_both_ways_at_once() {
    const LEN: usize = 8 << 20;
    let [store, client] = connected().await;
    let [up, down] =
        [251, 241].map(|step| (0..LEN).map(|at| (at % 253 + at / step) as u8).collect::<Vec<u8>>());
    let (_, got_up, _, got_down) =
        tokio::join!(send(&client, &up), receive(&store, LEN), send(&store, &down), receive(&client, LEN));
    assert!(got_up == up && got_down == down);
    assert!(store.is_quiet() && client.is_quiet());
}

#[tokio::test]
async fn each_end_knows_the_other_and_its_close() {
    let [store, client] = connected().await;
    let named = |id: &str| Peer::Named(Arc::new(id.parse().unwrap()));
    assert_eq!(store.peer(), &named("spiffe://here/mc/admin/root"));
    assert_eq!(client.peer(), &named("spiffe://here/mc/store/kv"));
    assert!(client.plain().is_none() && client.is_quiet());

    send(&store, b"two").await;
    assert!(client.has_bytes().await.unwrap());
    assert_eq!(client.try_read_with(|bytes| bytes.len() - 1).unwrap(), 2);
    assert!(!client.is_quiet(), "a byte is left that the socket does not have");
    client.readable().await.unwrap();
    assert_eq!(receive(&client, 1).await, b"o");
    assert!(client.try_read(&mut [0]).is_err_and(|error| would_block(&error)));

    drop(store);
    assert!(!client.has_bytes().await.unwrap());
    assert_eq!(client.try_read(&mut [0]).unwrap(), 0);
    assert!(!client.is_quiet());
}

#[tokio::test]
async fn a_client_that_prefers_tls_is_plain_with_a_store_that_has_none() {
    let [_, client] = certificates();
    client.set_level_to_stores(TlsLevel::Prefer);
    let listener = mc_net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let accepting = async {
        // It takes the handshake for something else and closes.
        drop(listener.accept().await.unwrap());
        DataStream::accept(listener.accept().await.unwrap().0, None).await.unwrap()
    };
    let (store, client) = tokio::join!(accepting, DataStream::connect(address, Some(&client), None));
    assert!(store.plain().is_some() && client.unwrap().plain().is_some());
    assert_eq!(store.peer(), &Peer::Plain);
}
