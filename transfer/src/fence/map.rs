use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use mc_types::ClusterTime;
use smallvec::SmallVec;

use super::generations::Generations;
use super::reads::Reads;
use super::records::{Owner, Record, Records};
use super::{Fenced, Supersede};

/// Number of chunks of records that each write searches for old records. A chunk holds more records than a write can
/// add, so that the backlog shrinks, and few enough that no write pays for all of it.
const SWEPT_PER_WRITE: usize = 1;
/// Number of claims up to which those of finished writes are kept.
const FEW_PASSES: usize = 64;
/// Maximum number of records of one range while some of its bytes have not landed: writes in any order leave gaps. Each of those
/// writes looks at all of them.
const MAX_PARTS: usize = 8192;
/// Number of records of one range for which there is always room, so that a put that was admitted can end: what has landed and
/// what has not, for each of four connections.
const SPARE_PARTS: usize = 8;

/// The highest index per byte, as records that don't overlap, and the writes under way. Pure: callers pass the time.
///
/// A record outlives its writes by minutes, so it holds only what later decisions need. The claims of the writes are
/// kept apart, for as long as the writes last.
pub(super) struct FenceMap<P> {
    records: Records,
    generations: Generations,
    /// Claims of writes that may be under way, by first byte. They don't overlap, and each lies within records of its
    /// index.
    claims: BTreeMap<u64, Claim<P>>,
    reads: Reads<P>,
    /// Claims of any owner, of writes and reads, that were ended while a device was still using them. No other write is
    /// admitted to such a range before the device has left it.
    draining: Vec<(Range<u64>, P)>,
    /// Number of claims at which those of finished writes are dropped.
    prune_at: usize,
    /// Time up to which records may be forgotten: a grant that expires by then can't be checked any more.
    horizon: ClusterTime,
}

struct Claim<P> {
    end: u64,
    /// Generation in which the records of the range were last renewed.
    renewed: u32,
    pass: P,
}

impl<P: Supersede> FenceMap<P> {
    pub(super) fn new(keep: Duration) -> Self {
        Self {
            records: Records::new(),
            generations: Generations::new(keep),
            claims: BTreeMap::new(),
            reads: Reads::new(),
            draining: Vec::new(),
            prune_at: FEW_PASSES,
            horizon: ClusterTime(0),
        }
    }

    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    #[cfg(test)]
    pub(super) fn reads_under_way(&self) -> usize {
        self.reads.len()
    }

