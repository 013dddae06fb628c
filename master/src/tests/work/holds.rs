//! Work of each hold of the index's lock by a leader: of every call, and of what a leader does unasked.
//!
//! The holds are found by their text in the sources (`.read(|`, `.read(MemberState`), and each must have been counted here or be
//! in [`ELSEWHERE`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use mc_index::{KeyHash, PlacedReplica, PutEndItem, PutStartItem, Quota};
use mc_net::{Principal, TcpNetwork};
use mc_process::metrics::Registry;
use mc_raft::testing::Pool;
use mc_raft::{RaftTiming, SharedIndex, SnapshotLimits};
use mc_types::{ClusterTime, Code, GrantedRange, NodeId, PutId, SegmentEpoch, StoreId};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::fleet::{EACH, Fleet, SEGMENTS, SIZE, STORES, TENANTS, key, mount, tenant};
use crate::access::StoreCaller;
use crate::api::Api;
use crate::audit::AuditLogs;
use crate::http::{MetricNames, routes};
use crate::leader::tests::GRANT_KEY;
use crate::leader::tests::upgrade::services;
use crate::leader::{
    Doubtful, GrantedReplica, Holder, LeaseMode, Near, Preference, PutToEnd, RemoveObject, Services, duties,
    keep_members, keep_room, tell_of_members, watch,
};
use crate::metrics::MasterMetrics;

/// Steps of a look at a few numbers.
const FEW: u64 = 64;
/// Steps for one key, put or victim, whatever the size of the index.
const ITEM: u64 = 24;
/// Steps of a look at each mounted store with its segments. A hold that takes as many is linear in the stores.
const ALL_STORES: u64 = STORES * (2 + 2 * SEGMENTS);
/// Steps of a page of a listing, which visits at most 64 Ki objects and parts of the index.
const PAGE: u64 = 3 * (64 << 10);

/// Steps of a look at all segments for an object that fits in none of them.
const UNFIT: u64 = STORES * SEGMENTS * 8;

/// Most steps of the holds beside puts that wait, by a part of the line that takes the lock; a few for all others.
const WAITING: [(&str, u64); 15] = [
    // Tenants that have put something lately, at most 4,096.
    ("tenants_in_excess", 4_096 * 4),
    // At most 2,048 victims, or as many objects that lie side by side.
    ("evictor.choose(", 2_048 * 2 * ITEM),
    ("let found", ALL_STORES + 2_048 * ITEM),
    ("let slice", 2_048 * ITEM),
    ("evictor.keep(", 2_048 * ITEM),
    ("evictor.follow(", 4_096 * ITEM),
    // A slice of 1,024 units.
    ("evictor.prune(", 1_024 * 8),
    ("take_notes(", 4_096 * 8),
    // All tenants, after a change of quotas alone.
    ("is_outdated(", 4 * TENANTS),
    // Four of the sizes that wait. Linear in the stores.
    ("index.read(|applied| {", 4 * UNFIT),
    ("untried(", ALL_STORES + 4_096 * ITEM),
    ("let short", ALL_STORES + 4_096 * ITEM),
    (".state.mounted().map(", 2 * STORES),
    ("common_stores(", 2 * STORES),
    ("let dead", 2 * STORES),
];

/// Holds that no call here makes: a part of the line, and why it needs no count.
const ELSEWHERE: [(&str, &str); 7] = [
    (
        "&& objects.index.read(|applied| self.evictor.is_outdated",
        "counted where reuse is noted; here for a tenant in its first second",
    ),
    ("coordinator.read(MemberState::of)", "the members"),
    ("let version = ", "one number"),
    ("&there.versions", "one number, of a member that is taken in"),
    ("members = services.coordinator.read", "the members, while Raft starts"),
    ("has_more(tenant, applied)", "one look at a tenant"),
    ("self.evictor.keep(&items", "the victims of one entry, after a refusal"),
];

/// A taking of the index's lock: the occasion, and the file and line of the code.
type Hold = (String, String, u32);

/// Holds of the index's lock.
#[derive(Default)]
struct Judge {
    /// The most steps of each, and the most that it may take.
    seen: BTreeMap<Hold, (u64, u64)>,
}

impl Judge {
    /// Adds the holds since the last call. `most` returns the most steps that one may take, by the line that takes the lock.
    fn holds(&mut self, index: &SharedIndex, what: &str, most: impl Fn(&str) -> u64) {
        for (place, steps) in index.holds() {
            // Entries are judged by themselves.
            let Some((_, file)) = place.file().split_once("master/src/") else { continue };
            let most = most(&line(file, place.line()));
            let hold = (what.to_owned(), file.to_owned(), place.line());
            let (known, _) = self.seen.entry(hold).or_insert((0, most));
            *known = steps.max(*known);
        }
    }

