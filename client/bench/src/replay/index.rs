//! A leader's index and eviction without its network: the product's state machine, policy and leases, one log entry
//! after the other.

use std::time::Duration;

use anyhow::{Result, ensure};
use mc_eviction::{
    EvictionGoal, Evictor, Excess, Hits, Leases, NOTE_INTERVAL, NOTES_PER_ENTRY, OBJECTS_PER_ENTRY, Scope,
    excess,
};
use mc_index::{
    Change, Command, KeyHash, Memory, MountStore, ObjectView, PutEndItem, PutStartItem, Request as Proposal,
    Settings, Stamp, State,
};
use mc_testbed::{Block, Request, segment_bytes};
use mc_types::{ClusterTime, Code, GrantKey, MAX_ITEMS, PutId, SegmentEpoch, StoreId};

/// Bytes of a block in the index, which holds no bytes: any multiple of the alignment gives the same result.
const BLOCK_BYTES: u64 = 128 << 10;
/// Lifetime of a put. It ends at once.
const PUT_LIFETIME: Duration = Duration::from_secs(30);

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Blocks of prefixes that the index served.
    pub(super) hits: u64,
    /// Blocks of all requests.
    pub(super) blocks: u64,
    /// Objects that were evicted.
    pub(super) evicted: u64,
    /// Puts that found no space.
    pub(super) refused: u64,
}

/// An index with the soft state of its leader.
pub(super) struct Index {
    state: State,
    evictor: Evictor,
    leases: Leases,
    hits: Hits,
    term: u64,
    /// Cluster time when the term began.
    began: ClusterTime,
    now: ClusterTime,
    noted_at: ClusterTime,
    entries: u64,
    puts: u128,
    counts: Counts,
}

