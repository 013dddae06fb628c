//! Requests about bytes that go through shared memory.

use crate::control::client::pieces::{InArea, Piece};
use crate::control::client::{OutOfBand, Refused};
use crate::control::wire::{KINDS_SINCE, RequestKind, SHARING_SINCE, ShmRequest};
use crate::transport::Seal;

/// Asks whether bytes that were read past the store before are good: (range, offset, length) of each operation.
pub(crate) fn checks(ops: &[(u32, u64, u64)]) -> OutOfBand {
    let piece = |(op, (range, offset, len)): (usize, &(u32, u64, u64))| Piece {
        len: *len,
        ..Piece::empty(op, *range, *offset)
    };
    let refused = |version| {
        let reason = format!("it speaks version {version} of the transfer protocol, which has no checks");
        Refused::for_good(reason)
    };
    let pieces = ops.iter().enumerate().map(piece).collect();
    OutOfBand::new(RequestKind::Shm(ShmRequest::Check), (KINDS_SINCE, refused), pieces)
}

/// Writes bytes that the store copies out of areas by itself.
pub(crate) fn area_writes(pieces: Vec<Piece<InArea>>, seal: Seal) -> OutOfBand {
    let refused = |version| {
        let reason = format!("it speaks version {version} of the transfer protocol");
        Refused { other_way: true, ..Refused::for_good(reason) }
    };
    OutOfBand::new(RequestKind::Shm(ShmRequest::Write(seal)), (SHARING_SINCE, refused), pieces)
}
