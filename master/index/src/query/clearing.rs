//! Queries for room in pieces: whether an object fits, and which objects to evict together so that it does.

use std::ops::Range;

use mc_types::StoreId;

use crate::command::Pin;
use crate::key::KeyHash;
use crate::objects::Object;
use crate::random::SplitMix64;
use crate::state::State;

/// Number of places that are looked at for one object.
const SAMPLES: usize = 16;
/// Number of objects after which no further place is looked at. The index is locked against changes meanwhile.
const LOOKS: usize = 2048;
/// Maximum number of objects in one clearing, which several log entries evict.
const OBJECTS: usize = 8192;

/// Whether the pool has room for one object of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// A segment can take it.
    Fits,
    /// A segment has as many free bytes, but in pieces that are too small.
    InPieces,
    /// No segment has as many free bytes.
    Full,
}

/// Objects that lie side by side, and leave room for a larger one once all of them are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clearing {
    /// The objects: at least one.
    pub objects: Vec<ClearingObject>,
    /// The range that they leave, in which some bytes may be free already.
    pub stretch: SegmentRange,
}

/// Bytes of a segment that lie side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRange {
    /// Number of the segment within the cluster.
    segment: u32,
    range: Range<u64>,
}

impl SegmentRange {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// An object of a clearing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearingObject {
    /// Hash of its key.
    pub key: KeyHash,
    /// Its protection from eviction.
    pub pin: Pin,
    /// Order of its first allocation (see [`crate::allocation_order`]), by which objects were put.
    pub put: u64,
}

impl ClearingObject {
    fn new(key: KeyHash, object: &Object) -> Self {
        let put = object.replicas.iter().map(|replica| replica.index).min().unwrap_or_default();
        Self { key, pin: object.pin, put }
    }
}

impl State {
    /// Tells whether an object of `size` bytes fits into a segment of the stores that are not in `without`, which is
    /// sorted. Held bytes count as taken.
    #[must_use]
    pub fn fit_of(&self, size: u64, without: &[StoreId]) -> Fit {
        let mut fit = Fit::Full;
        for number in self.segments_without(without) {
            let Some(space) = self.segments.space(number) else { continue };
            if space.alloc.fits(size) {
                return Fit::Fits;
            }
            if space.alloc.capacity() - space.alloc.used() >= size {
                fit = Fit::InPieces;
            }
        }
        fit
    }

    /// Samples places, at random by `seed`, where an object of `size` bytes would fit once the objects there are gone: at
    /// most 16. Places where puts are in flight or bytes are held are left out, and so are those of too many objects.
    pub fn clearings(
        &self,
        size: u64,
        without: &[StoreId],
        seed: u64,
    ) -> impl Iterator<Item = Clearing> + '_ {
        let fits = |number: &u32| self.segments.space(*number).is_some_and(|it| it.alloc.capacity() >= size);
        let candidates = self.segments_without(without).filter(fits).collect();
        Sampler { state: self, candidates, size, random: SplitMix64::new(seed), samples: SAMPLES, looks: 0 }
    }

    /// Lists the first objects in a stretch, at most `max`; those that a `remove_all` has removed included until they are
    /// swept.
    #[must_use]
    pub fn objects_in(&self, stretch: &SegmentRange, max: usize) -> Vec<ClearingObject> {
        let SegmentRange { segment: number, range } = stretch;
        let Some(segment) = self.segments.live(*number) else { return Vec::new() };
        let from = |at: u64| segment.residents.at_or_after(at).filter(|(offset, _)| *offset < range.end);
        std::iter::successors(from(range.start), |(offset, _)| from(offset + 1))
            .filter_map(|(offset, shard)| self.objects.find(shard, *number, offset))
            .map(|(key, object)| ClearingObject::new(key.hash(), &object))
            .take(max)
            .collect()
    }

    fn segments_without<'a>(&'a self, without: &'a [StoreId]) -> impl Iterator<Item = u32> + 'a {
        let counts = |store: &StoreId| without.binary_search(store).is_err();
        self.stores
            .iter()
            .filter(move |(store, _)| counts(store))
            .filter_map(|(_, store)| store.mounted.as_ref())
            .flat_map(|mounted| mounted.numbers())
    }
}

struct Sampler<'a> {
    state: &'a State,
    candidates: Vec<u32>,
    size: u64,
    random: SplitMix64,
    samples: usize,
    looks: usize,
}

impl Iterator for Sampler<'_> {
    type Item = Clearing;

    fn next(&mut self) -> Option<Clearing> {
        while self.samples > 0 && self.looks < LOOKS {
            self.samples -= 1;
            if let Some(clearing) = self.sample() {
                return Some(clearing);
            }
        }
        None
    }
}

impl Sampler<'_> {
    /// Looks at one place; `None` if it can't be cleared.
    fn sample(&mut self) -> Option<Clearing> {
        let number = *self.candidates.get(self.random.below(self.candidates.len())?)?;
        let segment = self.state.segments.live(number)?;
        let alloc = &segment.space.as_ref()?.alloc;
        let from = self.random.below(usize::try_from(alloc.capacity()).ok()?)? as u64;
        let residents = &segment.residents;
        let (offset, shard) = residents.at_or_after(from).or_else(|| residents.first())?;
        let (_, object) = self.look(number, offset, shard)?;
        let mut extent = alloc.extent(offset, object.size, self.size)?;
        let mut objects = Vec::new();
        let mut at = extent.range().start;
        loop {
            let next = residents.at_or_after(at);
            let in_range = next.filter(|(offset, _)| *offset < extent.range().end);
            if let Some((offset, shard)) = in_range {
                let (key, object) = self.look(number, offset, shard)?;
                if objects.len() == OBJECTS || !extent.count(alloc, offset, object.size) {
                    return None;
                }
                objects.push(ClearingObject::new(key, &object));
                at = offset + 1;
                continue;
            }
            if extent.len() >= self.size {
                break;
            }
            let (offset, shard) = next?;
            let (_, object) = self.look(number, offset, shard)?;
            if !extent.extend(alloc, offset, object.size) {
                return None;
            }
        }
        let stretch = SegmentRange { segment: number, range: extent.range() };
        extent.is_whole(alloc).then_some(Clearing { objects, stretch })
    }

    fn look(&mut self, segment: u32, offset: u64, shard: u32) -> Option<(KeyHash, Object)> {
        self.looks += 1;
        let (key, object) = self.state.objects.find(shard, segment, offset)?;
        Some((key.hash(), object))
    }
}