impl Index {
    /// An empty index of one store, in which `capacity` blocks fit below the high watermark.
    pub(super) fn new(capacity: u64) -> Result<Self> {
        let mut index = Self {
            state: State::new(Settings::default()),
            evictor: Evictor::default(),
            leases: Leases::new(),
            hits: Hits::new(),
            term: 1,
            began: ClusterTime(0),
            now: ClusterTime(0),
            noted_at: ClusterTime(0),
            entries: 0,
            puts: 0,
            counts: Counts::default(),
        };
        let mount = MountStore {
            store: StoreId(1),
            epoch: SegmentEpoch(1),
            name: "replay".to_owned(),
            grant_key: GrantKey([0; 32]),
            endpoints: Vec::new(),
            segments: vec![segment_bytes(capacity * BLOCK_BYTES)],
            http: String::new(),
        };
        let code = index.propose(Proposal::mount_store(mount));
        ensure!(code == Some(Code::Ok), "the index refuses a segment for {capacity} blocks: {code:?}");
        Ok(index)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Serves one request: a get of all its blocks, then puts of those that are missing.
    pub(super) fn serve(&mut self, request: &Request) {
        self.now = self.now.max(ClusterTime(request.timestamp));
        self.evictor.set_time(self.now);
        if self.noted_at.after(NOTE_INTERVAL) <= self.now {
            self.noted_at = self.now;
            self.leases.sweep(self.now);
            if let Some((keys, epoch, once_share)) = self.evictor.take_notes(NOTES_PER_ENTRY, &self.state) {
                self.propose(Proposal::note_reuse(keys, epoch, once_share));
            }
        }
        let found = self.get(&request.blocks);
        self.counts.hits += found.iter().take_while(|found| **found).count() as u64;
        self.counts.blocks += request.blocks.len() as u64;
        let missing = request.blocks.iter().zip(&found).filter(|(_, found)| !**found);
        let missing: Vec<_> = missing.map(|(block, _)| *block).collect();
        for blocks in missing.chunks(MAX_ITEMS) {
            self.put(blocks);
        }
        self.make_room(excess(&self.state, Memory::Common, &[]));
    }

    /// Loses the leader. The next one has the index and nothing else.
    pub(super) fn lose_leader(&mut self) {
        self.term += 1;
        self.began = self.now;
        self.leases = Leases::new();
        self.hits = Hits::new();
        self.evictor = Evictor::of(&self.state);
    }

    /// Finds and leases blocks; returns which of them exist.
    fn get(&mut self, blocks: &[Block]) -> Vec<bool> {
        let until = self.now.after(self.read_lease());
        let lease = |object: &ObjectView| self.leases.grant(object.version, 0, until);
        let found: Vec<_> =
            blocks.iter().map(|block| self.state.get("", &key(*block)).filter(lease)).collect();
        self.hits.call(found.iter().flatten().map(|object| object.key));
        let Self { hits, evictor, .. } = self;
        hits.drain(|call| evictor.hit(call));
        found.iter().map(Option::is_some).collect()
    }

    fn put(&mut self, blocks: &[Block]) {
        let deadline = self.now.after(PUT_LIFETIME);
        let items: Vec<_> = blocks
            .iter()
            .map(|block| {
                self.puts += 1;
                let put = PutId(self.puts.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
                PutStartItem::new(put, &key(*block), BLOCK_BYTES, deadline)
            })
            .collect();
        let mut started = self.start(&items);
        let short = started.iter().filter(|code| **code == Code::NoAvailableHandle).count() as u64;
        if short > 0 {
            self.make_room(Excess { bytes: short * BLOCK_BYTES, objects: 0 });
            started = self.start(&items);
        }
        self.counts.refused += started.iter().filter(|code| **code == Code::NoAvailableHandle).count() as u64;
        let ended = items.iter().zip(&started).filter(|(_, code)| **code == Code::Ok);
        let ends: Vec<_> =
            ended.map(|(item, _)| PutEndItem::new(item.put, KeyHash::of("", &item.key), 0)).collect();
        if !ends.is_empty() {
            self.propose(Proposal::put_end(ends));
        }
    }

    fn start(&mut self, items: &[PutStartItem]) -> Vec<Code> {
        let started = self.propose(Proposal::put_start(String::new(), items.to_vec())).unwrap_or_default();
        started.iter().map(|started| started.code).collect()
    }

    fn make_room(&mut self, wanted: Excess) {
        let mut left = wanted;
        while !left.is_none() {
            let Excess { bytes, objects } = left;
            let scope = Scope::Memory(Memory::Common);
            let want = EvictionGoal { scope, bytes, objects, max: OBJECTS_PER_ENTRY };
            let chosen = self.evictor.choose(want, &self.state, &self.leases, self.now, &[]);
            if !chosen.items.is_empty() {
                let codes = self.propose(Proposal::evict(chosen.items.clone(), self.reuse_at()));
                let evicted = codes.iter().flatten().filter(|code| **code == Code::Ok).count();
                self.counts.evicted += evicted as u64;
                chosen.items.iter().for_each(|item| self.leases.unmark(item.version));
            }
            if chosen.blocked.is_some() {
                return;
            }
            left = left.less(chosen.bytes, chosen.items.len() as u64);
        }
    }

    fn read_lease(&self) -> Duration {
        Duration::from_millis(self.state.settings().read_lease_ms)
    }

    /// Time from which evicted bytes may be reused: at once, except in the first lease period of a term. Leases of the
    /// previous leader may still run then, so the bytes are held until that period ends.
    fn reuse_at(&self) -> ClusterTime {
        let floor = self.began.after(self.read_lease());
        if self.term > 1 && self.now < floor { floor } else { ClusterTime(0) }
    }

    /// Applies an operation as the next entry of the log, and lets the order of eviction follow it.
    fn propose<A>(&mut self, proposal: Proposal<A>) -> Option<A> {
        let (op, answer) = proposal.split();
        let stamp = Stamp { now: self.now, term: self.term, seed: self.entries, suspects: Vec::new() };
        let command = Command { stamp, op };
        self.entries += 1;
        let response = self.state.apply(self.entries, self.term, &command);
        if let Some(change) = Change::of(&command, &response) {
            self.evictor.follow(&change, &self.state);
        }
        answer(response)
    }
}

fn key(block: Block) -> Vec<u8> {
    format!("block-{block}").into_bytes()
}
