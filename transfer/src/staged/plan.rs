//! Plans which bytes of a call go through which buffer.

use mc_cuda::{Device, DeviceCopy};

use crate::RawBytes;

/// Bytes that go through a buffer at the same time.
#[derive(Debug)]
pub(super) struct Piece {
    /// Whole operations, or one cut of an operation that is longer than a buffer.
    pub(super) cuts: Vec<Cut>,
    /// Whether its operations are whole.
    pub(super) is_whole: bool,
}

/// Bytes of an operation in a buffer.
#[derive(Debug)]
pub(super) struct Cut {
    /// Index of the operation.
    pub(super) op: usize,
    /// Offset of its first byte among those of the operation.
    pub(super) offset: u64,
    /// Offset in the buffer.
    pub(super) at: usize,
    pub(super) len: usize,
    /// The bytes outside of the buffer.
    pub(super) parts: Vec<RawBytes>,
}

/// Copies between a buffer and the parts of a piece.
pub(super) struct Copies {
    /// Parts in memory of the host, each with its offset in the buffer.
    pub(super) of_host: Vec<(usize, RawBytes)>,
    pub(super) of_devices: Vec<DeviceCopy>,
}

/// Cuts operations, each with its index and its bytes, into pieces of at most `most` bytes. An operation is cut only if it is longer.
pub(super) fn cut(ops: impl Iterator<Item = (usize, Vec<RawBytes>)>, most: usize) -> Vec<Piece> {
    let (mut pieces, mut cuts, mut used) = (Vec::new(), Vec::new(), 0);
    let mut whole = |cuts: &mut Vec<Cut>| {
        if !cuts.is_empty() {
            pieces.push(Piece { cuts: std::mem::take(cuts), is_whole: true });
        }
    };
    let mut long = Vec::new();
    for (op, parts) in ops {
        let len: usize = parts.iter().map(RawBytes::len).sum();
        if len > most {
            long.push((op, parts));
            continue;
        }
        if used + len > most {
            whole(&mut cuts);
            used = 0;
        }
        cuts.push(Cut { op, offset: 0, at: used, len, parts });
        used += len;
    }
    whole(&mut cuts);
    for (op, parts) in long {
        let (mut offset, mut rest) = (0, parts.into_iter().filter(|part| !part.is_empty()).peekable());
        while rest.peek().is_some() {
            let (mut parts, mut len) = (Vec::new(), 0);
            while let Some(part) = rest.peek_mut().filter(|_| len < most) {
                let (now, later) = part.split_at(part.len().min(most - len));
                len += now.len();
                parts.push(now);
                *part = later;
                if later.is_empty() {
                    rest.next();
                }
            }
            pieces.push(Piece { cuts: vec![Cut { op, offset, at: 0, len, parts }], is_whole: false });
            offset += len as u64;
        }
    }
    pieces
}

/// One of the devices in whose memory bytes lie.
pub(super) fn device(parts: &[RawBytes]) -> Option<Device> {
    parts.iter().find_map(|part| part.device())
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        self.cuts.last().map_or(0, |cut| cut.at + cut.len)
    }

    pub(super) fn copies(&self) -> Copies {
        let (mut of_host, mut of_devices) = (Vec::new(), Vec::new());
        for (at, part) in self.parts().filter(|(_, part)| !part.is_empty()) {
            let (address, len) = (part.as_ptr() as u64, part.len());
            match part.device() {
                Some(device) => of_devices.push(DeviceCopy { device, address, at, len }),
                None => of_host.push((at, part)),
            }
        }
        Copies { of_host, of_devices }
    }

    /// Its parts, each with its offset in the buffer.
    fn parts(&self) -> impl Iterator<Item = (usize, RawBytes)> {
        self.cuts.iter().flat_map(|cut| {
            cut.parts.iter().scan(cut.at, |end, part| {
                let at = *end;
                *end += part.len();
                Some((at, *part))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use proptest::prelude::*;

    use super::*;

    /// Bytes that are never used.
    fn bytes(from: usize, len: usize) -> RawBytes {
        let base = NonNull::new(std::ptr::without_provenance_mut(from)).unwrap();
        RawBytes::of_buffer(base, len, None)
    }

    proptest! {
        #[test]
        fn pieces_have_every_byte_once_and_in_order_and_cut_only_what_is_longer(
            ops in prop::collection::vec(prop::collection::vec(0..40_usize, 0..5), 0..10)
        ) {
            let mut next = 1;
            let mut place = |len: usize| { next += len; bytes(next - len, len) };
            let ops: Vec<Vec<RawBytes>> =
                ops.into_iter().map(|op| op.into_iter().map(&mut place).collect()).collect();
            let (mut seen, mut cut_ops) = (vec![Vec::new(); ops.len()], vec![0; ops.len()]);
            for piece in cut(ops.iter().cloned().enumerate(), 50) {
                prop_assert!(piece.len() <= 50 && (piece.is_whole || piece.cuts.len() == 1));
                let mut end = 0;
                for part in piece.cuts {
                    prop_assert_eq!((part.at, part.offset), (end, seen[part.op].len() as u64));
                    end += part.len;
                    cut_ops[part.op] += 1;
                    for bytes in &part.parts {
                        seen[part.op].extend(bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len());
                    }
                    prop_assert_eq!(seen[part.op].len() as u64, part.offset + part.len as u64);
                }
            }
            for (op, (seen, cuts)) in ops.iter().zip(seen.iter().zip(cut_ops)) {
                let all: Vec<usize> =
                    op.iter().flat_map(|part| part.as_ptr() as usize..part.as_ptr() as usize + part.len()).collect();
                prop_assert_eq!(seen, &all);
                prop_assert_eq!(cuts, all.len().div_ceil(50).max(1));
            }
        }
    }
}
