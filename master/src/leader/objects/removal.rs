//! Removal of objects: by key, by pattern, all of a tenant, and replicas on one store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_eviction::OBJECTS_PER_ENTRY;
use mc_index::{ListedObject, RemoveItem, Request};
use mc_types::Code;
use regex::bytes::{Regex, RegexBuilder};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::preference::is_called;
use super::{Objects, RemoveObject};
use crate::leader::term::{Leading, Refusal};

/// Attempts of a remove that names no version, while upserts replace the object in between.
const REMOVE_ROUNDS: usize = 3;
/// Longest pattern, in bytes.
const PATTERN_MAX: usize = 4 << 10;
/// Memory that a compiled pattern may take. Matching takes time in proportion to it and to the key.
const COMPILED_MAX: usize = 256 << 10;
/// Objects in one entry of a removal by pattern: as many as in one that evicts, because readers wait while it is applied.
const REMOVED_PER_ENTRY: usize = OBJECTS_PER_ENTRY;
/// Bytes of keys in one entry of a removal by pattern: half of what an entry may have.
const REMOVED_BYTES: usize = 512 << 10;
/// Time after which one call of a removal by pattern answers how far it has come. The caller then goes on from there.
const CALL_TIME: Duration = Duration::from_millis(500);
/// Number of calls that match keys against their pattern at a time; each takes up to a processor. Others wait.
const MATCHING_AT_ONCE: usize = 2;

/// Places of the calls that match keys against a pattern.
pub(super) fn matching_places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MATCHING_AT_ONCE))
}

/// Progress of a removal by pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovalPage {
    /// Objects removed by this call.
    pub(crate) objects: u64,
    /// Objects that match and stay, because they are leased.
    pub(crate) leased: u64,
    /// Position from which the next call continues; `None` at the end.
    pub(crate) next: Option<u64>,
}

impl Objects {
    /// Removes the current versions; with `force`, also leased ones. Returns one code per item.
    ///
    /// Items that do not exist, are leased or have another version are answered without a log entry. The rest go into
    /// one entry that names (key, version), so a newer version is never removed. An item that names no version and lost
    /// a race with an upsert is tried again with the newer version.
    pub(crate) async fn remove(
        &self,
        tenant: &str,
        items: &[RemoveObject],
        force: bool,
    ) -> Result<Vec<Code>, Refusal> {
        let mut codes: Vec<Option<Code>> = vec![None; items.len()];
        for round in 0..REMOVE_ROUNDS {
            match self.remove_round(tenant, items, force, &mut codes).await {
                Ok(()) => {}
                Err(refusal) if round == 0 => return Err(refusal),
                // Some items may be removed by now, so the call as a whole cannot fail definitely any more.
                Err(refusal) => return Err(Refusal::Unknown(format!("some were removed, then: {refusal}"))),
            }
            if codes.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(codes.into_iter().map(|code| code.unwrap_or(Code::VersionChanged)).collect())
    }

    /// Sets a code for each item that has none yet, except for items that lost a race.
    async fn remove_round(
        &self,
        tenant: &str,
        items: &[RemoveObject],
        force: bool,
        answers: &mut [Option<Code>],
    ) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        let reuse_at = leading.hold_until();
        let mut proposed = Vec::new();
        self.coordinator.read(|applied| {
            for (place, item) in items.iter().enumerate() {
                if answers[place].is_some() {
                    continue;
                }
                let code = match applied.state.get(tenant, &item.key) {
                    None => Code::ObjectNotFound,
                    Some(object) if item.version.is_some_and(|version| version != object.version) => {
                        Code::VersionChanged
                    }
                    Some(object) if !force && leading.is_leased(object.version) => Code::ObjectHasLease,
                    Some(object) => {
                        let key = item.key.to_vec();
                        proposed.push((place, RemoveItem { key, version: object.version, reuse_at }));
                        continue;
                    }
                };
                answers[place] = Some(code);
            }
        });
        if proposed.is_empty() {
            return Ok(());
        }
        let (places, removed): (Vec<_>, Vec<_>) = proposed.into_iter().unzip();
        let codes = self.coordinator.propose(&leading, &Request::remove(tenant.to_owned(), removed)).await?;
        for (place, code) in places.into_iter().zip(codes) {
            let raced = code == Code::VersionChanged && items[place].version.is_none();
            answers[place] = (!raced).then_some(code);
        }
        Ok(())
    }

    /// Removes all objects of a tenant, leased and pinned ones included, in one entry. Returns their number.
    pub(crate) async fn remove_all(&self, tenant: String) -> Result<u64, Refusal> {
        let leading = self.coordinator.lead().await?;
        let removed = Request::remove_all(tenant, leading.hold_until());
        self.coordinator.propose(&leading, &removed).await
    }

