//! A library that is loaded in front of the C library (`LD_PRELOAD`) and makes files, clocks and connections of an
//! unchanged executable misbehave, as the page in the file named by `FAULTY_PAGE` says; and notes what it does to its
//! files, for a loss of power ([`journal`]). Tests only.
//!
//! Built by `build.rs` from this one file, without dependencies. What stands here must not call what it stands in front
//! of: no allocation, no printing, no `std::time`.
//!
//! Why the unsafe code is sound: each function here has the signature that the C library gives it on 64-bit Linux, and hands
//! on the pointers that its caller vouches for; `next!` is given the same signature, and the C library has the function or
//! the process ends; the page is mapped for good and shared as atomics alone.
#![allow(clippy::missing_safety_doc, reason = "the C library's functions, with its contracts")]

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use journal::Iovec;

mod journal;
mod page;

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
const O_RDWR: c_int = 2;
const O_CREAT: c_int = 0o100;
const O_TRUNC: c_int = 0o1_000;
/// A file without a name.
const O_TMPFILE: c_int = if cfg!(target_arch = "aarch64") { 0o20_040_000 } else { 0o20_200_000 };
const O_CLOEXEC: c_int = 0o2_000_000;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = 1;
const AF_INET: u16 = 2;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
/// Standard input, output and error: a test's log of the process is a regular file, too.
const LAST_STANDARD_FD: c_int = 2;

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: c_long,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SockaddrIn {
    family: u16,
    port: [u8; 2],
    rest: [u8; 12],
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn nanosleep(time: *const Timespec, left: *mut Timespec) -> c_int;
    fn __errno_location() -> *mut c_int;
    fn abort() -> !;
    // A buffer that is larger than any `struct stat`.
    fn fstat(fd: c_int, stat: *mut [u32; 64]) -> c_int;
}

/// The next definition of a function, looked up once.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        use std::sync::atomic::{AtomicPtr, Ordering};
        static NEXT: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut next = NEXT.load(Ordering::Relaxed);
        if next.is_null() {
            next = unsafe { $crate::dlsym($crate::RTLD_NEXT, $name.as_ptr()) };
            if next.is_null() {
                unsafe { $crate::abort() };
            }
            NEXT.store(next, Ordering::Relaxed);
        }
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(next) }
    }};
}
use next;

/// The page of this process; `None` when it was started without one.
fn page() -> Option<&'static [AtomicU64; page::BYTES / 8]> {
    static PAGE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    const NONE: *mut c_void = -1isize as *mut c_void;
    let mut at = PAGE.load(Ordering::Acquire);
    if at.is_null() {
        let path = unsafe { getenv(c"FAULTY_PAGE".as_ptr()) };
        let fd = if path.is_null() { -1 } else { unsafe { open(path, O_RDWR | O_CLOEXEC) } };
        at = NONE;
        if fd >= 0 {
            // The descriptor stays open: one for each process. MAP_FAILED is NONE.
            at = unsafe { mmap(ptr::null_mut(), page::BYTES, PROT_READ_WRITE, MAP_SHARED, fd, 0) };
        }
        PAGE.store(at, Ordering::Release);
    }
    if at == NONE {
        return None;
    }
    // Mapped for as long as the process lives, aligned, and only ever used through atomics.
    Some(unsafe { &*at.cast() })
}

fn word(at: usize) -> u64 {
    page().map_or(0, |page| page[at].load(Ordering::Relaxed))
}

fn struck() {
    if let Some(page) = page() {
        page[page::STRUCK].fetch_add(1, Ordering::Relaxed);
    }
}

fn sleep_ms(ms: u64) {
    let time = Timespec { seconds: (ms / 1000) as i64, nanos: ((ms % 1000) * 1_000_000) as c_long };
    unsafe { nanosleep(&time, ptr::null_mut()) };
}

fn fail(errno: u64) {
    struck();
    unsafe { *__errno_location() = errno as c_int };
}

/// Device, inode and mode, at their places in `struct stat` on 64-bit Linux.
fn stat(fd: c_int) -> Option<(u64, u64, u32)> {
    let mut stat = [0u32; 64];
    let word = |stat: &[u32; 64], at: usize| u64::from(stat[at]) | u64::from(stat[at + 1]) << 32;
    let mode = if cfg!(target_arch = "aarch64") { 4 } else { 6 };
    (unsafe { fstat(fd, &mut stat) } == 0).then(|| (word(&stat, 0), word(&stat, 2), stat[mode]))
}

fn is_data(fd: c_int) -> bool {
    fd > LAST_STANDARD_FD && stat(fd).is_some_and(|(_, _, mode)| mode & S_IFMT == S_IFREG)
}

/// Before a sync; true when it is to fail.
fn sync_fails() -> bool {
    if word(page::SYNC_STUCK) != 0 {
        struck();
        while word(page::SYNC_STUCK) != 0 {
            sleep_ms(1);
        }
    }
    let delay = word(page::SYNC_DELAY_MS);
    if delay != 0 {
        struck();
        sleep_ms(delay);
    }
    let errno = word(page::SYNC_ERRNO);
    if errno != 0 {
        fail(errno);
    }
    errno != 0
}

