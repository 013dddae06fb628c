//! The client's end of the connection over which a store gives its descriptors.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use mc_types::{Access, Nonce, SealedGrant, SegmentNumber};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::session::SharedSegment;
use crate::control::client::put_request;
use crate::control::server::Refusal;
use crate::control::wire::{
    HELLO_REPLY_LEN, Hello, HelloReply, RequestKind, SHARING_SINCE, SHOWING_SINCE, ShmRequest, VERDICT_LEN,
    VERSIONS, VerdictHeader,
};
use crate::memory::{Mapping, stamps_len};
use crate::path::shm::access::ShmAccess;
use crate::path::shm::files;
use crate::path::shm::record::{RECORD_LEN, Record, socket_name};
use crate::transport::Peer;

/// Longest time to connect and to receive all descriptors.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of segments of a store.
const MOST: usize = 4096;

/// Connection to a store, the segments that it shares, and whether it takes messages and areas.
type Shared = (UnixStream, HashMap<SegmentNumber, SharedSegment>, bool);

/// Connects to a store and receives the descriptors of its segments. A store that requires TLS is shown the grant, which permits
/// `asked`.
pub(crate) async fn connect(
    peer: &Peer,
    access: ShmAccess,
    (grant, asked): (&SealedGrant, Access),
    deadline: Instant,
) -> Result<Shared, String> {
    match timeout_at(deadline.min(Instant::now() + PATIENCE), receive_all(peer, access, grant, asked)).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the store did not answer within {PATIENCE:?}, or by the deadline")),
    }
}

async fn receive_all(
    peer: &Peer,
    access: ShmAccess,
    grant: &SealedGrant,
    asked: Access,
) -> io::Result<Result<Shared, String>> {
    let name = socket_name(peer.store, peer.epoch);
    let mut stream = match mc_net::connect_local(&name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let why = "the store is on another host or in another network namespace, or offers none";
            return Ok(Err(why.to_owned()));
        }
        connected => connected?,
    };
    // Anybody may have taken the name.
    if let Err(why) = access.admits(stream.peer_cred()?.uid()) {
        return Ok(Err(why));
    }
    let hello = Hello { versions: VERSIONS, cluster: peer.cluster, store: peer.store, epoch: peer.epoch };
    stream.write_all(&hello.encode()).await?;
    let mut reply = [0; HELLO_REPLY_LEN];
    stream.read_exact(&mut reply).await?;
    let reply = HelloReply::decode(&reply).map_err(io::Error::other)?;
    if !reply.verdict.good {
        return Ok(Err(reason(&mut stream, reply.verdict).await?));
    }
    if reply.chosen >= SHOWING_SINCE {
        let (due, mut nonce) = (stream.read_u8().await? != 0, [0; Nonce::LEN]);
        stream.read_exact(&mut nonce).await?;
        if due && !grant.shares_memory() {
            return Ok(Err(Refusal::NotShared.to_string()));
        }
        if due && let Err(why) = show(&mut stream, grant, asked, Nonce(nonce)).await? {
            return Ok(Err(why));
        }
    }
    let sharing = reply.chosen >= SHARING_SINCE;
    let mut segments = HashMap::new();
    loop {
        let mut record = [0; RECORD_LEN];
        let mut descriptors = Vec::new();
        files::receive(&stream, &mut record, PATIENCE, &mut descriptors).await?;
        let Record { number, len } = Record::decode(&record);
        match descriptors.as_slice() {
            _ if (Record { number, len }) == Record::END => return Ok(Ok((stream, segments, sharing))),
            [bytes, stamps @ ..] if stamps.len() == usize::from(sharing) && segments.len() < MOST => {
                let map = || {
                    let stamps = stamps.first().map(|file| Mapping::of_another(file, stamps_len(len)));
                    let bytes = Mapping::of_another(bytes, len)?;
                    Ok::<_, io::Error>(SharedSegment { bytes, stamps: stamps.transpose()? })
                };
                match map() {
                    Ok(segment) => drop(segments.insert(number, segment)),
                    Err(error) => return Ok(Err(format!("segment {number} can't be mapped: {error}"))),
                }
            }
            _ => {
                return Ok(Err(format!("segment {number} came with {} descriptors", descriptors.len())));
            }
        }
    }
}

/// Shows the store a grant that lets its holder map the memory.
async fn show(
    stream: &mut UnixStream,
    grant: &SealedGrant,
    asked: Access,
    nonce: Nonce,
) -> io::Result<Result<(), String>> {
    let mut request = Vec::new();
    put_request(&mut request, (1, RequestKind::Shm(ShmRequest::Share(asked)), 0), grant, Some(nonce), |_| {});
    stream.write_all(&request).await?;
    let mut verdict = [0; VERDICT_LEN];
    stream.read_exact(&mut verdict).await?;
    let verdict = VerdictHeader::decode(&verdict).map_err(io::Error::other)?;
    if verdict.good { Ok(Ok(())) } else { Ok(Err(reason(stream, verdict).await?)) }
}

/// Reads the reason of a refusal.
async fn reason(stream: &mut UnixStream, verdict: VerdictHeader) -> io::Result<String> {
    let mut why = vec![0; verdict.reason_len];
    stream.read_exact(&mut why).await?;
    Ok(String::from_utf8_lossy(&why).into_owned())
}
