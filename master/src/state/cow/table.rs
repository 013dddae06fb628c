use std::sync::Arc;

const FANOUT: usize = 256;

/// 65,536 slots in two levels of 256; slots that were never written share one value.
///
/// Two levels, because a flat table would make each clone count 65,536 references up.
pub(crate) struct CowTable<T> {
    rows: Vec<Arc<Vec<Arc<T>>>>,
}

impl<T> Clone for CowTable<T> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone() }
    }
}

impl<T: Clone + Default> CowTable<T> {
    pub(crate) fn new() -> Self {
        let empty = Arc::new(T::default());
        let row = Arc::new(vec![empty; FANOUT]);
        Self { rows: vec![row; FANOUT] }
    }

    pub(crate) fn get(&self, slot: u16) -> &T {
        &self.rows[usize::from(slot >> 8)][usize::from(slot & 0xff)]
    }

    pub(crate) fn get_mut(&mut self, slot: u16) -> &mut T {
        let row = Arc::make_mut(&mut self.rows[usize::from(slot >> 8)]);
        Arc::make_mut(&mut row[usize::from(slot & 0xff)])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().flat_map(|row| row.iter()).map(|slot| &**slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut table = CowTable::<u32>::new();
        *table.get_mut(7) = 1;
        let before = table.clone();
        *table.get_mut(7) = 2;
        *table.get_mut(65_535) = 3;
        assert_eq!((*before.get(7), *before.get(65_535)), (1, 0));
        assert_eq!((*table.get(7), *table.get(65_535)), (2, 3));
        assert_eq!(table.iter().sum::<u32>(), 5);
    }
}
