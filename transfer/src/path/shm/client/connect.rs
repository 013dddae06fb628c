//! The client's end of the connection over which a store gives its descriptors.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use mc_types::SegmentNumber;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::session::SharedSegment;
use crate::control::wire::{HELLO_REPLY_LEN, Hello, HelloReply, SHARING_SINCE, VERSIONS};
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

/// Connects to a store and receives the descriptors of its segments.
pub(crate) async fn connect(peer: &Peer, access: ShmAccess, deadline: Instant) -> Result<Shared, String> {
    match timeout_at(deadline.min(Instant::now() + PATIENCE), receive_all(peer, access)).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the store did not answer within {PATIENCE:?}, or by the deadline")),
    }
}

async fn receive_all(peer: &Peer, access: ShmAccess) -> io::Result<Result<Shared, String>> {
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
        let mut why = vec![0; reply.verdict.reason_len];
        stream.read_exact(&mut why).await?;
        return Ok(Err(String::from_utf8_lossy(&why).into_owned()));
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
