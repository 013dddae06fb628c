//! Places of a store for processes that share its memory: who can take one, and for how long.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::CLUSTER;
use common::host::{Host, MIB, client, read};
use common::pattern;
use mc_transfer::{ShmAccess, socket_name};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// More than a store has.
const PLACES: usize = 150;

/// Makes connections as another user.
fn connect_as(uid: libc::uid_t, name: &str, count: usize) -> Vec<UnixStream> {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let connect = move || {
        // SAFETY: the system call changes the user of this thread alone, which ends here.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
        (0..count).map(|_| UnixStream::connect_addr(&address).unwrap()).collect()
    };
    std::thread::spawn(connect).join().unwrap()
}

#[tokio::test]
async fn processes_that_may_not_share_memory_take_no_places() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can connect as another user");
        return;
    }
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let name = socket_name(host.store, host.peer.epoch);
    let strangers = tokio::task::spawn_blocking(move || connect_as(12_345, &name, PLACES)).await.unwrap();
    let value = pattern(MIB, 1);
    host.write(0, &value, 5).await;
    let (transport, shared) = client(ShmAccess::SameUid);
    assert!(read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap() == value);
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64);
    drop(strangers);
}

#[tokio::test]
async fn a_message_that_does_not_come_to_its_end_ends_the_session() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let mut stream = mc_net::connect_local(&socket_name(host.store, host.peer.epoch)).unwrap();
    let mut hello = b"mcTX\0\x01\0\x04".to_vec();
    hello.extend_from_slice(&CLUSTER.0.to_be_bytes());
    hello.extend_from_slice(&host.store.0.to_be_bytes());
    hello.extend_from_slice(&host.peer.epoch.0.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    // Hello reply, the record of one segment, and the end of the list.
    for len in [13, 12, 12] {
        stream.read_exact(&mut vec![0; len]).await.unwrap();
    }
    stream.write_all(&[0, 0, 0, 1, 0]).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut [0])).await;
    assert_eq!(ended.expect("the session has its place for ever").unwrap_or(0), 0);
}
