use futures::future::BoxFuture;
use mc_base::SealedGrant;
use mc_transfer::{Checksum, Peer, ReadOp, TransferError, Transport, WriteOp};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct NoTransport;

impl Transport for NoTransport {
    fn read<'a>(
        &'a self,
        peer: &'a Peer,
        _: &'a SealedGrant,
        ops: &'a mut [ReadOp<'_>],
        _: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        let e = TransferError::NoEndpoint { store: peer.store, offered: String::new() };
        Box::pin(async move { vec![Err(e); ops.len()] })
    }

    fn write<'a>(
        &'a self,
        peer: &'a Peer,
        _: &'a SealedGrant,
        ops: &'a [WriteOp<'_>],
        _: Instant,
    ) -> BoxFuture<'a, Vec<Result<Checksum, TransferError>>> {
        let e = TransferError::NoEndpoint { store: peer.store, offered: String::new() };
        Box::pin(async move { vec![Err(e); ops.len()] })
    }
}
