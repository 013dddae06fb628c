//! Places of a store for processes that share its memory: who can take one, and for how long.
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::host::{Host, MIB, client, read};
use common::{CLUSTER, pattern, until};
use mc_transfer::{ShmAccess, socket_name};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
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

/// A client that has the store's memory.
async fn connected(host: &Host) -> tokio::net::UnixStream {
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
    stream
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
    let mut stream = connected(&host).await;
    stream.write_all(&[0, 0, 0, 1, 0]).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut [0])).await;
    assert_eq!(ended.expect("the session has its place for ever").unwrap_or(0), 0);
}

/// A socket whose end waits for an hour for a peer that takes no bytes, and that peer.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::from_secs(3600))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    (stream, peer)
}

/// All of the store and the client is on one thread here.
#[tokio::test]
async fn a_descriptor_that_takes_long_to_close_holds_up_no_thread_of_the_runtime() {
    let host = Host::start(ShmAccess::SameUid, MIB).await;
    let value = pattern(MIB, 1);
    host.write(0, &value, 5).await;
    let [one, two] = [lingering(), lingering()];
    let peers = [one.1, two.1];
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let in_time = is_done.recv_timeout(Duration::from_secs(20)).is_ok();
        // Ends the wait, in any case.
        drop(peers);
        in_time
    });
    // The store has the only descriptors then. The first one is closed after the answer to its message, for which the connection is
    // kept, and the second one comes with a message that is not read to its end.
    let mut kept = Vec::new();
    for (lingering, is_received) in [(one.0, true), (two.0, false)] {
        let stream = connected(&host).await;
        let message = if is_received { [&[0, 0, 0, 2][..], &[0; 16]].concat() } else { vec![0] };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [lingering.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let message = [IoSlice::new(&message)];
        rustix::net::sendmsg(stream.as_fd(), &message, &mut ancillary, SendFlags::empty()).unwrap();
        kept.extend(is_received.then_some(stream));
    }
    let (transport, shared) = client(ShmAccess::SameUid);
    assert!(read(&transport, &host, &host.peer, (0, MIB, 5)).await.unwrap() == value);
    assert_eq!(shared.load(Ordering::SeqCst), MIB as u64);
    let answered = host.server.counters();
    until("the store is told", || answered.shm_bytes_read.load(Ordering::SeqCst) == MIB as u64).await;
    done.send(()).unwrap();
    assert!(watchdog.join().unwrap(), "the runtime waited for a peer of a client");
}
