//! The functions of the C library under which a simulation has to be, exported by this program in their place.
//!
//! `getrandom` is where every library's randomness comes from in the end: the ids that masters draw, Raft's election
//! timeouts, the order of hash maps, the branch that `tokio::select!` looks at first. Drawn from the seed, a run can be
//! repeated. `clock_gettime` is where every library's time comes from that is not tokio's: h2 forgets a stream a second
//! after its reset, and answers what comes later with another reset. `fsync` and `fdatasync` tell what a loss of power
//! would leave of the files that masters write.
#![allow(unsafe_code, reason = "a symbol of the C library can be replaced in no other way")]

use std::cell::Cell;
use std::io::Read as _;

use mc_tests::Seeded;

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
    /// Milliseconds.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Time of this thread's clocks when a simulation begins, in milliseconds.
const BEGIN: u64 = 1_000;

/// From now on this thread draws its randomness from `seed`.
pub(crate) fn seed_this_thread(seed: u64) {
    SEEDED.set(Some(seed));
    NOW.set(Some(BEGIN));
}

/// From now on all clocks of this thread show that so many milliseconds of the simulation have passed.
pub(crate) fn set_time(passed: u64) {
    NOW.set(Some(BEGIN + passed));
}

// SAFETY: it is what its callers expect of getrandom(2): it fills `len` bytes at `buffer`, all of them, and says so.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    // SAFETY: the caller of getrandom(2) hands over `len` writable bytes, which nobody else uses during the call.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
    match SEEDED.get() {
        Some(seed) => {
            let mut rng = Seeded::new(seed);
            bytes.fill_with(|| (rng.bits() >> 32) as u8);
            SEEDED.set(Some(rng.bits()));
        }
        None => {
            let filled = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
            if filled.is_err() {
                return -1;
            }
        }
    }
    isize::try_from(len).unwrap_or(-1)
}

// SAFETY: it is what its callers expect of clock_gettime(2): it fills in a time that never goes back, and returns 0.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> i32 {
    let Some(now) = NOW.get() else {
        // SAFETY: the arguments are those of the caller of clock_gettime(2).
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as i32 };
    };
    let (seconds, rest) = (now / 1_000, now % 1_000);
    // SAFETY: the caller of clock_gettime(2) hands over a place for a time, which nobody else uses during the call.
    unsafe { time.write(libc::timespec { tv_sec: seconds as i64, tv_nsec: rest as i64 * 1_000_000 }) };
    0
}

// SAFETY: takes a descriptor and returns 0 for success, as fsync(2).
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: i32) -> i32 {
    crate::files::synced(fd);
    0
}

// SAFETY: takes a descriptor and returns 0 for success, as fdatasync(2).
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: i32) -> i32 {
    crate::files::synced(fd);
    0
}
