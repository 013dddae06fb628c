//! The connection to a process of this host that shares memory with this store: gives it the descriptors of the segments, and takes
//! those of its memory.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use mc_types::{Grant, Nonce, ProofKey};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::areas::ClientAreas;
use super::requests::ShmServer;
use crate::control::server::{Counters, GrantsTaken, Proofs, Refusal, ServedMemory, check};
use crate::control::wire::{
    HELLO_LEN, Hello, HelloReply, REQUEST_LEN, Request, RequestKind, SHARING_SINCE, SHOWING_SINCE,
    ShmRequest, Status, put_verdict,
};
use crate::memory::Mapping;
use crate::path::shm::files;
use crate::path::shm::record::{MESSAGE_LEN, Message, Record};

/// Longest wait for a client's hello, for room to send it the descriptors, and from the first byte of a message to its last.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at whether a client may still share the memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of reads, or of bytes, that no client can have read between two messages. A message that claims more is
/// refused.
const IMPLAUSIBLE: u64 = 1 << 50;

/// Gives the descriptors to one client and serves its messages. Returns when it must not use them any more, or does not
/// want to. `files` are descriptors of the client that are not closed yet.
pub(crate) async fn share(
    served: &ServedMemory,
    shm: &ShmServer,
    stream: &UnixStream,
    admitted: Result<(), String>,
    files: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    // Before the list is read, so that no change is missed.
    let mut relent = served.relent.subscribe();
    let right = tokio::time::timeout(PATIENCE, hand_over(served, shm, stream, admitted, files)).await??;
    tokio::select! {
        ended = take_messages(served, shm, stream, files) => ended,
        _ = relent.changed() => Ok(()),
        () = right_ended(right, served, shm) => Ok(()),
    }
}

async fn take_messages(
    served: &ServedMemory,
    shm: &ShmServer,
    stream: &UnixStream,
    files: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let mut areas = shm.areas.of_client();
    loop {
        let mut message = [0; MESSAGE_LEN];
        match files::receive(stream, &mut message, PATIENCE, files).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            received => received?,
        }
        take_message(served, stream, &message, files, &mut areas).await?;
        close_all(files).await;
    }
}

/// Why a client may share the memory.
#[derive(Clone, Copy)]
enum Right {
    /// Its user is one of those that may, and no grant was due.
    User,
    /// It has also shown a grant that lets this holder map the memory.
    Holder(u64),
}

