//! Bytes of values over the simulated network. The client's end is a transport of the real client; the store's end hands
//! each request to the store's own checks of grants and fences, and to its memory.
//!
//! Transfers over TCP are not simulated: they call the kernel for each byte, on sockets of its own. So requests come here
//! in a format of the simulation's, and enter the store as those of a client in its own process do. A write enters it
//! piece by piece as its bytes arrive, so that other puts come in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mc_client::{
    Bytes, Checksum, Peer, ReadBuffer, ReadOp, Seal, SealedGrant, TransferError, Transport, WriteBuffer,
    WriteOp, Written,
};
use mc_net::Network;
use mc_types::{ClusterId, Receipt, SegmentEpoch, StoreId};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout_at};

/// Bytes of a write that enter the store at once.
const PIECE: usize = 64 << 10;
/// Bytes after which a sender pauses for a millisecond: a link carries 250 MB/s.
const BURST: usize = 256 << 10;
/// A call that takes longer has stalled.
const STALLED: Duration = Duration::from_millis(1_200);

const READ: u8 = 0;
const WRITE: u8 = 1;
const WRITE_AND_SEAL: u8 = 2;

/// The client's end, on one host.
#[derive(Debug)]
pub(crate) struct Carrier(pub(crate) Arc<dyn Network>);

/// Place of an operation in a granted range.
struct Place {
    range: u32,
    offset: u64,
    len: u64,
}

impl Carrier {
    /// Sends a request and its payload, and returns the answer to each operation: the bytes of a read, the receipt of a seal.
    async fn call(
        &self,
        peer: &Peer,
        grant: &SealedGrant,
        (kind, places): (u8, &[Place]),
        payload: &[u8],
        deadline: Instant,
    ) -> Vec<Result<Vec<u8>, TransferError>> {
        let store = peer.store;
        let address = peer.endpoints.first().map(|endpoint| endpoint.address.clone()).unwrap_or_default();
        let stalled = Instant::now() + STALLED;
        let answered = timeout_at(deadline.min(stalled), async {
            let mut stream = match self.0.connect(&address).await {
                Ok(stream) => stream,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(TransferError::Connect { store, address: address.clone(), reason });
                }
            };
            let exchanged = exchange(&mut stream, peer, grant, (kind, places), payload).await;
            exchanged.map_err(|error| {
                let reason = error.to_string();
                TransferError::Broken { store, address: address.clone(), reason }
            })
        });
        let failed = match answered.await {
            Ok(Ok(answers)) => {
                let refused = || TransferError::Refused { store, reason: "the store's checks".to_owned() };
                return answers.into_iter().map(|answer| answer.ok_or_else(refused)).collect();
            }
            Ok(Err(failed)) => failed,
            Err(_) if stalled < deadline => {
                TransferError::Stalled { store, address, reason: "no answer".to_owned() }
            }
            Err(_) => TransferError::Deadline { store, address },
        };
        vec![Err(failed); places.len()]
    }
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &Peer,
    grant: &SealedGrant,
    (kind, places): (u8, &[Place]),
    payload: &[u8],
) -> io::Result<Vec<Option<Vec<u8>>>> {
    let mut head = vec![kind];
    head.extend(peer.cluster.to_bytes());
    head.extend(peer.store.to_bytes());
    head.extend(peer.epoch.to_bytes());
    head.extend((grant.bytes.len() as u32).to_be_bytes());
    head.extend((places.len() as u32).to_be_bytes());
    head.extend(&grant.bytes);
    for place in places {
        head.extend(place.range.to_be_bytes());
        head.extend(place.offset.to_be_bytes());
        head.extend(place.len.to_be_bytes());
    }
    stream.write_all(&head).await?;
    send(stream, payload).await?;
    let mut answers = Vec::with_capacity(places.len());
    for place in places {
        let good = stream.read_u8().await? == 1;
        let len = match kind {
            READ => place.len as usize,
            WRITE_AND_SEAL => Receipt::LEN,
            _ => 0,
        };
        let mut bytes = vec![0; if good { len } else { 0 }];
        stream.read_exact(&mut bytes).await?;
        answers.push(good.then_some(bytes));
    }
    Ok(answers)
}

