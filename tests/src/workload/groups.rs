use std::collections::BTreeMap;

use mc_client::{PutFrom, PutMode};

use super::judged::{Judged, action};
use crate::checker::{Action, Operation, Outcome};
use crate::{History, Seeded};

const PARTS: [&str; 3] = ["kv", "index", "state"];
/// Pages of a client that are put again and again once they are gone.
const PAGES: u64 = 50;
/// Length of a part.
const PART: std::ops::Range<u64> = 2 << 10..64 << 10;

impl Judged {
    /// Puts a page, whose parts are a group, in one call, or reads one.
    pub(super) async fn group(&self, random: &mut Seeded) {
        let group = format!("page-{}-{}", self.number, random.below(PAGES));
        let keys = PARTS.map(|part| format!("{group}/{part}"));
        if random.below(2) == 0 {
            let call = self.call(keys.iter().map(|key| (self.name(key), Action::Get)).collect());
            let got = self.client.batch_get(&keys).await;
            call.answered(got, |call, got| call.got(got));
            return;
        }
        let options = self.workload.options(PutMode::IfAbsent);
        let values =
            keys.each_ref().map(|key| self.puts.begin(&self.name(key), random.within(PART) as usize));
        let slices = values.each_ref().map(|(bytes, _)| [&bytes[..]]);
        let item = |(key, slices)| PutFrom::new::<String>(key, slices).with_group(&group);
        let items: Vec<_> = keys.iter().zip(slices.each_ref().map(|slices| &slices[..])).map(item).collect();
        let asked =
            keys.iter().zip(&values).map(|(key, (_, value))| (self.name(key), action(&options, *value)));
        let call = self.call(asked.collect());
        let puts = self.client.batch_put_from(&items, &options).await;
        call.answered(puts, |call, put| call.put(put));
    }
}

/// Asserts that of each page all parts are left, or none: the members of a group are evicted together.
///
/// For a run in which every store lived. A page is left out if a put of it failed, or may not have taken effect, or
/// overlapped a removal.
#[track_caller]
pub(super) fn assert_whole(history: &History) {
    let mut pages: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        if let Some((page, _)) = operation.key.split_once('/') {
            pages.entry(page).or_default().push(operation);
        }
    }
    for (page, operations) in pages {
        let puts = || operations.iter().filter(|it| it.action.writes().is_some());
        let removes = || operations.iter().filter(|it| it.action == Action::Remove);
        let may_be_in_part = puts().any(|put| {
            !matches!(put.outcome, Outcome::Stored | Outcome::Exists)
                || removes().any(|remove| remove.start < put.end && put.start < remove.end)
        });
        if may_be_in_part {
            continue;
        }
        let last: BTreeMap<&str, Outcome> = operations.iter().map(|it| (&*it.key, it.outcome)).collect();
        let left = last.values().filter(|outcome| matches!(outcome, Outcome::Value(_))).count();
        assert!(left == 0 || left == last.len(), "{left} parts of {page} are left: {last:?}");
    }
}