    /// Removes the objects of a tenant whose keys match a pattern, from a position on; all, if the pattern is empty.
    /// Pinned ones are removed, too; leased ones only with `force`.
    ///
    /// A call removes what it finds within half a second, and says where the next one goes on. Objects that are put
    /// meanwhile may be removed or not.
    pub(crate) async fn remove_matching(
        &self,
        tenant: &str,
        pattern: &str,
        force: bool,
        from: u64,
    ) -> Result<RemovalPage, Refusal> {
        let pattern = compile(pattern)?;
        let until = Instant::now() + CALL_TIME;
        let mut removed = RemovalPage { next: Some(from), ..RemovalPage::default() };
        while let Some(at) = removed.next.filter(|_| Instant::now() < until) {
            let pattern = pattern.as_ref().map(|pattern| (pattern, until));
            let outcome = self.remove_page(tenant, pattern, force, at, &mut removed).await;
            match outcome {
                Ok(next) => removed.next = next,
                Err(refusal) if removed.objects == 0 => return Err(refusal),
                // The removed objects must be reported. The caller continues from here and gets the refusal then.
                Err(_) => return Ok(removed),
            }
        }
        Ok(removed)
    }

    /// Removes what matches on one page of the listing, or on the part of it for which a pattern has the time. Returns where
    /// the next page begins.
    async fn remove_page(
        &self,
        tenant: &str,
        pattern: Option<(&Regex, Instant)>,
        force: bool,
        from: u64,
        removed: &mut RemovalPage,
    ) -> Result<Option<u64>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let page = self
            .coordinator
            .read(|applied| applied.state.list(tenant, b"", from, REMOVED_PER_ENTRY, REMOVED_BYTES));
        let (objects, next) = match pattern {
            None => (page.objects, page.next),
            Some((pattern, until)) => {
                let Matched { objects, stopped } =
                    self.matching(page.objects, pattern.clone(), until).await?;
                (objects, stopped.or(page.next))
            }
        };
        let before = objects.len();
        let items = remove_items(&leading, objects, force);
        let leased = before - items.len();
        if !items.is_empty() {
            let request = Request::remove(tenant.to_owned(), items);
            let codes = self.coordinator.propose(&leading, &request).await?;
            removed.objects += codes.iter().filter(|code| **code == Code::Ok).count() as u64;
        }
        // Counted once the page is done: the caller begins a page again whose entry was refused.
        removed.leased += leased as u64;
        Ok(next)
    }

    /// Matches keys apart from the tasks of the runtime, and without a lock: a pattern may take long on long keys. It ends
    /// early if the caller goes away.
    async fn matching(
        &self,
        objects: Vec<ListedObject>,
        pattern: Regex,
        until: Instant,
    ) -> Result<Matched, Refusal> {
        let busy =
            || Refusal::Busy(format!("{MATCHING_AT_ONCE} other calls are removing objects by a pattern"));
        let place = timeout_at(until, self.matching.clone().acquire_owned()).await.map_err(|_| busy())?;
        let place = place.map_err(|_| busy())?;
        let caller = CancellationToken::new();
        let gone = caller.clone();
        let _gone_with_caller = caller.drop_guard();
        let matched = mc_durable::blocking(move || {
            let _place = place;
            Matched::of(objects, &pattern, || gone.is_cancelled() || Instant::now() >= until)
        });
        matched.await.map_err(|_| Refusal::Unknown("this master is stopping".into()))
    }

    /// Drops the replicas of objects on the store with this name or address, unless they are leased. An object without
    /// another replica is removed. Returns one code per key.
    pub(crate) async fn drop_replicas(
        &self,
        tenant: &str,
        store_name: &str,
        keys: &[Bytes],
    ) -> Result<Vec<Code>, Refusal> {
        let leading = self.coordinator.lead().await?;
        let reuse_at = leading.hold_until();
        let mut codes = vec![Code::ObjectNotFound; keys.len()];
        let mut places = Vec::new();
        let mut items = Vec::new();
        let store = self.coordinator.read(|applied| {
            let state = &applied.state;
            let store = state.stores().find(|store| is_called(store, store_name))?.store;
            for (at, key) in keys.iter().enumerate() {
                let Some(object) = state.get(tenant, key) else { continue };
                if leading.is_leased(object.version) {
                    codes[at] = Code::ObjectHasLease;
                } else {
                    places.push(at);
                    items.push(RemoveItem { key: key.to_vec(), version: object.version, reuse_at });
                }
            }
            Some(store)
        });
        let Some(store) = store else {
            return Err(Refusal::Invalid(format!(
                "no store `{store_name}` is mounted: `mcctl status` lists the stores"
            )));
        };
        if !items.is_empty() {
            let request = Request::drop_replicas(tenant.to_owned(), store, items);
            let answers = self.coordinator.propose(&leading, &request).await?;
            for (at, code) in places.into_iter().zip(answers) {
                codes[at] = code;
            }
        }
        Ok(codes)
    }
}

