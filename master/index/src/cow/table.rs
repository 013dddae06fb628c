use triomphe::Arc;

use crate::work::count_work;

const MIDDLE: usize = 128;
/// Slots in a row: few, because the first write to a row after a clone increments the reference counts of its slots.
const BOTTOM: usize = 16;

/// A table of `TOP` times 2,048 slots in three levels; slots that were never written to share one value.
///
/// A clone increments `TOP` reference counts. The first write to a slot afterwards copies a row of 16 and the slot, and
/// a row of 128 for every 2,048 slots.
pub(crate) struct CowTable<T, const TOP: usize> {
    rows: Vec<Arc<Middle<T>>>,
    /// A row that was never written to.
    blank: Arc<Middle<T>>,
}

type Middle<T> = [Arc<Bottom<T>>; MIDDLE];
type Bottom<T> = [Arc<T>; BOTTOM];

impl<T, const TOP: usize> Clone for CowTable<T, TOP> {
    fn clone(&self) -> Self {
        count_work(TOP);
        Self { rows: self.rows.clone(), blank: self.blank.clone() }
    }
}

/// Returns an array of references to one shared value.
fn shared<T, const TIMES: usize>(value: T) -> [Arc<T>; TIMES] {
    let value = Arc::new(value);
    std::array::from_fn(|_| Arc::clone(&value))
}

/// Returns the indexes of a slot in the three levels.
fn places<const TOP: usize>(slot: u32) -> [usize; 3] {
    let slot = slot as usize;
    [slot / BOTTOM / MIDDLE % TOP, slot / BOTTOM % MIDDLE, slot % BOTTOM]
}

impl<T: Clone + Default, const TOP: usize> CowTable<T, TOP> {
    /// Number of slots. Any number names a slot: it is taken modulo this.
    pub(crate) const SLOTS: usize = TOP * MIDDLE * BOTTOM;

    pub(crate) fn new() -> Self {
        let bottom: Bottom<T> = shared(T::default());
        let blank: Arc<Middle<T>> = Arc::new(shared(bottom));
        Self { rows: vec![Arc::clone(&blank); TOP], blank }
    }

    pub(crate) fn get(&self, slot: u32) -> &T {
        count_work(1);
        let [top, middle, bottom] = places::<TOP>(slot);
        &self.rows[top][middle][bottom]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        count_work(1);
        let [top, middle, bottom] = places::<TOP>(slot);
        let row = &mut Arc::make_mut(&mut self.rows[top])[middle];
        if Arc::strong_count(row) > 1 {
            // Copying increments the counts one by one, each a cache miss. The misses of plain reads overlap.
            std::hint::black_box(row.iter().map(Arc::strong_count).sum::<usize>());
        }
        Arc::make_mut(&mut Arc::make_mut(row)[bottom])
    }

    /// Iterates over the slots in order, except those of rows that were never written to: in a table with few entries,
    /// these are nearly all.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.iter_from(0).map(|(_, slot)| slot)
    }

    /// [`Self::iter`] from a slot on, with the number of each.
    pub(crate) fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        let rows =
            self.rows.iter().zip((0..).step_by(MIDDLE * BOTTOM)).skip(first as usize / BOTTOM / MIDDLE);
        let rows = rows.filter(|(row, _)| !Arc::ptr_eq(row, &self.blank));
        let rows = rows.flat_map(|(row, at): (_, u32)| row.iter().zip((at..).step_by(BOTTOM)));
        let written = rows.filter(|(row, _)| !Arc::ptr_eq(row, &self.blank[0]));
        let slots = written.flat_map(|(row, at)| (at..).zip(row.iter().map(|slot| &**slot)));
        slots.skip_while(move |(at, _)| *at < first).inspect(|_| count_work(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = CowTable<u32, 4>;
    const SLOTS: u32 = Table::SLOTS as u32;

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let last = SLOTS - 1;
        let mut table = Table::new();
        *table.get_mut(7) = 1;
        let before = table.clone();
        *table.get_mut(7) = 2;
        *table.get_mut(last) = 3;
        assert_eq!((*before.get(7), *before.get(last)), (1, 0));
        assert_eq!((*table.get(7), *table.get(last)), (2, 3));
        assert_eq!(table.iter().sum::<u32>(), 5);
    }

    #[test]
    fn what_was_never_written_is_passed_over() {
        let mut table = Table::new();
        assert_eq!(table.iter().count(), 0);
        *table.get_mut(5_000) = 1;
        *table.clone().get_mut(1) = 1;
        assert_eq!((table.iter().count(), table.iter().sum::<u32>()), (BOTTOM, 1));
    }

    #[test]
    fn slots_are_apart_and_in_order() {
        let mut table = Table::new();
        for slot in 0..SLOTS {
            *table.get_mut(slot) = slot;
        }
        assert!(table.iter().copied().eq(0..SLOTS));
        for first in [0, 1, 15, 16, 2047, 2048, SLOTS - 1, SLOTS, u32::MAX] {
            let from = table.iter_from(first).map(|(at, slot)| (at, *slot));
            assert!(from.eq((first..SLOTS.max(first)).map(|at| (at, at))), "from {first}");
        }
    }
}
