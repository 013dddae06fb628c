//! The parts of an object that a read wants, and the memory that receives them.

use bytes::Bytes;
use mc_transfer::{ReadBuffer, ReadOp, StagedTransport};
use mc_types::Code;

use crate::Error;
use crate::core::device_error;
use crate::range::{ByteRange, merged};

/// Outcome of a read.
#[derive(Clone, Debug)]
pub(crate) enum Got {
    /// The whole object, in memory of its own, which others may share.
    Bytes(Bytes),
    /// The whole object, in memory that nobody shares.
    Owned(Vec<u8>),
    /// The ranges that were wanted, in memory of their own.
    Parts(Vec<Bytes>),
    /// Number of bytes written to the caller's memory.
    Len(usize),
}

impl Got {
    pub(crate) fn bytes(self) -> Option<Bytes> {
        if let Self::Bytes(value) = self { Some(value) } else { None }
    }

    pub(crate) fn owned(self) -> Option<Vec<u8>> {
        if let Self::Owned(value) = self { Some(value) } else { None }
    }

    pub(crate) fn parts(self) -> Option<Vec<Bytes>> {
        if let Self::Parts(parts) = self { Some(parts) } else { None }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(value) => value.len(),
            Self::Owned(value) => value.len(),
            Self::Parts(parts) => parts.iter().map(Bytes::len).sum(),
            Self::Len(len) => *len,
        }
    }
}

/// The parts of one object that a read wants, and the memory for them: the bytes of the parts, one after the other, fill
/// the buffers, one after the other.
///
/// Offsets are used only after [`Self::check`] or [`Self::make_room`] has found all parts within the object.
#[derive(Debug)]
pub(crate) struct Destination<'a> {
    wanted: Wanted,
    memory: Memory<'a>,
}

#[derive(Debug)]
enum Wanted {
    /// The whole object, whose size is noted once it is known.
    Whole(ByteRange),
    Ranges(Vec<ByteRange>),
}

#[derive(Debug)]
enum Memory<'a> {
    Caller(Vec<ReadBuffer<'a>>),
    /// Memory that the read allocates once it knows the size.
    Own(Vec<u8>, Sharing),
}

/// Whether memory that a read allocates may be shared with the local cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Shared,
    Alone,
}

impl<'a> Destination<'a> {
    /// The whole object, in memory of its own.
    pub(crate) fn whole() -> Self {
        let memory = Memory::Own(Vec::new(), Sharing::Shared);
        Self { wanted: Wanted::Whole(ByteRange { offset: 0, len: 0 }), memory }
    }

    /// The whole object, in memory that is the caller's alone in the end.
    pub(crate) fn whole_owned() -> Self {
        Self { memory: Memory::Own(Vec::new(), Sharing::Alone), ..Self::whole() }
    }

    /// The whole object, in the caller's buffers.
    pub(crate) fn whole_into(buffers: impl Iterator<Item = ReadBuffer<'a>>) -> Self {
        Self { memory: Memory::Caller(buffers.collect()), ..Self::whole() }
    }

    /// Ranges of the object, in memory of its own.
    pub(crate) fn ranges(ranges: Vec<ByteRange>) -> Self {
        Self { wanted: Wanted::Ranges(ranges), memory: Memory::Own(Vec::new(), Sharing::Shared) }
    }