/// Compiles a pattern, within bounds; `None` for an empty one, which all keys match.
fn compile(pattern: &str) -> Result<Option<Regex>, Refusal> {
    if pattern.is_empty() {
        return Ok(None);
    }
    if pattern.len() > PATTERN_MAX {
        let len = pattern.len();
        return Err(Refusal::Invalid(format!(
            "a pattern of {len} bytes: at most {PATTERN_MAX} bytes are allowed"
        )));
    }
    let built = RegexBuilder::new(pattern).size_limit(COMPILED_MAX).dfa_size_limit(COMPILED_MAX).build();
    built.map(Some).map_err(|error| {
        // The text of a syntax error has the pattern and a pointer on lines of their own before the reason.
        let text = error.to_string();
        let why = text.lines().last().map_or("", |line| line.trim_start_matches("error: "));
        Refusal::Invalid(format!("`{pattern}` is no regular expression that can be used here: {why}"))
    })
}

/// Objects of a page that match a pattern.
#[derive(Debug, PartialEq, Eq)]
struct Matched {
    objects: Vec<ListedObject>,
    /// Position from which the next page begins, if the time was up before all were looked at.
    stopped: Option<u64>,
}

impl Matched {
    /// Matches one key after the other until it is told to stop, but at least one.
    fn of(objects: Vec<ListedObject>, pattern: &Regex, stop: impl Fn() -> bool) -> Self {
        let mut matched = Self { objects: Vec::new(), stopped: None };
        let mut before = None;
        for object in objects {
            // The next page begins between two positions.
            if before.is_some_and(|before| before != object.after) && stop() {
                matched.stopped = before;
                break;
            }
            before = Some(object.after);
            if pattern.is_match(&object.key) {
                matched.objects.push(object);
            }
        }
        matched
    }
}

/// Returns what is to be removed of these: all, or those without a lease.
fn remove_items(leading: &Leading, objects: Vec<ListedObject>, force: bool) -> Vec<RemoveItem> {
    let reuse_at = leading.hold_until();
    let goes = |object: &ListedObject| force || !leading.is_leased(object.version);
    let item = |object: ListedObject| RemoveItem { key: object.key, version: object.version, reuse_at };
    objects.into_iter().filter(goes).map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[(&str, u64)]) -> Vec<ListedObject> {
        let object = |&(key, after): &(&str, u64)| ListedObject {
            key: key.into(),
            size: 1,
            version: mc_types::PutId(1),
            after,
        };
        keys.iter().map(object).collect()
    }

    #[test]
    fn a_page_ends_where_the_time_for_matching_does() {
        let objects = || listed(&[("a1", 10), ("b1", 20), ("a2", 20), ("a3", 30), ("a4", 40)]);
        let pattern = Regex::new("^a").unwrap();
        let left = std::cell::Cell::new(0);
        let after = |looks: u32| {
            left.set(looks);
            Matched::of(objects(), &pattern, || left.replace(left.get().saturating_sub(1)) == 0)
        };
        let matched = |keys: &[(&str, u64)], stopped| Matched { objects: listed(keys), stopped };
        assert_eq!(after(0), matched(&[("a1", 10)], Some(10)), "one is always looked at");
        assert_eq!(after(1), matched(&[("a1", 10), ("a2", 20)], Some(20)), "b1 and a2 are not separated");
        let all = [("a1", 10), ("a2", 20), ("a3", 30), ("a4", 40)];
        assert_eq!(after(9), matched(&all, None));
    }

    #[test]
    fn patterns_are_unanchored_and_bounded() {
        let of = |pattern: &str| compile(pattern);
        assert!(of("").unwrap().is_none());
        assert!(of("b+").unwrap().unwrap().is_match(b"abbc"));
        assert!(!of("^b").unwrap().unwrap().is_match(b"abbc"));
        assert!(of("\\xff").unwrap().unwrap().is_match("\u{ff}".as_bytes()));
        let why = of("[").unwrap_err().to_string();
        assert!(why.ends_with("can be used here: unclosed character class"), "{why}");
        for bad in ["(", "(a{1000}){1000}", &"a".repeat(PATTERN_MAX + 1)] {
            assert!(matches!(of(bad), Err(Refusal::Invalid(_))), "{}", bad.len());
        }
    }
}
