use mc_client::{ByteRange, Bytes, Error, GetRangesInto, RangeInto};

use super::judged::{Judged, key_name};
use super::puts::Slice;
use crate::Seeded;
use crate::checker::{Action, Outcome};

/// Objects of a call.
const OBJECTS: std::ops::Range<u64> = 1..17;
/// Ranges of an object.
const RANGES: std::ops::Range<u64> = 1..5;
/// Bytes that no two values of a key have in common by chance.
const TELLING: u64 = 16;

impl Judged {
    /// Reads parts of objects, into the caller's memory or not. The bytes of all parts tell which value they are of.
    pub(super) async fn range(&self, random: &mut Seeded) {
        let mut items = Vec::new();
        for _ in 0..random.skewed(OBJECTS) {
            let key = random.below(self.workload.keys);
            let size = self.workload.shortest(key);
            let ranges = (0..random.within(RANGES)).map(|_| {
                let offset = random.below(size - TELLING);
                ByteRange { offset, len: TELLING + random.below(size - TELLING - offset + 1) }
            });
            items.push((key_name(key), ranges.collect::<Vec<_>>()));
        }
        let asked = items.iter().map(|(key, _)| (self.name(key), Action::Get)).collect();
        let call = self.call(asked);
        let read = match random.below(2) {
            0 => self.client.batch_get_ranges(&items).await,
            _ => self.ranges_into(&items).await,
        };
        call.answered(items.iter().zip(read), |call, ((key, ranges), parts)| match parts {
            Ok(Some(parts)) => {
                assert_eq!(parts.len(), ranges.len(), "one part for each range");
                let parts = ranges.iter().map(|range| range.offset).zip(parts.iter().map(|part| &part[..]));
                let parts: Vec<Slice<'_>> = parts.collect();
                Outcome::Value(self.puts.value_of(&self.name(key), &parts))
            }
            Ok(None) => call.missed(),
            Err(error) => call.failed(&error),
        });
    }

    async fn ranges_into(
        &self,
        items: &[(String, Vec<ByteRange>)],
    ) -> Vec<Result<Option<Vec<Bytes>>, Error>> {
        let memory = |range: &ByteRange| vec![0; range.len as usize];
        let mut memory: Vec<Vec<Vec<u8>>> =
            items.iter().map(|(_, ranges)| ranges.iter().map(memory).collect()).collect();
        let into = items.iter().zip(&mut memory).map(|((key, ranges), memory)| {
            let ranges =
                ranges.iter().zip(memory).map(|(range, into)| RangeInto { offset: range.offset, into });
            GetRangesInto::new(key, ranges.collect())
        });
        let mut into: Vec<_> = into.collect();
        let read = self.client.batch_get_ranges_into(&mut into).await;
        let parts = |(read, memory): (Result<Option<usize>, Error>, Vec<Vec<u8>>)| {
            Ok(read?.map(|len| {
                assert_eq!(len, memory.iter().map(Vec::len).sum::<usize>(), "the lengths of all ranges");
                memory.into_iter().map(Bytes::from).collect()
            }))
        };
        read.into_iter().zip(memory).map(parts).collect()
    }
}