    /// Memory that the records take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.records.bytes()
    }

    /// Admits a write if it needs at most `room` more records.
    pub(super) fn admit_write(
        &mut self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
        (now, heard): (ClusterTime, ClusterTime),
        room: usize,
    ) -> Result<P, Fenced> {
        self.forget(heard, SWEPT_PER_WRITE);
        if expires <= self.horizon {
            return Err(Fenced::Forgotten);
        }
        if range.is_empty() {
            return Ok(P::default());
        }
        let (mut highest, mut before, mut after) = (None, 0, 1);
        for record in self.records.overlapping(&range) {
            highest = highest.max(Some(record.owner.index()));
            before += 1;
            after += usize::from(record.start < range.start) + usize::from(range.end < record.end);
        }
        match highest {
            Some(by) if by > index => return Err(Fenced::Superseded { index, by }),
            Some(by) if by == index => return self.join(&range, index, now),
            _ if after > before + room => return Err(Fenced::Full),
            _ => {}
        }
        // It has the range from here on, so that the ended writes can't come back. If it has to wait, it joins itself later.
        self.give(&range, Owner::open(index), now);
        self.check_drained(&range)?;
        let generation = self.generations.present(now);
        Ok(self.claim(range, generation))
    }

    /// Notes that `bytes` of a `range` that `index` was admitted to have landed. Those that it has lost meanwhile have not.
    /// Notes nothing if the records of the range would be too many, or more than `room` for others than the first few.
    pub(super) fn land(
        &mut self,
        range: &Range<u64>,
        bytes: &Range<u64>,
        index: u64,
        now: ClusterTime,
        room: usize,
    ) -> Result<(), Fenced> {
        if bytes.is_empty() {
            return Ok(());
        }
        let open = Owner::open(index);
        let (mut parts, mut added) = (SmallVec::<[Range<u64>; 1]>::new(), 0);
        for record in self.records.overlapping(bytes).filter(|&Record { owner, .. }| owner == open) {
            added += usize::from(record.start < bytes.start) + usize::from(bytes.end < record.end);
            parts.push(record.start.max(bytes.start)..record.end.min(bytes.end));
        }
        if added > 0 {
            // One that goes on where landed bytes end, or up to where they begin, becomes one record with them.
            let landed = |at: u64| {
                let owner = self.records.overlapping(&(at..at + 1)).next().map(|record| record.owner);
                owner == Some(Owner::landed(index))
            };
            let left = bytes.start > range.start && landed(bytes.start - 1);
            let right = bytes.end < range.end && landed(bytes.end);
            added = added.saturating_sub(usize::from(left) + usize::from(right));
        }
        if added > 0 {
            match added + self.records.overlapping(range).take(MAX_PARTS).count() {
                MAX_PARTS.. => return Err(Fenced::Parts { index }),
                parts if parts > SPARE_PARTS && added > room => return Err(Fenced::Full),
                _ => {}
            }
        }
        let generation = self.generations.present(now);
        for Range { start, end } in parts {
            self.records.cut_out(&(start..end));
            self.records.insert(Record { start, end, owner: Owner::landed(index), generation });
        }
        Ok(())
    }

    /// Ends the writing of a range that `index` was admitted to, if each of its bytes has landed: of those in `landing`
    /// that is known by this call. Later writes of that index are refused, and those under way end. It may take two records
    /// more than there is room for, which a later write pays for.
    pub(super) fn seal(
        &mut self,
        range: Range<u64>,
        landing: &Range<u64>,
        index: u64,
        (expires, now): (ClusterTime, ClusterTime),
        room: usize,
    ) -> Result<(), Fenced> {
        if expires <= self.horizon {
            return Err(Fenced::Forgotten);
        }
        if range.is_empty() {
            return Ok(());
        }
        let (mut owned, mut missing, mut open) = (0, 0, false);
        for record in self.records.overlapping(&range) {
            let (owner, start, end) =
                (record.owner, record.start.max(range.start), record.end.min(range.end));
            if owner.index() > index {
                return Err(Fenced::Superseded { index, by: owner.index() });
            }
            if owner.index() == index {
                owned += end - start;
                open |= !owner.is_sealed();
                if !owner.has_landed() {
                    let landing = landing.end.min(end).saturating_sub(landing.start.max(start));
                    missing += end - start - landing;
                }
            }
        }
        if owned < range.end - range.start {
            // Nothing keeps the bytes of a lower index, or of none, from being written.
            return Err(Fenced::Forgotten);
        }
        if missing > 0 {
            self.land(&range, landing, index, now, room)?;
            return Err(Fenced::Incomplete { index, missing });
        }
        if open {
            self.give(&range, Owner::sealed(index), now);
        }
        self.check_drained(&range)
    }

    /// Admits a read of `range`, which is that of `index`: returns the claim that a newer write of the range ends, and the number to
    /// end the read by.
    pub(super) fn admit_read(
        &mut self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
    ) -> Result<(u64, P), Fenced> {
        self.check_read(range.clone(), index, expires)?;
        Ok(self.reads.begin(range, index))
    }

    /// Ends a read that was admitted as `number`.
    pub(super) fn end_read(&mut self, range: &Range<u64>, number: u64) {
        self.reads.end(range, number);
    }

    pub(super) fn check_read(
        &self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
    ) -> Result<(), Fenced> {
        if expires <= self.horizon {
            return Err(Fenced::Forgotten);
        }
        match self.records.overlapping(&range).map(|record| record.owner.index()).max() {
            Some(by) if by > index => Err(Fenced::Superseded { index, by }),
            _ => Ok(()),
        }
    }

    /// Drops the records that may be forgotten from the next few chunks; returns whether there are more of them.
    pub(super) fn forget(&mut self, heard: ClusterTime, chunks: usize) -> bool {
        let live = self.generations.live(heard);
        let mut forgotten = Vec::new();
        self.records.sweep(live, chunks, |record| forgotten.push(record.start..record.end));
        if !forgotten.is_empty() {
            self.horizon = self.horizon.max(heard);
        }
        for range in forgotten {
            // A write that is still in flight here has an expired grant, and nothing else would end it from here on.
            self.supersede(&range);
        }
        let oldest = self.records.oldest();
        self.generations.forget_before(oldest);
        oldest.is_some_and(|oldest| oldest < live)
    }

    /// Admits another writer of the same put.
    ///
    /// Adjacent ranges of one index share records, so these may be longer than the range. A master never grants a range that
    /// lies partly in records of its index.
    fn join(&mut self, range: &Range<u64>, index: u64, now: ClusterTime) -> Result<P, Fenced> {
        self.check_drained(range)?;
        let generation = self.generations.present(now);
        // A claim ends when its range is given away or sealed.
        if let Some(claim) = self.claims.get(&range.start)
            && (claim.end, claim.renewed) == (range.end, generation)
        {
            return Ok(claim.pass.clone());
        }
        let overlap = Err(Fenced::Overlap { index });
        let (mut owned, mut starts) = (0, SmallVec::<[u64; 4]>::new());
        for record in self.records.overlapping(range).filter(|record| record.owner.index() == index) {
            if record.owner.is_sealed() {
                return Err(Fenced::Sealed { index });
            }
            owned += record.end.min(range.end) - record.start.max(range.start);
            starts.push(record.start);
        }
        if owned < range.end - range.start {
            return overlap;
        }
        let pass = match self.claims.get_mut(&range.start).filter(|claim| claim.end == range.end) {
            Some(claim) => {
                claim.renewed = generation;
                claim.pass.clone()
            }
            None => {
                let others: SmallVec<[u64; 4]> = overlapping(&self.claims, range).collect();
                for start in others {
                    if self.claims.get_mut(&start).is_some_and(|claim| claim.pass.is_in_use()) {
                        return overlap;
                    }
                    self.claims.remove(&start);
                }
                self.claim(range.clone(), generation)
            }
        };
        starts.into_iter().for_each(|start| self.records.renew(start, generation));
        Ok(pass)
    }

    /// Adds a claim to a range that has none and whose records are of this generation, and returns it.
    fn claim(&mut self, range: Range<u64>, renewed: u32) -> P {
        if self.claims.len() >= self.prune_at {
            self.claims.retain(|_, claim| claim.pass.is_in_use());
            self.prune_at = FEW_PASSES.max(2 * self.claims.len());
        }
        let pass = P::default();
        self.claims.insert(range.start, Claim { end: range.end, renewed, pass: pass.clone() });
        pass
    }

    /// Gives a range to an owner, and ends the writes under way that overlap it, and the reads of former owners' bytes.
    fn give(&mut self, range: &Range<u64>, owner: Owner, now: ClusterTime) {
        self.supersede(range);
        self.reads.supersede(range, owner.index(), |bytes, pass| {
            if pass.has_device() {
                self.draining.push((bytes, pass.clone()));
            }
        });
        self.records.cut_out(range);
        let generation = self.generations.present(now);
        self.records.insert(Record { start: range.start, end: range.end, owner, generation });
    }

    /// Ends the writes under way that overlap `range`.
    fn supersede(&mut self, range: &Range<u64>) {
        let ended: SmallVec<[u64; 4]> = overlapping(&self.claims, range).collect();
        for start in ended {
            if let Some(claim) = self.claims.remove(&start) {
                claim.pass.supersede();
                if claim.pass.has_device() {
                    self.draining.push((start..claim.end, claim.pass));
                }
            }
        }
    }

    /// Refuses a range where a device is still at an ended write or read.
    fn check_drained(&mut self, range: &Range<u64>) -> Result<(), Fenced> {
        self.draining.retain(|(_, pass)| pass.has_device());
        let overlaps = |(there, _): &(Range<u64>, P)| there.start < range.end && range.start < there.end;
        if self.draining.iter().any(overlaps) { Err(Fenced::InTransfer) } else { Ok(()) }
    }
}