    /// Ranges of the object, each given by its offset and the caller's buffer for it.
    pub(crate) fn ranges_into(ranges: impl Iterator<Item = (u64, ReadBuffer<'a>)>) -> Self {
        let range = |(offset, buffer): (u64, ReadBuffer<'a>)| {
            (ByteRange { offset, len: buffer.len() as u64 }, buffer)
        };
        let (ranges, buffers) = ranges.map(range).unzip();
        Self { wanted: Wanted::Ranges(ranges), memory: Memory::Caller(buffers) }
    }

    /// Checks that an object of `size` bytes has all wanted parts, and that the caller's memory takes them.
    pub(crate) fn check(&mut self, size: u64) -> Result<(), Error> {
        match &mut self.wanted {
            Wanted::Whole(whole) => whole.len = size,
            Wanted::Ranges(ranges) => ranges.iter().try_for_each(|range| range.check("get", size))?,
        }
        match &self.memory {
            Memory::Caller(buffers) => {
                let room: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
                let why = || format!("{room} bytes of memory for an object of {size} bytes");
                if room < self.len() { Err(refused(why())) } else { Ok(()) }
            }
            Memory::Own(..) => Ok(()),
        }
    }

    /// Prepares memory for parts of an object of `size` bytes: checks the caller's, or allocates.
    pub(crate) fn make_room(&mut self, size: u64) -> Result<(), Error> {
        self.check(size)?;
        let len = usize::try_from(self.len());
        let Memory::Own(own, _) = &mut self.memory else { return Ok(()) };
        own.clear();
        match len {
            Ok(len) if own.try_reserve_exact(len).is_ok() => own.resize(len, 0),
            _ => {
                return Err(refused(format!(
                    "this process has no memory for that much of an object of {size} bytes"
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of wanted bytes.
    pub(crate) fn len(&self) -> u64 {
        self.parts().iter().fold(0, |sum, part| sum.saturating_add(part.len))
    }

    /// Whether the parts, in their order, are the whole object of `size` bytes, so that one read has them all and its
    /// checksum is the object's.
    pub(crate) fn is_whole(&self, size: u64) -> bool {
        merged(self.parts()).eq([ByteRange { offset: 0, len: size }])
    }

    /// Returns the reads that fill the memory from a replica, which is range `range` of its grant.
    /// There are none if no byte is wanted.
    pub(crate) fn reads(&mut self, range: u32) -> impl Iterator<Item = ReadOp<'_>> {
        let Self { wanted, memory } = self;
        let mut buffers = Buffers::of(memory);
        merged(wanted.parts()).map(move |part| ReadOp {
            range,
            offset: part.offset,
            into: buffers.take(part.len),
        })
    }

    /// Returns the bytes in memory of its own; none if the memory is the caller's.
    pub(crate) fn own(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(own, _) => own,
            Memory::Caller(_) => &[],
        }
    }

    fn parts(&self) -> &[ByteRange] {
        self.wanted.parts()
    }

    /// Returns the result once the reads have filled the memory.
    pub(crate) fn filled(&mut self) -> Got {
        let len = self.len();
        match &mut self.memory {
            Memory::Caller(_) => Got::Len(usize::try_from(len).unwrap_or(usize::MAX)),
            Memory::Own(own, Sharing::Alone) => Got::Owned(std::mem::take(own)),
            Memory::Own(own, Sharing::Shared) => {
                let mut value = Bytes::from(std::mem::take(own));
                match &self.wanted {
                    Wanted::Whole(_) => Got::Bytes(value),
                    Wanted::Ranges(ranges) => {
                        // `make_room` allocated the sum of the lengths.
                        let part = |range: &ByteRange| value.split_to(usize_of(range.len).min(value.len()));
                        Got::Parts(ranges.iter().map(part).collect())
                    }
                }
            }
        }
    }

    /// Whether some of the memory is a device's.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(&self.memory, Memory::Caller(buffers) if buffers.iter().any(ReadBuffer::is_of_device))
    }

    /// [`Self::deliver`] into memory of which some is a device's.
    pub(crate) async fn deliver_to_device(
        &mut self,
        value: &Bytes,
        transport: &StagedTransport,
    ) -> Result<Got, Error> {
        self.check(value.len() as u64)?;
        for read in self.reads(0) {
            let from = value.slice(usize_of(read.offset)..);
            transport.fill(read.into, from).await.map_err(|why| device_error("get", &why))?;
        }
        Ok(self.filled())
    }

    /// Returns the result from a value in memory. It copies only into memory of the caller, or for the caller alone.
    pub(crate) fn deliver(&mut self, value: Bytes) -> Result<Got, Error> {
        self.check(value.len() as u64)?;
        let part = |range: &ByteRange| usize_of(range.offset)..usize_of(range.offset + range.len);
        match (&self.memory, &self.wanted) {
            (Memory::Own(_, Sharing::Shared), Wanted::Whole(_)) => return Ok(Got::Bytes(value)),
            (Memory::Own(_, Sharing::Shared), Wanted::Ranges(ranges)) => {
                return Ok(Got::Parts(ranges.iter().map(|range| value.slice(part(range))).collect()));
            }
            (Memory::Own(_, Sharing::Alone), _) => self.make_room(value.len() as u64)?,
            (Memory::Caller(_), _) => {}
        }
        for read in self.reads(0) {
            let mut rest = &value[usize_of(read.offset)..];
            for mut buffer in read.into {
                let (now, later) = rest.split_at(buffer.len());
                buffer.fill(now).map_err(|lost| refused(lost.to_string()))?;
                rest = later;
            }
        }
        Ok(self.filled())
    }
}

impl Wanted {
    fn parts(&self) -> &[ByteRange] {
        match self {
            Self::Whole(whole) => std::slice::from_ref(whole),
            Self::Ranges(ranges) => ranges,
        }
    }
}

/// Converts a length or an offset that was found within memory of this process.
fn usize_of(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

fn refused(why: String) -> Error {
    Error::definite("get", Code::InvalidParams, "this client", why)
}

/// Memory that is handed out front to back.
struct Buffers<'b, 'a> {
    first: ReadBuffer<'b>,
    rest: std::slice::IterMut<'b, ReadBuffer<'a>>,
}

impl<'b, 'a> Buffers<'b, 'a> {
    fn of(memory: &'b mut Memory<'a>) -> Self {
        match memory {
            Memory::Own(own, _) => Self { first: own.into(), rest: Default::default() },
            Memory::Caller(buffers) => Self { first: (&mut []).into(), rest: buffers.iter_mut() },
        }
    }

    /// Takes the next `len` bytes, or all if there are fewer.
    fn take(&mut self, len: u64) -> Vec<ReadBuffer<'b>> {
        let (mut taken, mut left) = (Vec::with_capacity(1), usize_of(len));
        while left > 0 {
            let n = self.first.len().min(left);
            let (now, later) = std::mem::replace(&mut self.first, (&mut []).into()).split_at(n);
            self.first = later;
            left -= n;
            if n > 0 {
                taken.push(now);
            } else if let Some(next) = self.rest.next() {
                self.first = next.reborrow();
            } else {
                break;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn parts_fill_the_buffers_one_after_the_other_without_copies() {
        let (mut one, mut two, mut none, mut three) = ([0; 3], [0; 5], [0; 0], [0; 4]);
        let starts = [one.as_ptr(), two.as_ptr(), three.as_ptr()];
        let buffers: [&mut [u8]; 4] = [&mut one, &mut none, &mut two, &mut three];
        let mut whole = Destination::whole_into(buffers.into_iter().map(ReadBuffer::from));
        whole.make_room(10).unwrap();
        let reads: Vec<_> = whole.reads(7).collect();
        assert_eq!(reads.iter().map(|read| (read.range, read.offset)).collect::<Vec<_>>(), [(7, 0)]);
        let filled: Vec<_> = reads[0].into.iter().map(|buffer| (buffer.as_ptr(), buffer.len())).collect();
        assert_eq!(filled, [(starts[0], 3), (starts[1], 5), (starts[2], 2)], "the rest is not touched");
    }

    #[test]
    fn ranges_in_memory_of_their_own_are_parts_in_order() {
        let mut ranges = Destination::ranges(vec![range(6, 2), range(0, 0), range(8, 1), range(1, 3)]);
        ranges.make_room(9).unwrap();
        for read in ranges.reads(0) {
            for mut buffer in read.into {
                let from = usize::try_from(read.offset).unwrap();
                let there = &b"abcdefghi"[from..from + buffer.len()];
                buffer.fill(there).unwrap();
            }
        }
        let Got::Parts(parts) = ranges.filled() else { panic!("they are parts") };
        assert_eq!(parts, [&b"gh"[..], b"", b"i", b"bcd"]);
        let Ok(Got::Parts(same)) = ranges.deliver(Bytes::from_static(b"abcdefghi")) else {
            panic!("they fit")
        };
        assert_eq!(same, parts, "a value in memory has the same parts");
    }

    #[test]
    fn only_parts_that_are_the_whole_object_in_order_have_its_checksum() {
        assert!(Destination::ranges(vec![range(0, 4), range(4, 6)]).is_whole(10));
        for parts in
            [vec![range(4, 6), range(0, 4)], vec![range(0, 9)], vec![range(0, 10), range(0, 1)], vec![]]
        {
            assert!(!Destination::ranges(parts.clone()).is_whole(10), "{parts:?}");
        }
    }

    #[test]
    fn lengths_that_no_machine_has_are_refused_before_memory_is_allocated() {
        let mut ranges = Destination::ranges(vec![range(0, u64::MAX); 3]);
        assert_eq!(ranges.make_room(10).unwrap_err().code, Code::InvalidParams);
        let error = ranges.make_room(u64::MAX).unwrap_err();
        assert!(error.why.contains("no memory"), "{error}");
    }
}
