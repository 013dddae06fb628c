//! Builders for the tests of the state machine. Each test binary uses a part of them, and so do the crate's own tests:
//! whoever includes this has the crate's `state` in scope.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod model;
pub mod steps;

use mc_types::{ClusterTime, Code, GrantKey, PutId, SegmentEpoch, StoreId};
use xxhash_rust::xxh3::xxh3_64;

use mc_index::{
    self, Command, Endpoint, KeyHash, MountStore, Op, PutEndItem, PutEnded, PutStartItem, PutStarted,
    RemoveItem, Response, Settings, Stamp, State,
};

/// Term of all entries.
pub const TERM: u64 = 3;

/// A state with a log index and a clock.
pub struct Rig {
    pub state: State,
    pub index: u64,
    pub now: u64,
    pub suspects: Vec<StoreId>,
}

impl Rig {
    pub fn new() -> Self {
        Self { state: State::new(Settings::default()), index: 0, now: 1000, suspects: Vec::new() }
    }

    /// With stores 1, 2, ... of one segment of these sizes each, epoch = 100 + store.
    pub fn with_stores(sizes: &[u64]) -> Self {
        let mut rig = Self::new();
        for (store, &bytes) in (1..).zip(sizes) {
            assert_eq!(rig.mount(mount(store, 100 + store, &[bytes])), Code::Ok);
        }
        rig
    }

    pub fn command(&self, op: Op) -> Command {
        let stamp = Stamp {
            now: ClusterTime(self.now),
            term: TERM,
            seed: self.index.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            suspects: self.suspects.clone(),
        };
        Command { stamp, op }
    }

    pub fn apply(&mut self, op: Op) -> Response {
        self.index += 1;
        let command = self.command(op);
        self.state.apply(self.index, TERM, &command)
    }

    pub fn tick_at(&mut self, now: u64) {
        self.now = now;
        assert_eq!(self.apply(Op::Tick), Response::Done);
    }

    pub fn code(&mut self, op: Op) -> Code {
        match self.apply(op) {
            Response::Codes(codes) if codes.len() == 1 => codes[0],
            other => panic!("one code expected: {other:?}"),
        }
    }

    pub fn mount(&mut self, mount: MountStore) -> Code {
        self.code(Op::MountStore(mount))
    }

    pub fn drop_store(&mut self, store: u64) {
        let code = self.code(Op::DropStore { store: StoreId(store), epoch: SegmentEpoch(100 + store) });
        assert_eq!(code, Code::Ok);
    }

    pub fn start(&mut self, item: PutStartItem) -> PutStarted {
        match self.apply(Op::PutStart { tenant: String::new(), items: vec![item] }) {
            Response::PutStarted(mut started) => started.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn end_item(&mut self, item: PutEndItem) -> PutEnded {
        match self.apply(Op::PutEnd { items: vec![item] }) {
            Response::PutEnded(mut ended) => ended.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn end(&mut self, put: u128, key: &str) -> PutEnded {
        self.end_item(end(put, key))
    }

    /// Starts and ends a put.
    pub fn put(&mut self, put: u128, key: &str, size: u64) {
        assert_eq!(self.start(start(put, key, size)).code, Code::Ok);
        assert_eq!(self.end(put, key).code, Code::Ok);
    }

    pub fn remove(&mut self, key: &str, version: u128, reuse_at: u64) -> Code {
        let items =
            vec![RemoveItem { key: key.into(), version: PutId(version), reuse_at: ClusterTime(reuse_at) }];
        self.code(Op::Remove { tenant: String::new(), items })
    }

    pub fn revoke(&mut self, put: u128) -> Code {
        self.code(Op::PutRevoke { puts: vec![PutId(put)] })
    }

    /// Sweeps one slice.
    pub fn sweep(&mut self, limit: u32) -> bool {
        match self.apply(Op::Sweep { limit }) {
            Response::Swept { more } => more,
            other => panic!("{other:?}"),
        }
    }

    /// Sweeps in slices until nothing is left.
    pub fn sweep_all(&mut self, limit: u32) {
        const SLICES_MAX: usize = 10_000;
        let is_swept = (0..SLICES_MAX).any(|_| !self.sweep(limit));
        assert!(is_swept, "{} objects are left, and the sweep finds no end", self.state.objects());
    }

    pub fn version(&self, key: &str) -> Option<u128> {
        self.state.get("", key.as_bytes()).map(|object| object.version.0)
    }

    pub fn used(&self) -> u64 {
        self.state.stores().map(|store| store.used).sum()
    }
}

pub fn endpoint(transport: &str) -> Endpoint {
    Endpoint { transport: transport.into(), address: "[::1]:50060".into(), attributes: Vec::new() }
}

pub fn mount(store: u64, epoch: u64, segments: &[u64]) -> MountStore {
    MountStore {
        store: StoreId(store),
        epoch: SegmentEpoch(epoch),
        name: format!("store-{store}"),
        grant_key: GrantKey([7; 32]),
        endpoints: vec![endpoint("tcp")],
        segments: segments.to_vec(),
        http: "[::1]:9300".into(),
    }
}

pub fn start(put: u128, key: &str, size: u64) -> PutStartItem {
    PutStartItem::new(PutId(put), key.as_bytes(), size, ClusterTime(1_000_000))
}

pub fn end(put: u128, key: &str) -> PutEndItem {
    PutEndItem::new(PutId(put), KeyHash::of("", key.as_bytes()), 0xc0ffee)
}

/// Ids of puts that share a shard, shard 0 of the 2^14: they crowd out each other's records long before the index
/// remembers its most, and the log entries whose index is a multiple of 1,024 forget those that are due.
pub fn crowd() -> impl Iterator<Item = u128> {
    (1..).filter(|id: &u128| xxh3_64(&id.to_le_bytes()) >> (64 - 14) == 0)
}

pub fn snapshot(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.write_snapshot(&mut bytes).expect("a vector takes all bytes");
    bytes
}

pub fn restore(bytes: &[u8]) -> State {
    State::read_snapshot(&mut &bytes[..]).unwrap_or_else(|err| panic!("{err}"))
}
