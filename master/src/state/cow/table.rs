use std::sync::Arc;

const TOP: u32 = 128;
const MIDDLE: u32 = 128;
/// Narrow: the first write to a row after a clone counts up the references of its slots, each a cache miss of its own.
const BOTTOM: u32 = 16;

/// 2^18 slots in three levels; slots that were never written share one value.
///
/// A clone counts 128 references up. The first write to a slot after it copies a row of 16 and the slot, and a row of
/// 128 for every 2,048 slots.
pub(crate) struct CowTable<T> {
    rows: Vec<Middle<T>>,
}

type Middle<T> = Arc<Vec<Bottom<T>>>;
type Bottom<T> = Arc<Vec<Arc<T>>>;

impl<T> Clone for CowTable<T> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone() }
    }
}

/// The same value, many times.
fn shared<T>(value: Arc<T>, times: u32) -> Vec<Arc<T>> {
    std::iter::repeat_n(value, times as usize).collect()
}

/// The places of a slot in the three levels.
fn places(slot: u32) -> [usize; 3] {
    [slot / BOTTOM / MIDDLE % TOP, slot / BOTTOM % MIDDLE, slot % BOTTOM].map(|at| at as usize)
}

impl<T: Clone + Default> CowTable<T> {
    /// How many slots there are; a slot is named by any number and taken modulo this.
    pub(crate) const SLOTS: u32 = TOP * MIDDLE * BOTTOM;

    pub(crate) fn new() -> Self {
        let bottom = shared(Arc::new(T::default()), BOTTOM);
        let middle = shared(Arc::new(bottom), MIDDLE);
        Self { rows: shared(Arc::new(middle), TOP) }
    }

    pub(crate) fn get(&self, slot: u32) -> &T {
        let [top, middle, bottom] = places(slot);
        &self.rows[top][middle][bottom]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        let [top, middle, bottom] = places(slot);
        let row = &mut Arc::make_mut(&mut self.rows[top])[middle];
        Arc::make_mut(&mut Arc::make_mut(row)[bottom])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().flat_map(|row| row.iter()).flat_map(|row| row.iter()).map(|slot| &**slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let last = CowTable::<u32>::SLOTS - 1;
        let mut table = CowTable::<u32>::new();
        *table.get_mut(7) = 1;
        let before = table.clone();
        *table.get_mut(7) = 2;
        *table.get_mut(last) = 3;
        assert_eq!((*before.get(7), *before.get(last)), (1, 0));
        assert_eq!((*table.get(7), *table.get(last)), (2, 3));
        assert_eq!(table.iter().sum::<u32>(), 5);
    }

    #[test]
    fn slots_are_apart_and_in_order() {
        let mut table = CowTable::<u32>::new();
        for slot in 0..CowTable::<u32>::SLOTS {
            *table.get_mut(slot) = slot;
        }
        assert!(table.iter().copied().eq(0..CowTable::<u32>::SLOTS));
    }
}
