//! A transport whose stores are maps.

use std::time::Duration;

use futures::future::BoxFuture;
// From the client alone: a program with a transport of its own needs no other crate of the pool.
use mc_client::{
    Checksum, Peer, ReadBuffer, ReadOp, Seal, SealedGrant, StoreId, TransferError, Transport, WriteOp,
    Written,
};
use tokio::time::{Instant, sleep_until};

use super::world::{Shared, StoreHealth, receipt};

/// A store that is silent for so long is taken for dead.
const STALL: Duration = Duration::from_millis(50);

/// Reads and writes the world's memory, or fails as the world says.
#[derive(Debug)]
pub struct FakeTransport(pub Shared);

impl FakeTransport {
    async fn reach(&self, store: StoreId, deadline: Instant) -> Result<(), TransferError> {
        self.0.lock().tried.push(store);
        let health = || self.0.lock().stores.get(&store).copied().unwrap_or(StoreHealth::Dead);
        while health() == StoreHealth::Held {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let address = "fake".to_owned();
        match health() {
            StoreHealth::Well => Ok(()),
            StoreHealth::Dead => {
                Err(TransferError::Connect { store, address, reason: "connection refused".into() })
            }
            StoreHealth::Stopped | StoreHealth::Held => {
                sleep_until(deadline.min(Instant::now() + STALL)).await;
                Err(TransferError::Stalled { store, address, reason: "no byte moved".into() })
            }
            StoreHealth::Busy => {
                sleep_until(deadline).await;
                Err(TransferError::Queued { store, address })
            }
            StoreHealth::WithoutRdma => Err(TransferError::RdmaOff),
        }
    }

    fn offset(&self, grant: &SealedGrant, range: u32) -> u64 {
        let number = u64::from_be_bytes(grant.bytes[..].try_into().unwrap());
        self.0.lock().grants[usize::try_from(number).unwrap()][range as usize]
    }
}

impl Transport for FakeTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        grant: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        Box::pin(async move {
            let delay = self.0.lock().read_delay;
            tokio::time::sleep(delay).await;
            if let Err(error) = self.reach(peer.store, deadline).await {
                return vec![Err(error); ops.len()];
            }
            let read = |op: &mut ReadOp<'_>| {
                let offset = self.offset(grant, op.range);
                let mut world = self.0.lock();
                world.reads += 1;
                world.buffers.push(op.into.iter().map(|into| (into.as_ptr() as usize, into.len())).collect());
                let begin = usize::try_from(op.offset).unwrap();
                let end = begin + op.into.iter().map(ReadBuffer::len).sum::<usize>();
                let bytes = world.memory.get(&(peer.store, offset)).and_then(|bytes| bytes.get(begin..end));
                let Some(bytes) = bytes else {
                    return Err(TransferError::Refused { store: peer.store, reason: "superseded".into() });
                };
                let mut rest = bytes;
                for into in &mut op.into {
                    let (now, after) = rest.split_at(into.len());
                    into.fill(now).unwrap();
                    rest = after;
                }
                Ok(super::checksum(bytes))
            };
            ops.iter_mut().map(read).collect()
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
            if let Err(error) = self.reach(peer.store, deadline).await {
                return vec![Err(error); ops.len()];
            }
            let write = |op: &WriteOp<'_>| {
                let offset = self.offset(grant, op.range);
                let mut bytes = Vec::new();
                op.from.iter().for_each(|from| from.append_to(&mut bytes));
                let receipt = (seal == Seal::Yes).then(|| receipt((peer.store, offset)));
                let written = Written { checksum: super::checksum(&bytes), receipt };
                let mut world = self.0.lock();
                if world.sealed.contains(&(peer.store, offset)) {
                    // One that comes again, because its answer was lost, is acknowledged and not written.
                    if seal == Seal::Yes {
                        return Ok(written);
                    }
                    let reason = "the range is sealed".to_owned();
                    return Err(TransferError::Refused { store: peer.store, reason });
                }
                if seal == Seal::Yes {
                    world.sealed.insert((peer.store, offset));
                }
                if op.from.is_empty() {
                    return Ok(written);
                }
                world.writes += 1;
                world.buffers.push(op.from.iter().map(|from| (from.as_ptr() as usize, from.len())).collect());
                let begin = usize::try_from(op.offset).unwrap();
                let memory = world.memory.entry((peer.store, offset)).or_default();
                memory.resize(memory.len().max(begin + bytes.len()), 0);
                memory[begin..begin + bytes.len()].copy_from_slice(&bytes);
                Ok(written)
            };
            ops.iter().map(write).collect()
        })
    }
}
