//! The verbs on a real device: run by tests/rdma/run in a guest that has one.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_verbs::{
    Access, Capacity, Choice, Completion, CompletionQueue, Device, Domain, Event, Kind, Memory, Op, Path,
    QueuePair, Region, Sge, Timing, Wanted, Work, choose, device_names, self_test,
};

/// A guest is slow: this bounds a test that would hang, and says nothing about speed.
const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;
const CAPACITY: Capacity = Capacity { requests: 64, pieces: 4, messages: 16, reads_at_once: 4, remote: true };

/// Bytes that are only touched through their address, because a device changes them.
struct Buffer(NonNull<u8>, Layout);

// SAFETY: plain bytes, whose uses the tests order.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

// SAFETY: allocated until it is dropped.
unsafe impl Memory for Buffer {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.0, self.1.size())
    }
}

impl Buffer {
    fn new(len: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: not empty.
        Arc::new(Self(NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout))
    }

    fn fill(&self, byte: impl Fn(usize) -> u8) {
        for at in 0..self.1.size() {
            // SAFETY: inside the allocation.
            unsafe { self.0.add(at).write_volatile(byte(at)) };
        }
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1.size());
        // SAFETY: inside the allocation.
        unsafe { self.0.add(at).read_volatile() }
    }

    /// Counts the bytes, one of each 64, that are not `byte`.
    fn foreign(&self, byte: u8) -> usize {
        (0..self.1.size()).step_by(64).filter(|at| self.get(*at) != byte).count()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the allocation of `new`.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

fn pattern(seed: usize) -> impl Fn(usize) -> u8 {
    move |at| ((at * 31 + at / 4096 + seed) % 251) as u8
}

/// One end: a buffer, registered, and a queue pair.
struct End {
    buffer: Arc<Buffer>,
    region: Region,
    queue: Arc<CompletionQueue>,
    pair: QueuePair,
}

fn domain() -> (Arc<Domain>, Path) {
    let name = device_names().expect("an RDMA device: run this with tests/rdma/run").remove(0);
    let device = Device::open(&name).unwrap();
    let Choice { path, reasons } = choose(&device.ports().unwrap(), Wanted::default());
    let path = path.unwrap_or_else(|| panic!("no path: {reasons:#?}"));
    (Domain::new(device).unwrap(), path)
}

impl End {
    fn new(domain: &Arc<Domain>, path: Path, len: usize) -> Self {
        let buffer = Buffer::new(len);
        let region = Region::new(domain, buffer.clone(), Access::Remote).unwrap();
        let queue = CompletionQueue::new(domain.device(), 256).unwrap();
        let pair = QueuePair::new(domain, &queue, path, CAPACITY, rand::random()).unwrap();
        Self { buffer, region, queue, pair }
    }

    /// Two connected ends.
    fn two(len: usize) -> [Self; 2] {
        let (domain, path) = domain();
        let ends = [Self::new(&domain, path, len), Self::new(&domain, path, len)];
        ends[1].pair.expect_messages(77, 16).unwrap();
        ends[0].pair.connect(&ends[1].pair.address(), Timing::default()).unwrap();
        ends[1].pair.connect(&ends[0].pair.address(), Timing::default()).unwrap();
        ends
    }

    fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { address: self.region.address() + at, len, key: self.region.local_key() }
    }

    /// Posts one request for `local`, to the start of the peer's memory plus `at`.
    fn post(&self, id: u64, op: Op, local: &[Sge], peer: &Self, at: u64) {
        let (remote, key) = (peer.region.address() + at, peer.region.remote_key());
        let work = Work { id, op, local, remote, key, signaled: true };
        // SAFETY: the buffers outlive the queue pairs, and the tests wait before they look.
        unsafe { self.pair.post(&[work]) }.unwrap();
    }

    /// Waits for `count` completions.
    fn completions(&self, count: usize) -> Vec<Completion> {
        let (mut done, began) = (Vec::new(), Instant::now());
        while done.len() < count {
            assert!(began.elapsed() < LONG, "{done:?} and no more");
            self.queue.arm().unwrap();
            let before = done.len();
            self.queue.take(&mut done).unwrap();
            if done.len() == before {
                self.queue.wait(Duration::from_secs(1)).unwrap();
            }
        }
        done
    }

    fn completion(&self) -> Completion {
        self.completions(1).remove(0)
    }
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn bytes_are_equal_both_ways_in_pieces_and_with_a_message_after_them() {
    let [client, store] = End::two(LEN);
    client.buffer.fill(pattern(1));
    let pieces = [client.sge(0, 100), client.sge(5000, 60_000), client.sge(100_000, 7)];
    client.post(5, Op::Write, &pieces, &store, 4096);
    client.post(6, Op::WriteAndTell(0xabcd), &[], &store, 0);
    let done: Vec<_> = client.completions(2).iter().map(|done| (done.id, done.result)).collect();
    assert_eq!(done, [(5, Ok(Kind::Sent)), (6, Ok(Kind::Sent))]);
    let told = store.completion();
    assert_eq!(
        (told.id, told.pair, told.result),
        (77, store.pair.address().pair, Ok(Kind::Received(0xabcd)))
    );
    let sources = (0..100).chain(5000..65_000).chain(100_000..100_007);
    for (nth, from) in sources.enumerate() {
        assert_eq!(store.buffer.get(4096 + nth), pattern(1)(from), "byte {nth}");
    }
    assert_eq!((store.buffer.get(4095), store.buffer.get(4096 + 60_107)), (0, 0));

    store.buffer.fill(pattern(2));
    client.post(7, Op::Read, &[client.sge(10, 3), client.sge(200_000, 500_000)], &store, 123);
    assert_eq!(client.completion().result, Ok(Kind::Sent));
    for (nth, into) in (10..13).chain(200_000..700_000).enumerate() {
        assert_eq!(client.buffer.get(into), pattern(2)(123 + nth), "byte {nth}");
    }
    assert_eq!(client.buffer.get(13), pattern(1)(13), "the rest is not touched");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn bytes_outside_of_a_region_and_stale_keys_are_refused() {
    let [client, store] = End::two(LEN);
    client.post(1, Op::Read, &[client.sge(0, 4096)], &store, LEN as u64 - 4095);
    let outside = client.completion().result.unwrap_err();
    assert!(outside.is_refused_access(), "{outside}");
    // The queue pair is in error now, and so is what follows.
    client.post(2, Op::Read, &[client.sge(0, 1)], &store, 0);
    assert!(client.completion().result.unwrap_err().is_flushed());

    let [client, mut store] = End::two(LEN);
    let (stale, at) = (store.region.remote_key(), store.region.address());
    let (domain, _) = domain();
    store.region = Region::new(&domain, Buffer::new(4096), Access::Remote).unwrap();
    let local = [client.sge(0, 8)];
    let work = Work { id: 1, op: Op::Write, local: &local, remote: at, key: stale, signaled: true };
    // SAFETY: as in `End::post`.
    unsafe { client.pair.post(&[work]) }.unwrap();
    let error = client.completion().result.unwrap_err();
    assert!(error.is_refused_access(), "{error}");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn a_peer_that_is_gone_is_noticed_within_seconds() {
    let [client, store] = End::two(LEN);
    store.pair.destroy().unwrap();
    let began = Instant::now();
    client.post(1, Op::Write, &[client.sge(0, 64)], &store, 0);
    let error = client.completion().result.unwrap_err();
    assert!(error.is_silence(), "{error}");
    println!("noticed after {:?}", began.elapsed());
    assert!(store.pair.connect(&client.pair.address(), Timing::default()).is_err(), "it is gone for good");
}

/// The guarantee that the fence builds on: see `QueuePair`. Without the destruction, thousands of foreign bytes are found.
#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn no_byte_comes_in_once_the_target_has_destroyed_its_queue_pair() {
    let mut broken = 0;
    for round in 0..10 {
        let [client, store] = End::two(4 << 20);
        client.buffer.fill(|_| 0xaa);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..60 {
                    client.post(id, Op::Write, &[client.sge(0, 4 << 20)], &store, 0);
                }
            });
            while store.buffer.get(4096) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(round * 7));
            store.pair.destroy().unwrap();
            store.buffer.fill(|_| 0xbb);
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(300) {
                assert_eq!(store.buffer.foreign(0xbb), 0, "bytes came in after it, in round {round}");
            }
        });
        let ends = client.completions(1);
        broken += usize::from(ends.iter().any(|end| end.result.is_err()));
    }
    assert!(broken > 0, "no write was under way when the queue pair was destroyed");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn no_byte_of_a_read_comes_in_once_its_own_queue_pair_is_destroyed() {
    for round in 0..5 {
        let [client, store] = End::two(4 << 20);
        store.buffer.fill(|_| 0xaa);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..8 {
                    let (local, remote) = ([client.sge(0, 4 << 20)], store.region.address());
                    let key = store.region.remote_key();
                    let work = Work { id: 1, op: Op::Read, local: &local, remote, key, signaled: true };
                    // SAFETY: the buffers outlive the queue pairs. After the destruction it fails.
                    let _ = unsafe { client.pair.post(&[work]) };
                }
            });
            while client.buffer.get(4096) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(round * 7));
            client.pair.destroy().unwrap();
            client.buffer.fill(|_| 0xbb);
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(300) {
                assert_eq!(client.buffer.foreign(0xbb), 0, "bytes came in after it, in round {round}");
            }
        });
    }
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn memory_beyond_the_limit_is_an_error_that_names_the_limit_and_the_fix() {
    let me = std::env::current_exe().unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"])
        .arg(me)
        .args(["--exact", "limited", "--ignored", "--nocapture"])
        .output()
        .expect("setpriv and prlimit of util-linux");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
#[ignore = "run by another test under a small limit"]
fn limited() {
    let (domain, _) = domain();
    Region::new(&domain, Buffer::new(4096), Access::Remote).expect("so much is allowed");
    let error = Region::new(&domain, Buffer::new(LEN), Access::Remote).unwrap_err().to_string();
    for said in ["1048576 bytes", "65536 bytes (memlock)", "LimitMEMLOCK=infinity"] {
        assert!(error.contains(said), "{said} is not in: {error}");
    }
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn nothing_is_left_of_a_hundred_connections() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let pinned = || mc_verbs::PinLimit::of_this_process().pinned;
    drop(End::two(LEN));
    let before = (open(), pinned());
    for _ in 0..100 {
        let [client, store] = End::two(4096);
        client.post(1, Op::Write, &[client.sge(0, 64)], &store, 0);
        assert_eq!(client.completion().result, Ok(Kind::Sent));
    }
    // Tests run one at a time: see tests/rdma/run.
    assert_eq!((open(), pinned()), before);
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn limits_and_names_are_told() {
    let (domain, path) = domain();
    let limits = domain.device().limits().unwrap();
    assert!(limits.requests >= 64 && limits.pieces >= 4 && limits.region_bytes > LEN as u64, "{limits:?}");
    println!("{:?}, {path:?}, {limits:?}", domain.device());
    let error = Device::open("mlx9_9").unwrap_err().to_string();
    assert!(error.contains("mlx9_9") && error.contains(domain.device().name()), "{error}");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn a_device_passes_the_test_with_itself_again_and_again() {
    let (domain, path) = domain();
    for _ in 0..3 {
        self_test(&domain, path).unwrap();
    }
    // Of an address that the device does not have.
    let mut other = path;
    other.gid.index = 200;
    let why = self_test(&domain, other).unwrap_err();
    assert!(why.contains("self-test"), "{why}");
}

#[test]
#[ignore = "needs a verbs device: tests/rdma/run"]
fn a_device_tells_of_a_new_address() {
    let (domain, _) = domain();
    let ip = |what: &str| {
        let done =
            std::process::Command::new("ip").args(["addr", what, "10.8.0.9/24", "dev", "eth0"]).status();
        assert!(done.unwrap().success());
    };
    ip("add");
    let until = Instant::now() + LONG;
    // The port may have become active a moment ago, which it tells, too.
    let told = || match domain.device().next_event(Duration::from_secs(1)).unwrap() {
        Some(Event::Changed(what)) => what.contains("GID"),
        _ => false,
    };
    while !told() {
        assert!(Instant::now() < until, "it tells nothing of the address");
    }
    ip("del");
}
