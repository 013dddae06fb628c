use std::collections::BTreeMap;

use super::record::Record;

/// Most different refusals within one span, and most of one host.
const DIFFERENT_MAX: usize = 1_000;
const DIFFERENT_OF_HOST_MAX: usize = 20;

/// Refusals since the last lines, equal ones as one. So a caller that is refused ten thousand times a second neither fills the disk
/// nor pushes others out of the log.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_kind: BTreeMap<[String; 4], Record>,
    /// Numbers of different refusals by hosts.
    hosts: BTreeMap<String, usize>,
}

impl Refusals {
    /// Adds a refusal; returns false if there are too many different ones.
    pub(super) fn add(&mut self, record: Record) -> bool {
        let kind = [&record.from, &record.who, &record.call, &record.result].map(Clone::clone);
        if !self.by_kind.contains_key(&kind) {
            let of_host = self.hosts.get(&record.from).copied().unwrap_or(0);
            if self.by_kind.len() >= DIFFERENT_MAX || of_host >= DIFFERENT_OF_HOST_MAX {
                return false;
            }
            self.hosts.insert(record.from.clone(), of_host + 1);
        }
        let first = self.by_kind.entry(kind).or_insert(record);
        first.times = Some(first.times.unwrap_or(0) + 1);
        true
    }

    /// Takes them, the oldest first.
    pub(super) fn take(&mut self) -> Vec<Record> {
        let Self { by_kind, .. } = std::mem::take(self);
        let mut records: Vec<_> = by_kind.into_values().collect();
        records.sort_by_key(|record| record.at_ms);
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_refusals_are_one_line_and_a_flood_of_different_ones_is_bounded() {
        let mut refusals = Refusals::default();
        let by = |from: usize, call: usize, at_ms| Record {
            from: from.to_string(),
            call: call.to_string(),
            at_ms,
            ..Record::default()
        };
        for at_ms in 0..5 {
            assert!(refusals.add(by(1, 0, 10 + at_ms)));
        }
        assert!(refusals.add(by(2, 0, 3)));
        let taken = refusals.take();
        let shown: Vec<_> = taken.iter().map(|it| (&*it.from, it.at_ms, it.times)).collect();
        assert_eq!(shown, [("2", 3, Some(1)), ("1", 10, Some(5))]);
        assert!(refusals.take().is_empty());

        assert!((0..DIFFERENT_OF_HOST_MAX).all(|call| refusals.add(by(0, call, 0))));
        assert!(!refusals.add(by(0, 99, 0)), "a host has its share");
        assert!(refusals.add(by(0, 7, 0)), "equal ones are counted");
        let others = (1..DIFFERENT_MAX).take_while(|host| refusals.add(by(*host, 0, 0)));
        assert_eq!(others.count(), DIFFERENT_MAX - DIFFERENT_OF_HOST_MAX);
    }
}