/// Sends bytes as fast as a link carries them.
async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for burst in bytes.chunks(BURST) {
        for piece in burst.chunks(PIECE) {
            stream.write_all(piece).await?;
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

impl Transport for Carrier {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(async move {
            let len = |op: &ReadOp<'_>| op.into.iter().map(|buffer| buffer.len() as u64).sum();
            let place = |op: &ReadOp<'_>| Place { range: op.range, offset: op.offset, len: len(op) };
            let places: Vec<_> = ops.iter().map(place).collect();
            let answers = self.call(peer, grant, (READ, &places), &[], deadline).await;
            let fill = |(op, answer): (&mut ReadOp<'_>, Result<Vec<u8>, TransferError>)| {
                let bytes = answer?;
                let mut rest = &bytes[..];
                for buffer in &mut op.into {
                    let (now, later) = rest.split_at(buffer.len());
                    buffer.fill(now).expect("memory of this process alone");
                    rest = later;
                }
                Ok(Checksum::of(&bytes))
            };
            ops.iter_mut().zip(answers).map(fill).collect()
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        seal: Seal,
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Written, TransferError>>> {
        Box::pin(async move {
            let (mut payload, mut places, mut sums) = (Vec::new(), Vec::new(), Vec::new());
            for op in ops {
                let from = payload.len();
                op.from.iter().for_each(|buffer| buffer.append_to(&mut payload));
                let bytes = &payload[from..];
                places.push(Place { range: op.range, offset: op.offset, len: bytes.len() as u64 });
                sums.push(Checksum::of(bytes));
            }
            let kind = if seal == Seal::Yes { WRITE_AND_SEAL } else { WRITE };
            let answers = self.call(peer, grant, (kind, &places), &payload, deadline).await;
            let written = |(answer, checksum): (Result<Vec<u8>, TransferError>, Checksum)| {
                Ok(Written { checksum, receipt: Receipt::from_bytes(&answer?) })
            };
            answers.into_iter().zip(sums).map(written).collect()
        })
    }
}

/// A store's end.
#[derive(Clone)]
pub(crate) struct Served {
    /// The transport of the store's own process.
    pub(crate) memory: Arc<dyn Transport>,
    /// Counts the operations that the store's checks refused.
    pub(crate) refused: Arc<AtomicUsize>,
}

/// Serves one connection of a client.
pub(crate) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    Served { memory, refused }: Served,
) -> io::Result<()> {
    let kind = stream.read_u8().await?;
    let peer = Peer {
        cluster: ClusterId(stream.read_u128().await?),
        store: StoreId(stream.read_u64().await?),
        epoch: SegmentEpoch(stream.read_u64().await?),
        // What the store's checks refuse goes nowhere else.
        endpoints: Vec::new(),
    };
    let (grant_len, ops) = (stream.read_u32().await?, stream.read_u32().await?);
    let mut grant = vec![0; grant_len as usize];
    stream.read_exact(&mut grant).await?;
    let grant = SealedGrant::from(Bytes::from(grant));
    let mut places = Vec::new();
    for _ in 0..ops {
        let (range, offset) = (stream.read_u32().await?, stream.read_u64().await?);
        places.push(Place { range, offset, len: stream.read_u64().await? });
    }
    let mut answer = Vec::new();
    for place in places {
        if kind == READ {
            let mut bytes = vec![0; place.len as usize];
            let into = vec![ReadBuffer::from(&mut bytes[..])];
            let mut op = [ReadOp { range: place.range, offset: place.offset, into }];
            let read = memory.read(&peer, &grant, &mut op, Instant::now() + STALLED).await;
            drop(op);
            let good = read.iter().all(Result::is_ok);
            refused.fetch_add(usize::from(!good), Ordering::Relaxed);
            answer.push(u8::from(good));
            if good {
                answer.extend(bytes);
            }
        } else {
            let seal = kind == WRITE_AND_SEAL;
            let written = write(&mut stream, &*memory, (&peer, &grant), &place, seal).await?;
            refused.fetch_add(usize::from(written.is_none()), Ordering::Relaxed);
            answer.push(u8::from(written.is_some()));
            answer.extend(written.flatten().iter().flat_map(|receipt| receipt.to_bytes()));
        }
    }
    send(&mut stream, &answer).await?;
    stream.shutdown().await
}

/// Writes the bytes of one operation as they arrive, and then seals their range. `None` unless all of that was done.
async fn write(
    stream: &mut (impl AsyncRead + Unpin),
    memory: &dyn Transport,
    (peer, grant): (&Peer, &SealedGrant),
    place: &Place,
    seal: bool,
) -> io::Result<Option<Option<Receipt>>> {
    let (mut done, mut written) = (0, Some(None));
    loop {
        let mut piece = vec![0; PIECE.min((place.len - done) as usize)];
        stream.read_exact(&mut piece).await?;
        let last = done + piece.len() as u64 == place.len;
        let sealing = if last && seal { Seal::Yes } else { Seal::No };
        let op = WriteOp {
            range: place.range,
            offset: place.offset + done,
            from: vec![WriteBuffer::from(&piece[..])],
        };
        // The bytes of a refused write are read and dropped.
        if written.is_some() {
            let answer = memory.write(peer, grant, &[op], sealing, Instant::now() + STALLED).await.remove(0);
            written = answer.ok().map(|answer| answer.receipt);
        }
        done += piece.len() as u64;
        if last {
            return Ok(written);
        }
    }
}
