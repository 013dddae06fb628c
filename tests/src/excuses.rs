use std::ops::Range;

use mc_types::StoreId;

use crate::checker::Losses;

/// Spans of a history's time in which what a store holds may be missed, with the reason known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Excuses(Vec<(Option<StoreId>, Range<u64>)>);

impl Excuses {
    /// Adds spans of one store; `None`: of any.
    pub(crate) fn add(&mut self, store: Option<StoreId>, span: Range<u64>) {
        self.0.push((store, span));
    }

    /// Returns when a key may be missed whose value lies on these stores, all of which must be excused at a time; `None`: it may
    /// lie on any store.
    pub(crate) fn of(&self, stores: Option<&[StoreId]>) -> Losses {
        let spans_of = |store: Option<StoreId>| {
            let is_of =
                move |it: &&(Option<StoreId>, Range<u64>)| it.0.is_none() || store.is_none() || it.0 == store;
            self.0.iter().filter(is_of).map(|(_, span)| span.clone()).collect::<Vec<_>>()
        };
        let spans = match stores {
            None => spans_of(None),
            Some(stores) => {
                let each = stores.iter().map(|store| spans_of(Some(*store)));
                each.reduce(|one, other| overlaps(&one, &other)).unwrap_or_default()
            }
        };
        if spans.is_empty() { Losses::None } else { Losses::Within(spans) }
    }
}

/// Returns the spans that are in both lists.
fn overlaps(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let pairs = one.iter().flat_map(|one| other.iter().map(move |other| (one, other)));
    let common = pairs.map(|(one, other)| one.start.max(other.start)..one.end.min(other.end));
    common.filter(|span| !span.is_empty()).collect()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one span of time")]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_excused_only_where_all_stores_of_its_replicas_are() {
        let (a, b, c) = (StoreId(1), StoreId(2), StoreId(3));
        let mut excuses = Excuses::default();
        excuses.add(Some(a), 10..30);
        excuses.add(Some(b), 20..40);
        assert_eq!(excuses.of(Some(&[a])), Losses::Within(vec![10..30]));
        assert_eq!(excuses.of(Some(&[a, b])), Losses::Within(vec![20..30]));
        assert_eq!(excuses.of(Some(&[a, c])), Losses::None);
        assert_eq!(excuses.of(Some(&[c])), Losses::None);
        assert_eq!(excuses.of(None), Losses::Within(vec![10..30, 20..40]), "it may lie on either");
        excuses.add(None, 50..60);
        assert_eq!(excuses.of(Some(&[c])), Losses::Within(vec![50..60]));
        assert_eq!(excuses.of(Some(&[a, c])), Losses::Within(vec![50..60]));
    }
}