/// Before a write; true when it is to fail.
fn write_fails(fd: c_int) -> bool {
    let errno = word(page::WRITE_ERRNO);
    let fails = errno != 0 && is_data(fd);
    if fails {
        fail(errno);
    }
    fails
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    if sync_fails() {
        return -1;
    }
    let real = next!(c"fsync" as extern "C" fn(c_int) -> c_int);
    journal::sync(fd, || real(fd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    if sync_fails() {
        return -1;
    }
    let real = next!(c"fdatasync" as extern "C" fn(c_int) -> c_int);
    journal::sync(fd, || real(fd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(fd: c_int, from: i64, len: i64, flags: u32) -> c_int {
    if sync_fails() {
        return -1;
    }
    next!(c"sync_file_range" as extern "C" fn(c_int, i64, i64, u32) -> c_int)(fd, from, len, flags)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: usize) -> isize {
    if write_fails(fd) {
        return -1;
    }
    let real = next!(c"write" as extern "C" fn(c_int, *const c_void, usize) -> isize);
    journal::write(fd, &[Iovec { from, len }], None, || real(fd, from, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, len: usize, offset: i64) -> isize {
    if write_fails(fd) {
        return -1;
    }
    let real = next!(c"pwrite64" as extern "C" fn(c_int, *const c_void, usize, i64) -> isize);
    journal::write(fd, &[Iovec { from, len }], Some(offset), || real(fd, from, len, offset))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, pieces: *const Iovec, count: c_int) -> isize {
    if write_fails(fd) {
        return -1;
    }
    let real = next!(c"writev" as extern "C" fn(c_int, *const Iovec, c_int) -> isize);
    if count <= 0 {
        return real(fd, pieces, count);
    }
    let all = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
    journal::write(fd, all, None, || real(fd, pieces, count))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, len: i64) -> c_int {
    let real = next!(c"ftruncate64" as extern "C" fn(c_int, i64) -> c_int);
    journal::set_len(fd, len, || real(fd, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(path: *const c_char, mode: u32) -> c_int {
    let real = next!(c"mkdir" as extern "C" fn(*const c_char, u32) -> c_int);
    journal::make_folder(path, || real(path, mode))
}

/// The mode is there only where a file may be made. On the platforms that this is built for, an argument that is not there
/// reads as any value, and is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    let real = next!(c"open64" as unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int);
    let real = || unsafe { real(path, flags, mode) };
    if flags & (O_CREAT | O_TRUNC) == 0 || flags & O_TMPFILE == O_TMPFILE {
        return real();
    }
    journal::open_new(path, flags & O_TRUNC != 0, real)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, len: usize, offset: i64) -> isize {
    unsafe { pwrite64(fd, from, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, to: *const SockaddrIn, len: u32) -> c_int {
    let real = next!(c"connect" as extern "C" fn(c_int, *const SockaddrIn, u32) -> c_int);
    if (len as usize) < size_of::<SockaddrIn>() || unsafe { (*to).family } != AF_INET {
        return real(fd, to, len);
    }
    let mut to = unsafe { *to };
    let port = u64::from(u16::from_be_bytes(to.port));
    for route in 0..page::MAX_ROUTES {
        match word(page::ROUTES + 2 * route) {
            0 => break,
            from if from == port => {
                to.port = (word(page::ROUTES + 2 * route + 1) as u16).to_be_bytes();
                break;
            }
            _ => {}
        }
    }
    real(fd, &to, size_of::<SockaddrIn>() as u32)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const c_void,
    found: *mut *mut c_void,
) -> c_int {
    if word(page::LOOKUP_STUCK) != 0 {
        struck();
        while word(page::LOOKUP_STUCK) != 0 {
            sleep_ms(1);
        }
    }
    type Lookup = unsafe extern "C" fn(*const c_char, *const c_char, *const c_void, *mut *mut c_void) -> c_int;
    unsafe { next!(c"getaddrinfo" as Lookup)(node, service, hints, found) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let got = next!(c"clock_gettime" as extern "C" fn(c_int, *mut Timespec) -> c_int)(clock, time);
    if got != 0 || page().is_none() {
        return got;
    }
    if clock == CLOCK_REALTIME {
        let offset = word(page::WALL_OFFSET_S) as i64;
        if offset != 0 {
            struck();
        }
        unsafe { (*time).seconds += offset };
    } else if clock == CLOCK_MONOTONIC {
        hurry(unsafe { &mut *time });
    }
    got
}

/// Makes the monotonic clock run at another rate from the process' first look on. The rate is fixed for its life.
fn hurry(time: &mut Timespec) {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    let rate = word(page::CLOCK_RATE_PPM) as i64;
    if rate == 0 {
        return;
    }
    let now = time.seconds as u64 * 1_000_000_000 + time.nanos as u64;
    let first = match FIRST.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => now,
        Err(first) => first,
    };
    let passed = now.saturating_sub(first) as i64;
    let gained = (i128::from(passed) * i128::from(rate) / 1_000_000) as i64;
    let hurried = first + (passed + gained) as u64;
    time.seconds = (hurried / 1_000_000_000) as i64;
    time.nanos = (hurried % 1_000_000_000) as c_long;
}