    /// Prints the holds, and returns those that took too many steps or were not counted.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = self.others("");
        for ((what, file, at), (steps, most)) in &self.seen {
            let said =
                format!("{steps:>9} of {most:>9} steps: {what} ({file}:{at}: {})", line(file, *at).trim());
            println!("{said}");
            if steps > most {
                wrong.push(said);
            }
        }
        wrong
    }

    /// Returns the places in a folder of the sources that take the lock and were not counted.
    fn others(&self, folder: &str) -> Vec<String> {
        let (mut dirs, mut others) = (vec![source().join(folder)], Vec::new());
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() && !entry.ends_with("tests") {
                    dirs.push(entry);
                } else if entry.extension().is_some_and(|extension| extension == "rs") {
                    others.extend(self.others_in(&entry));
                }
            }
        }
        others
    }

    fn others_in(&self, path: &Path) -> Vec<String> {
        let file = path.strip_prefix(source()).unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let takes = |text: &str| text.contains(".read(|") || text.contains(".read(MemberState");
        let is_known = |text: &str, at| {
            self.seen.keys().any(|(_, known, line)| *known == file && *line == at)
                || ELSEWHERE.iter().any(|(part, _)| text.contains(part))
        };
        let places = text.lines().zip(1..).filter(|(text, at)| takes(text) && !is_known(text, *at));
        places
            .map(|(text, at)| format!("{file}:{at} takes the index's lock uncounted: {}", text.trim()))
            .collect()
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn line(file: &str, number: u32) -> String {
    let text = std::fs::read_to_string(source().join(file)).unwrap();
    text.lines().nth(number as usize - 1).unwrap().to_owned()
}

/// A leader of one master over a large index.
struct Leader {
    services: Arc<Services>,
    api: Arc<Api>,
    index: SharedIndex,
    stop: CancellationToken,
    judge: Judge,
    _pool: Pool,
    _dir: TempDir,
}

impl Leader {
    async fn over(fleet: &Fleet) -> Self {
        let mut pool = Pool::formed_with(1, SnapshotLimits::default(), RaftTiming::LAN).await;
        let leads = pool.leader().await;
        let (dir, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let raft = pool.take(leads);
        let index = raft.index().clone();
        index.set_state(fleet.state.clone());
        let services = Arc::new(services(raft, &dir, Box::new(|| 0), stop.clone()));
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let audit = AuditLogs::open(dir.path(), true, metrics.calls.audit_lost.clone()).unwrap();
        let api = Api::new(NodeId(1), TcpNetwork::shared(), metrics, Arc::new(audit));
        api.open(services.clone());
        index.holds();
        Self { services, api, index, stop, judge: Judge::default(), _pool: pool, _dir: dir }
    }

    /// Judges the holds since the last call, each of which may take at most so many steps.
    fn holds(&mut self, what: &str, most: u64) {
        self.judge.holds(&self.index, what, |_| most);
    }

    async fn http(&self, path: &str) {
        let metrics = Arc::new(MasterMetrics::new(Registry::new()));
        let asked = Request::get(path).extension(Principal::Open).body(Body::empty()).unwrap();
        let answer = routes(self.api.clone(), metrics, MetricNames::Own).oneshot(asked).await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    }

    /// Calls of clients.
    async fn calls(&mut self) {
        let services = self.services.clone();
        let (objects, of) = (&services.objects, tenant(1));
        let keys: Vec<Bytes> = (0..EACH).map(|n| key(n).into()).collect();
        let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();

        services.coordinator.lead().await.unwrap();
        self.holds("begin of a term", 2 * STORES);
        for lease in [LeaseMode::None, LeaseMode::Grant] {
            let found = objects.exist(&of, &slices, &[keys.len()], lease).await.unwrap();
            assert!(found.iter().all(Result::is_ok));
            self.holds("exist", EACH * ITEM);
        }
        let found = objects.get(&of, &keys, &[keys.len()], Doubtful::Checked, Holder::Plain).await.unwrap();
        assert!(found.found.iter().all(Result::is_ok));
        self.holds("get", EACH * ITEM);
        objects.describe(&of, &keys).await.unwrap();
        self.holds("describe", EACH * ITEM);
        objects.list_keys(&of, b"key", 0, 1_000).await.unwrap();
        self.holds("list", PAGE);

        let items = |count: u64, size: u64| -> Vec<_> {
            let start = |n: u64| {
                let id = PutId(u128::from(size * 1_000 + n) << 90);
                PutStartItem::new(id, &key(1_000 + n), size, ClusterTime(u64::MAX / 4))
            };
            (0..count).map(start).collect()
        };
        let any = Preference::default();
        let puts = items(EACH, SIZE);
        let started =
            objects.put_start(&of, |_| Ok(puts.clone()), &[puts.len()], &any, Holder::Plain).await.unwrap();
        assert!(started.puts.iter().all(|(code, _)| *code == Code::Ok));
        self.holds("put start", EACH * ITEM);
        let ends = puts.iter().zip(&started.puts).map(|(put, (_, places))| end(&services, put, &of, places));
        let ended = objects.put_end(ends.collect()).await.unwrap();
        assert!(ended.iter().all(|code| *code == Code::Ok), "{ended:?}");
        self.holds("put end", EACH * ITEM);
        objects.put_revoke(&of, puts.iter().map(|put| put.put).collect()).await.unwrap();
        self.holds("put revoke", FEW);
        let near = Preference { names: vec!["store-7".into()], near: Near::EachOther };
        objects.put_start(&of, |_| Ok(items(1, SIZE + 64)), &[1], &near, Holder::Plain).await.unwrap();
        self.holds("put start that prefers stores", ALL_STORES);
        objects.put_start(&of, |_| Ok(items(1, 1 << 30)), &[1], &any, Holder::Plain).await.unwrap();
        self.holds("put start that is too large", ALL_STORES);

        objects.report_mismatch(KeyHash::of("", b"k"), PutId(1), StoreId(1)).await.unwrap();
        self.holds("report of a mismatch", FEW);
        objects.drop_replicas(&of, "store-999", &keys).await.unwrap();
        self.holds("drop replicas", ALL_STORES + EACH * ITEM);
        let remove = |key: &Bytes| RemoveObject { key: key.clone(), version: None };
        objects.remove(&of, &keys.iter().map(remove).collect::<Vec<_>>(), false).await.unwrap();
        self.holds("remove", EACH * ITEM);
        objects.remove_matching(&tenant(2), "key [12]", true, 0).await.unwrap();
        self.holds("remove by pattern", PAGE);
        objects.remove_all(tenant(3)).await.unwrap();
        self.holds("remove all", FEW);

        for after in [None, Some(tenant(TENANTS - 200))] {
            services.tenants.list(after.as_ref().map(String::as_bytes), 100).await.unwrap();
            self.holds("page of tenants", 100 * 4);
        }
        services.key_values.get(b"key").await.unwrap();
        services.configuration.get().await.unwrap();
        services.members.list().await.unwrap();
        services.coordinator.known_settings();
        services.coordinator.readiness_input();
        self.holds("settings", FEW);
    }

    /// Calls of stores and operators.
    async fn stores_and_pages(&mut self) {
        let services = self.services.clone();
        services.stores.mount(mount(STORES + 1)).await.unwrap();
        self.holds("mount", FEW);
        let (store, epoch) = (StoreId(STORES + 1), SegmentEpoch(STORES + 1));
        StoreCaller::named("store/fleet").may_act_on(&services, &store.to_bytes()).await.unwrap_err();
        self.holds("name of a store", FEW);
        let mut session = services.stores.session();
        session.beat(store, epoch, Vec::new(), None).await.unwrap();
        drop(session);
        self.holds("heartbeat", FEW);
        services.stores.refresh_suspects(&services.coordinator.lead().await.unwrap());
        self.holds("look at all stores", 2 * STORES);
        services.stores.unmount(store, epoch).await.unwrap();
        self.holds("unmount", FEW);
        services.security.get().await.unwrap();
        let older = services.security.set_rdma(tenant(1), false).await.unwrap_err().to_string();
        assert!(older.contains("stores of older builds"), "{older}");
        services.security.set_rdma(tenant(1), true).await.unwrap();
        self.holds("access settings", ALL_STORES);
        watch(services, false, None).recv().await.unwrap();
        self.holds("watch", FEW);
        // Each tenant has lines of its own in the metrics.
        let pages = [
            ("/metrics", ALL_STORES + 4 * TENANTS),
            ("/status", 2 * ALL_STORES),
            ("/health", FEW),
            ("/get_segments_detail", 2 * ALL_STORES),
            ("/api/v1/tenant_quotas", 4_096 * 4),
            ("/api/v1/tenant_quotas?tenant_id=tenant-09000", FEW),
        ];
        for (path, most) in pages {
            self.http(path).await;
            self.holds(path, most);
        }
    }

    /// The leader's own duties in a full pool, with puts that wait for room in the pool and in quotas.
    async fn duties(&mut self) {
        let services = self.services.clone();
        let keys: Vec<Bytes> = (0..EACH).map(|n| key(n).into()).collect();
        services
            .objects
            .get(&tenant(6), &keys, &[keys.len()], Doubtful::Checked, Holder::Plain)
            .await
            .unwrap();
        self.holds("get in a new term", 2 * STORES);
        let tasks = [
            tokio::spawn(keep_room(services.objects.clone())),
            tokio::spawn(duties::watch_stores(services.clone())),
            tokio::spawn(duties::keep_the_log_going(services.clone())),
            tokio::spawn(keep_members(services.members.clone())),
            tokio::spawn(tell_of_members(services.clone())),
        ];
        // A store that reconnects.
        let (store, epoch) = (StoreId(1), SegmentEpoch(1));
        let mut session = services.stores.session();
        session.beat(store, epoch, Vec::new(), None).await.unwrap();
        drop(session);
        let mut session = services.stores.session();
        session.beat(store, epoch, Vec::new(), None).await.unwrap();
        // Tenants at their quotas: one evicts its own objects, one has leased them all, and one is new to quotas.
        for name in [tenant(5), tenant(6), String::new()] {
            services.tenants.set(name, Some(Quota { bytes: 0, objects: 2 * EACH })).await.unwrap();
        }
        let puts = (0..32).map(|n| tokio::spawn(put_again(services.clone(), n)));
        let puts: Vec<_> = puts.collect();
        let all_seen = async {
            while !self.judge.others("leader/").is_empty() {
                self.judge.holds(&self.index, "duties", |text| {
                    WAITING.iter().find(|(part, _)| text.contains(part)).map_or(FEW, |(_, most)| *most)
                });
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // The places that were not seen are listed in the end.
        let _ = tokio::time::timeout(Duration::from_secs(30), all_seen).await;
        self.stop.cancel();
        for task in tasks.into_iter().chain(puts) {
            task.await.unwrap();
        }
    }
}

/// The end of a put that its stores have written.
fn end(services: &Services, put: &PutStartItem, of: &str, places: &[GrantedReplica]) -> PutToEnd {
    let receipts = places.iter().flat_map(|GrantedReplica { placed, .. }| {
        let PlacedReplica { store, epoch, segment, offset, len, index } = *placed;
        let range = GrantedRange { segment, offset, len, index };
        let receipt = GRANT_KEY.receipts().receipt(services.coordinator.cluster(), store, epoch, &range);
        receipt.to_bytes()
    });
    PutToEnd { end: PutEndItem::new(put.put, KeyHash::of(of, &put.key), 0), receipts: receipts.collect() }
}

/// Puts objects until the leader stops: of several tenants, and some that fit only where others were cleared.
async fn put_again(services: Arc<Services>, n: u64) {
    let of = [String::new(), tenant(4), tenant(5), tenant(6)][n as usize % 4].clone();
    let size = SIZE * [1, 16][n as usize / 4 % 2];
    for put in 0.. {
        if services.coordinator.is_stopping() {
            return;
        }
        let id = PutId(u128::from(n + 1) << 100 | put << 32);
        let item =
            PutStartItem::new(id, format!("again {n} {put}").as_bytes(), size, ClusterTime(u64::MAX / 4));
        // It is refused at times, where nothing may be evicted.
        let started = services
            .objects
            .put_start(&of, |_| Ok(vec![item.clone()]), &[1], &Preference::default(), Holder::Plain)
            .await;
        if let Ok(started) = started {
            let _ = services.objects.put_end(vec![end(&services, &item, &of, &started.puts[0].1)]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hold_of_the_index_is_longer_than_its_work_allows() {
    let mut fleet = Fleet::new();
    let mut leader = Leader::over(&fleet).await;
    leader.calls().await;
    leader.stores_and_pages().await;
    leader.stop.cancel();
    let judge = std::mem::take(&mut leader.judge);

    fleet.fill();
    let mut leader = Leader::over(&fleet).await;
    leader.judge = judge;
    leader.duties().await;
    let wrong = leader.judge.wrong();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