/// Returns when a client may not go on: a grant is due by now, its holder was shut out, or it has shown the grant long ago. What a process
/// has mapped it can read until it ends, whatever the store does.
async fn right_ended(right: Right, served: &ServedMemory, shm: &ShmServer) {
    let age = shm.tls.as_ref().map(|tls| tls.random_connection_age());
    let ends = age.and_then(|age| Instant::now().checked_add(age));
    let goes_on = || match right {
        Right::User => !shm.wants_grants(),
        Right::Holder(holder) => {
            !served.authority.has_shut_out(holder) && ends.is_none_or(|ends| Instant::now() < ends)
        }
    };
    while goes_on() {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn take_message(
    served: &ServedMemory,
    stream: &UnixStream,
    message: &[u8; MESSAGE_LEN],
    files: &[OwnedFd],
    areas: &mut ClientAreas<'_>,
) -> io::Result<()> {
    match (Message::decode(message), files) {
        (Some(Message::Read { reads, bytes }), []) if reads.max(bytes) < IMPLAUSIBLE => {
            Counters::add(&served.counters.shm_reads, reads);
            Counters::add(&served.counters.shm_bytes_read, bytes);
        }
        (Some(Message::Area { len }), [file]) => {
            let area = Mapping::of_client(file, len).inspect_err(|error| {
                tracing::debug!(%error, "a client's memory can't be mapped, so its bytes come over TCP");
            });
            let number = area.ok().and_then(|area| areas.add(area)).unwrap_or(0);
            let answer = number.to_be_bytes();
            tokio::time::timeout(PATIENCE, files::send(stream, &answer, &[])).await??;
        }
        (Some(Message::AreaEnd { number }), []) => areas.remove(number),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    Ok(())
}

async fn hand_over(
    served: &ServedMemory,
    shm: &ShmServer,
    stream: &UnixStream,
    admitted: Result<(), String>,
    files: &mut Vec<OwnedFd>,
) -> io::Result<Right> {
    let mut hello = [0; HELLO_LEN];
    files::receive(stream, &mut hello, PATIENCE, files).await?;
    if !files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors with the hello"));
    }
    let hello = Hello::decode(&hello).map_err(io::Error::other)?;
    let version = match check::check_hello(served.identity, served.authority.times(), &hello) {
        Ok(version) => version,
        Err(refusal) => {
            let reply = HelloReply::encode(0, Err((refusal.status(), &refusal.to_string())));
            files::send(stream, &reply, &[]).await?;
            return Err(io::Error::other(refusal));
        }
    };
    let wants_grant = shm.wants_grants();
    let is_able = || match wants_grant && version < SHOWING_SINCE {
        true => {
            Err("the store requires TLS, and the client is too old to show a grant: upgrade it".to_owned())
        }
        false => Ok(()),
    };
    if let Err(why) = admitted.and_then(|()| is_able()) {
        files::send(stream, &HelloReply::encode(0, Err((Status::Identity, &why))), &[]).await?;
        return Err(io::Error::other(why));
    }
    let mut reply = HelloReply::encode(version, Ok(()));
    let nonce = Nonce::random();
    if version >= SHOWING_SINCE {
        reply.push(u8::from(wants_grant));
        reply.extend_from_slice(&nonce.0);
    }
    files::send(stream, &reply, &[]).await?;
    let right = if wants_grant { take_grant(served, stream, nonce, files).await? } else { Right::User };
    let lent = served.lent.load_full();
    for lent in lent.iter() {
        let segment = &lent.segment;
        if let (Some(bytes), Some(stamps)) = (segment.shared(), &lent.stamps) {
            let record = Record { number: segment.number(), len: segment.len() };
            // Clients of earlier versions know of no stamps.
            let files = [bytes, stamps.as_fd()];
            let files = &files[..if version < SHARING_SINCE { 1 } else { 2 }];
            files::send(stream, &record.encode(), files).await?;
        }
    }
    files::send(stream, &Record::END.encode(), &[]).await?;
    Ok(right)
}

/// Takes the grant that a client shows, and answers whether it lets the client map the memory.
async fn take_grant(
    served: &ServedMemory,
    stream: &UnixStream,
    nonce: Nonce,
    files: &mut Vec<OwnedFd>,
) -> io::Result<Right> {
    let mut header = [0; REQUEST_LEN];
    files::receive(stream, &mut header, PATIENCE, files).await?;
    let request = Request::decode(&header).map_err(io::Error::other)?;
    let RequestKind::Shm(ShmRequest::Share(access)) = request.kind else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request that no Unix socket serves"));
    };
    let mut body = vec![0; request.body_len()];
    if !body.is_empty() {
        files::receive(stream, &mut body, PATIENCE, files).await?;
    }
    let (grant, ops, proof) = request.split_body(&body);
    let mut proofs = Proofs::with(nonce);
    proofs.taken = GrantsTaken::WithProofs;
    let prove = |grant: &Grant, key: &ProofKey| proofs.check(grant, key, &header, (&request, ops, proof));
    let opened = served.open_grant(grant, access, prove);
    let mut verdict = Vec::new();
    match opened.and_then(|grant| grant.holder.filter(|_| grant.shares_memory).ok_or(Refusal::NotShared)) {
        Ok(holder) => {
            put_verdict(&mut verdict, Ok(()));
            files::send(stream, &verdict, &[]).await?;
            Ok(Right::Holder(holder))
        }
        Err(refusal) => {
            Counters::add(&served.counters.refusals, 1);
            put_verdict(&mut verdict, Err((refusal.status(), &refusal.to_string())));
            files::send(stream, &verdict, &[]).await?;
            Err(io::Error::other(refusal))
        }
    }
}

/// Closes a client's connection, and descriptors of it, apart from the runtime's threads, and then gives its place back.
///
/// Descriptors that were not received close with the connection. The end of one can take as long as its client likes: a socket may
/// wait for a peer that takes no bytes.
pub(crate) fn close((stream, files): (UnixStream, Vec<OwnedFd>), place: OwnedSemaphorePermit) {
    if let Ok(stream) = stream.into_std() {
        drop(tokio::task::spawn_blocking(move || {
            drop((stream, files));
            drop(place);
        }));
    }
}

/// Closes descriptors of a client apart from the runtime's threads, and waits for that, so that each client has one such thread at most.
async fn close_all(files: &mut Vec<OwnedFd>) {
    if !files.is_empty() {
        let files = std::mem::take(files);
        // The runtime may end before.
        let _ = tokio::task::spawn_blocking(move || drop(files)).await;
    }
}