/// Returns the first bytes of the claims that overlap a range, last claim first. Claims don't overlap each other, so
/// they end in the order in which they start.
fn overlapping<P>(claims: &BTreeMap<u64, Claim<P>>, range: &Range<u64>) -> impl Iterator<Item = u64> {
    let start = range.start;
    claims.range(..range.end).rev().take_while(move |(_, claim)| claim.end > start).map(|(start, _)| *start)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Bytes in the model's segment.
    const LEN: u64 = 24;
    const KEEP_MS: u64 = 20;
    const ROOM: usize = 1_000_000;

    #[derive(Clone, Debug, Default)]
    struct Flag(Rc<Cell<bool>>);

    impl Supersede for Flag {
        fn supersede(&self) {
            self.0.set(true);
        }

        fn has_device(&self) -> bool {
            false
        }

        fn is_in_use(&mut self) -> bool {
            Rc::get_mut(&mut self.0).is_none()
        }
    }

    /// A model of the fence: every write ever admitted, in order.
    #[derive(Default)]
    struct Model {
        writes: Vec<Write>,
    }

    struct Write {
        range: Range<u64>,
        index: u64,
        stamp: u64,
        pass: Flag,
    }

    impl Model {
        fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Write> {
            let range = range.clone();
            self.writes.iter().filter(move |w| w.range.start < range.end && range.start < w.range.end)
        }

        /// Whether a higher index was written so recently that a lower grant may still be valid.
        fn must_refuse(&self, range: &Range<u64>, index: u64, heard: u64) -> bool {
            self.overlapping(range).any(|w| w.index > index && w.stamp + KEEP_MS > heard)
        }

        /// Whether no other put of the same or a higher index was ever here.
        fn must_admit(&self, range: &Range<u64>, index: u64) -> bool {
            self.overlapping(range).all(|w| w.index < index || (w.index == index && w.range == *range))
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write {
            range: Range<u64>,
            index: u64,
            life: u64,
        },
        Read {
            range: Range<u64>,
            index: u64,
            life: u64,
        },
        /// Lets local time pass.
        Elapse(u64),
        /// A master reports the cluster time.
        Hear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..LEN, 1..=LEN).prop_map(|(start, len)| start..(start + len).min(LEN));
        let index = 1..12u64;
        prop_oneof![
            4 => (range.clone(), index.clone(), 1..KEEP_MS / 2)
                .prop_map(|(range, index, life)| Step::Write { range, index, life }),
            4 => (range, index, 1..KEEP_MS / 2)
                .prop_map(|(range, index, life)| Step::Read { range, index, life }),
            1 => (1..KEEP_MS).prop_map(Step::Elapse),
            1 => Just(Step::Hear),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn it_refuses_what_it_must_and_admits_what_it_must(steps in vec(step(), 1..60)) {
            let (mut map, mut model) = (FenceMap::<Flag>::new(Duration::from_millis(KEEP_MS)), Model::default());
            let (mut now, mut heard) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Elapse(ms) => now += ms,
                    Step::Hear => heard = now,
                    Step::Write { range, index, life } => {
                        let must_refuse = model.must_refuse(&range, index, heard);
                        let must_admit = model.must_admit(&range, index);
                        let times = (ClusterTime(now), ClusterTime(heard));
                        let answer = map.admit_write(range.clone(), index, ClusterTime(heard + life), times, ROOM);
                        match answer {
                            Ok(pass) => {
                                prop_assert!(!must_refuse, "{range:?} {index}");
                                for older in model.overlapping(&range).filter(|w| w.index < index) {
                                    prop_assert!(older.pass.0.get(), "an older write goes on");
                                }
                                // A pass that was handed out before may be shared, a superseded one may not.
                                prop_assert!(!must_admit || !pass.0.get());
                                model.writes.push(Write { range, index, stamp: now, pass });
                            }
                            Err(_) => prop_assert!(!must_admit, "{range:?} {index}"),
                        }
                    }
                    Step::Read { range, index, life } => {
                        // A grant that has not expired by what the store has heard.
                        let expires = heard + life;
                        let answer = map.check_read(range.clone(), index, ClusterTime(expires));
                        if model.must_refuse(&range, index, heard) {
                            prop_assert!(answer.is_err());
                        }
                        if model.overlapping(&range).all(|w| w.index <= index) {
                            prop_assert!(answer.is_ok());
                        }
                    }
                }
            }
        }
    }

    fn map() -> FenceMap<Flag> {
        FenceMap::new(Duration::from_millis(KEEP_MS))
    }

    fn write(map: &mut FenceMap<Flag>, range: Range<u64>, index: u64, ms: u64) -> Result<Flag, Fenced> {
        map.admit_write(range, index, ClusterTime(ms + 1), (ClusterTime(ms), ClusterTime(ms)), ROOM)
    }

    #[test]
    fn an_entry_is_kept_until_a_master_says_that_its_time_is_over() {
        let mut map = map();
        write(&mut map, 0..8, 9, 0).unwrap();
        let (local, expires) = (ClusterTime(1_000), ClusterTime(KEEP_MS + 1));
        let mut late = |heard| map.admit_write(0..8, 8, expires, (local, ClusterTime(heard)), ROOM);
        assert!(late(KEEP_MS - 1).is_err(), "only the local clock ran");
        assert!(late(KEEP_MS).is_ok());
    }

    #[test]
    fn what_outlives_its_own_entry_is_refused() {
        let mut map = map();
        let slow = write(&mut map, 0..8, 1, 0).unwrap();
        write(&mut map, 8..16, 2, KEEP_MS).unwrap();
        assert!(slow.0.get(), "a write in flight when its entry was forgotten");
        let expired = ClusterTime(KEEP_MS);
        assert_eq!(map.check_read(0..8, 1, expired), Err(Fenced::Forgotten));
        assert_eq!(map.check_read(0..8, 1, ClusterTime(KEEP_MS + 1)), Ok(()));
        let now = ClusterTime(KEEP_MS);
        assert_eq!(map.admit_write(0..8, 1, expired, (now, now), ROOM).unwrap_err(), Fenced::Forgotten);
    }

    #[test]
    fn writing_again_keeps_the_entry() {
        let mut map = map();
        let pass = write(&mut map, 0..8, 1, 0).unwrap();
        write(&mut map, 0..8, 1, KEEP_MS - 1).unwrap();
        write(&mut map, 8..16, 2, KEEP_MS).unwrap();
        assert!(!pass.0.get());
        assert_eq!(write(&mut map, 0..9, 1, KEEP_MS).unwrap_err(), Fenced::Superseded { index: 1, by: 2 });
        assert_eq!(write(&mut map, 0..7, 1, KEEP_MS).unwrap_err(), Fenced::Overlap { index: 1 });
    }

    /// A model that makes the same decisions byte by byte and forgets nothing.
    struct Naive {
        bytes: Vec<Byte>,
    }

    #[derive(Clone, Default)]
    struct Byte {
        index: u64,
        pass: Option<Flag>,
    }

    impl Naive {
        fn new(len: u64) -> Self {
            Self { bytes: vec![Byte::default(); len as usize] }
        }

        fn highest(&self, range: &Range<u64>) -> u64 {
            self.bytes[range.start as usize..range.end as usize].iter().map(|byte| byte.index).max().unwrap()
        }

        fn write(&mut self, range: &Range<u64>, index: u64, pass: &Flag) {
            for at in range.start as usize..range.end as usize {
                if let Some(old) = self.bytes[at].pass.replace(pass.clone())
                    && self.bytes[at].index < index
                {
                    old.supersede();
                }
                self.bytes[at].index = index;
            }
        }
    }

    /// Generates ranges of many sizes over several chunks of records.
    fn place() -> impl Strategy<Value = Range<u64>> {
        prop_oneof![
            8 => (0..2_000u64, 1..4u64).prop_map(|(slot, slots)| slot * 8..(slot + slots) * 8),
            2 => (0..16_000u64, 1..60u64).prop_map(|(start, len)| start..start + len),
            1 => (0..8_000u64, 1..8_000u64).prop_map(|(start, len)| start..start + len),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn compact_records_decide_as_one_record_for_each_byte_would(
            batches in vec((place(), 1..40u64), 20..400),
            reads in vec((place(), 0..400u64), 100),
        ) {
            const LEN: u64 = 16_100;
            let mut map = FenceMap::<Flag>::new(Duration::from_secs(1));
            let (mut naive, mut flags) = (Naive::new(LEN), Vec::new());
            let now = (ClusterTime(0), ClusterTime(0));
            let mut write = |range: Range<u64>, index: u64, naive: &mut Naive| {
                let highest = naive.highest(&range);
                let answer = map.admit_write(range.clone(), index, ClusterTime(9), now, ROOM);
                if highest > index {
                    prop_assert_eq!(answer.unwrap_err(), Fenced::Superseded { index, by: highest });
                } else if highest < index {
                    let pass = answer.unwrap();
                    prop_assert!(!pass.0.get());
                    naive.write(&range, index, &pass);
                    flags.push((range, index, pass));
                }
                Ok(())
            };
            for (nth, (range, run)) in batches.iter().enumerate() {
                // Each batch has its own index, mostly a later one, and adjacent ranges like those of one log entry.
                let index = if nth % 5 == 4 { nth as u64 / 2 } else { 10 + nth as u64 };
                let len = range.end - range.start;
                for nth in 0..*run {
                    let start = range.start + nth * len;
                    if start + len < LEN {
                        write(start..start + len, index, &mut naive)?;
                    }
                }
            }
            // A pass ends exactly when a newer write overlaps its range.
            for (range, index, pass) in &flags {
                let overwritten = naive.highest(range) > *index;
                prop_assert_eq!(pass.0.get(), overwritten, "{:?} {}", range, index);
                let again = map.admit_write(range.clone(), *index, ClusterTime(9), now, ROOM);
                prop_assert_eq!(again.is_ok(), !overwritten);
                if let Ok(again) = again {
                    prop_assert!(Rc::ptr_eq(&again.0, &pass.0), "writers of one put share a pass");
                }
            }
            for (range, index) in reads {
                let good = map.check_read(range.clone(), index, ClusterTime(9)).is_ok();
                prop_assert_eq!(good, naive.highest(&range) <= index, "{:?} {}", range, index);
            }
            let pieces = naive.bytes.chunk_by(|a, b| a.index == b.index).filter(|run| run[0].index > 0).count();
            prop_assert!(map.records() >= pieces && map.records() < pieces + pieces / 8 + 32);
        }
    }

    #[test]
    fn a_batch_of_puts_in_one_piece_is_one_record() {
        let mut map = map();
        for slot in [3, 0, 1, 2, 7] {
            write(&mut map, slot * 8..slot * 8 + 8, 5, 0).unwrap();
        }
        assert_eq!(map.records(), 2);
        // Each is still a separate put.
        let pass = write(&mut map, 8..16, 6, 0).unwrap();
        assert_eq!(map.records(), 4);
        write(&mut map, 16..24, 5, 0).unwrap();
        assert!(!pass.0.get());
        assert_eq!(write(&mut map, 8..16, 5, 0).unwrap_err(), Fenced::Superseded { index: 5, by: 6 });
        assert_eq!(write(&mut map, 20..40, 5, 0).unwrap_err(), Fenced::Overlap { index: 5 });
    }

    #[test]
    fn a_write_that_needs_a_record_is_not_admitted_without_room_for_it() {
        let mut map = map();
        let mut admit = |range, index, ms, room| {
            let now = (ClusterTime(ms), ClusterTime(ms));
            map.admit_write(range, index, ClusterTime(ms + 1), now, room)
        };
        let first = admit(0..8, 5, 0, 1).unwrap();
        assert_eq!(admit(8..16, 6, 0, 0).unwrap_err(), Fenced::Full);
        assert_eq!(admit(2..4, 6, 0, 1).unwrap_err(), Fenced::Full, "three pieces in place of one");
        assert!(!first.0.get(), "nothing was ended");
        admit(0..8, 5, 0, 0).expect("the same put");
        admit(0..8, 6, 0, 0).expect("in the place of an older one");
        assert!(first.0.get());
        admit(8..16, 7, KEEP_MS, 1).unwrap();
        assert_eq!(map.records(), 1, "the time of the first is over");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_range_is_sealed_exactly_if_each_of_its_bytes_has_landed(
            landings in vec((0..LEN, 0..8u64), 0..30),
            ranges in vec(1..LEN / 3, 3),
        ) {
            // Neighbours of one index, as those of a batch are.
            let starts = [0, ranges[0], ranges[0] + ranges[1]];
            let ranges: Vec<_> = starts.iter().zip(&ranges).map(|(start, len)| *start..start + len).collect();
            let (mut map, mut landed) = (map(), vec![false; LEN as usize]);
            for range in &ranges {
                write(&mut map, range.clone(), 5, 0).unwrap();
            }
            for (start, len) in landings {
                let Some(range) = ranges.iter().find(|range| range.contains(&start)) else { continue };
                write(&mut map, range.clone(), 5, 0).expect("it is not sealed");
                let bytes = start..range.end.min(start + len);
                map.land(range, &bytes, 5, ClusterTime(0), ROOM).unwrap();
                landed[bytes.start as usize..bytes.end as usize].fill(true);
                prop_assert!(map.records() <= LEN as usize);
            }
            for range in ranges {
                let bytes = &landed[range.start as usize..range.end as usize];
                let missing = bytes.iter().filter(|landed| !**landed).count() as u64;
                let sealed = map.seal(range.clone(), &(0..0), 5, (ClusterTime(1), ClusterTime(0)), ROOM);
                let expected = if missing == 0 { Ok(()) } else { Err(Fenced::Incomplete { index: 5, missing }) };
                prop_assert_eq!(sealed, expected);
            }
        }
    }

    #[test]
    fn writes_in_any_order_leave_a_bounded_number_of_gaps_and_those_in_order_need_no_room() {
        const LEN: u64 = 40_000;
        let mut map = map();
        let now = (ClusterTime(0), ClusterTime(0));
        map.admit_write(0..LEN, 5, ClusterTime(1), now, 1).unwrap();
        let land =
            |map: &mut FenceMap<Flag>, bytes, room| map.land(&(0..LEN), &bytes, 5, ClusterTime(0), room);
        for nth in 0..1_000 {
            land(&mut map, nth * 2..nth * 2 + 2, 0).expect("in order");
        }
        assert_eq!(map.records(), 2);
        for nth in 1..4 {
            land(&mut map, nth * 10_000..nth * 10_000 + 10, 0).expect("over a few connections");
        }
        assert_eq!(land(&mut map, 5_000..5_001, 1), Err(Fenced::Full), "a gap takes two records");
        assert_eq!(map.records(), SPARE_PARTS, "nothing was noted");
        // All are admitted before any lands, as those of one request by RDMA are.
        let landed = (0..MAX_PARTS as u64)
            .filter(|nth| land(&mut map, nth * 4 + 2_001..nth * 4 + 2_002, ROOM).is_ok());
        assert!(landed.count() < MAX_PARTS / 2 + 20 && map.records() < MAX_PARTS, "{}", map.records());
        assert_eq!(land(&mut map, 39_000..39_001, ROOM), Err(Fenced::Parts { index: 5 }));
        land(&mut map, 2_000..2_001, 0).expect("a gap that is closed");
        land(&mut map, 0..LEN, 0).unwrap();
        assert_eq!(map.seal(0..LEN, &(0..0), 5, (ClusterTime(1), ClusterTime(0)), 0), Ok(()));
        assert_eq!(map.records(), 1);
    }

    #[test]
    fn claims_of_writes_that_are_over_are_dropped() {
        let mut map = map();
        for i in 0..10_000u64 {
            let pass = write(&mut map, i * 8..i * 8 + 8, i, 0).unwrap();
            drop(pass);
        }
        assert!(map.claims.len() <= 2 * FEW_PASSES, "{}", map.claims.len());
    }

    #[test]
    fn the_memory_of_the_records_is_counted() {
        let mut map = map();
        assert_eq!(map.bytes(), 0);
        for i in 0..1_000u64 {
            write(&mut map, i * 16..i * 16 + 8, i, 0).unwrap();
        }
        let each = map.bytes() / map.records();
        assert!((size_of::<Record>()..=64).contains(&each), "{each}");
    }

    #[test]
    fn entries_do_not_pile_up() {
        let mut map = map();
        for i in 0..10_000u64 {
            let start = i % 1_000 * 8;
            write(&mut map, start..start + 8, i, i).unwrap();
        }
        assert!(map.records() <= KEEP_MS as usize + 2, "{}", map.records());
    }
}
