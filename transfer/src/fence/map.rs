use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use mc_base::ClusterTime;
use smallvec::SmallVec;

use super::Fenced;

/// Entries looked at per write when old ones are forgotten: more than a write can add, so that the backlog shrinks, and
/// few enough that no write pays for all of it.
const FORGET_AT_ONCE: usize = 16;

/// A claim that a later one ends.
pub(super) trait Supersede: Clone + Default {
    /// Returns when whoever acts under the claim has stopped.
    fn supersede(&self);
}

/// The highest index per byte, as pieces that don't overlap. Pure: time is handed in.
pub(super) struct FenceMap<P> {
    keep: Duration,
    /// By first byte.
    pieces: BTreeMap<u64, Piece<P>>,
    /// Stamp and first byte of each piece, in the order in which they were made. A piece that has been replaced or
    /// stamped anew is found not to match when its turn comes.
    order: VecDeque<(ClusterTime, u64)>,
    /// Entries may have been forgotten against which a grant that expires at or before this time must be checked.
    horizon: ClusterTime,
}

struct Piece<P> {
    end: u64,
    index: u64,
    stamp: ClusterTime,
    /// The registered range of which this piece is all or a part.
    registered: Range<u64>,
    pass: P,
}

impl<P: Supersede> FenceMap<P> {
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, pieces: BTreeMap::new(), order: VecDeque::new(), horizon: ClusterTime(0) }
    }

    pub(super) fn admit_write(
        &mut self,
        range: Range<u64>,
        index: u64,
        expires: ClusterTime,
        (now, heard): (ClusterTime, ClusterTime),
    ) -> Result<P, Fenced> {
        self.forget(heard);
        if expires <= self.horizon {
            return Err(Fenced::Forgotten);
        }
        if range.is_empty() {
            return Ok(P::default());
        }
        let overlapped: SmallVec<[u64; 8]> = self.overlapping(&range).map(|(start, _)| start).collect();
        let highest = self.overlapping(&range).map(|(_, piece)| piece.index).max();
        match highest {
            Some(by) if by > index => return Err(Fenced::Superseded { index, by }),
            Some(by) if by == index => return self.join(&range, index, now),
            _ => {}
        }
        for start in overlapped {
            self.cut_out(start, &range);
        }
        let pass = P::default();
        let piece =
            Piece { end: range.end, index, stamp: now, registered: range.clone(), pass: pass.clone() };
        self.insert(range.start, piece);
        Ok(pass)
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
        match self.overlapping(&range).map(|(_, piece)| piece.index).max() {
            Some(by) if by > index => Err(Fenced::Superseded { index, by }),
            _ => Ok(()),
        }
    }

    /// Another writer of the same put.
    fn join(&mut self, range: &Range<u64>, index: u64, now: ClusterTime) -> Result<P, Fenced> {
        match self.pieces.get_mut(&range.start) {
            Some(piece) if piece.registered == *range && piece.end == range.end => {
                if piece.stamp < now {
                    piece.stamp = now;
                    self.order.push_back((now, range.start));
                }
                Ok(piece.pass.clone())
            }
            _ => Err(Fenced::Overlap { index }),
        }
    }

    /// Ends the piece at `start` and keeps what of it lies outside `range`.
    fn cut_out(&mut self, start: u64, range: &Range<u64>) {
        let Some(piece) = self.pieces.remove(&start) else { return };
        piece.pass.supersede();
        let keep = |end| Piece {
            end,
            index: piece.index,
            stamp: piece.stamp,
            registered: piece.registered.clone(),
            pass: piece.pass.clone(),
        };
        if start < range.start {
            // Still in `order` under its first byte.
            self.pieces.insert(start, keep(range.start));
        }
        if range.end < piece.end {
            self.insert(range.end, keep(piece.end));
        }
    }

    fn insert(&mut self, start: u64, piece: Piece<P>) {
        self.order.push_back((piece.stamp, start));
        self.pieces.insert(start, piece);
    }

    /// Drops a few of the entries whose time is over.
    fn forget(&mut self, heard: ClusterTime) {
        for _ in 0..FORGET_AT_ONCE {
            let Some(&(stamp, start)) = self.order.front() else { return };
            if stamp.after(self.keep) > heard {
                return;
            }
            self.order.pop_front();
            if let Some(piece) = self.pieces.get(&start)
                && piece.stamp == stamp
            {
                // A write that is still in flight has an expired grant, and nothing would end it from here on.
                piece.pass.supersede();
                self.pieces.remove(&start);
                self.horizon = self.horizon.max(heard);
            }
        }
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Piece<P>)> {
        let before =
            self.pieces.range(..range.start).next_back().filter(|(_, piece)| piece.end > range.start);
        let inside = (!range.is_empty()).then(|| self.pieces.range(range.clone()));
        before.into_iter().chain(inside.into_iter().flatten()).map(|(start, piece)| (*start, piece))
    }
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

    #[derive(Clone, Debug, Default)]
    struct Flag(Rc<Cell<bool>>);

    impl Supersede for Flag {
        fn supersede(&self) {
            self.0.set(true);
        }
    }

    /// What must hold, byte by byte: every write ever admitted, in order.
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

        /// Some higher index was written so recently that a lower grant may still be valid.
        fn must_refuse(&self, range: &Range<u64>, index: u64, heard: u64) -> bool {
            self.overlapping(range).any(|w| w.index > index && w.stamp + KEEP_MS > heard)
        }

        /// No other put of the same or a higher index was ever here.
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
        /// Local time passes.
        Elapse(u64),
        /// A master says the time.
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
                        let answer = map.admit_write(range.clone(), index, ClusterTime(heard + life), times);
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
        map.admit_write(range, index, ClusterTime(ms + 1), (ClusterTime(ms), ClusterTime(ms)))
    }

    #[test]
    fn an_entry_is_kept_until_a_master_says_that_its_time_is_over() {
        let mut map = map();
        write(&mut map, 0..8, 9, 0).unwrap();
        let (local, expires) = (ClusterTime(1_000), ClusterTime(KEEP_MS + 1));
        let mut late = |heard| map.admit_write(0..8, 8, expires, (local, ClusterTime(heard)));
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
        assert_eq!(map.admit_write(0..8, 1, expired, (now, now)).unwrap_err(), Fenced::Forgotten);
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

    #[test]
    fn entries_do_not_pile_up() {
        let mut map = map();
        for i in 0..10_000u64 {
            let start = i % 1_000 * 8;
            write(&mut map, start..start + 8, i, i).unwrap();
        }
        assert!(map.pieces.len() <= KEEP_MS as usize + 1, "{}", map.pieces.len());
        assert!(map.order.len() <= KEEP_MS as usize + 1, "{}", map.order.len());
    }
}
