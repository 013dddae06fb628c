//! A CUDA driver without a device, for tests. The memory of its devices can't be read or written by plain accesses, copies are done as late
//! as a driver may (when their stream is waited for), and each call is counted.
//!
//! Why the unsafe code is sound: each function has the signature of the driver's on 64-bit Linux and uses the pointers that its caller vouches
//! for, and the memory of its devices is mapped for good.
#![allow(non_snake_case, reason = "the names of the C library")]
#![allow(clippy::missing_safety_doc, reason = "the driver's functions, with its contracts")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_INITIALIZED: c_int = 3;
const INVALID_CONTEXT: c_int = 201;
const ILLEGAL_ADDRESS: c_int = 700;

const PROT_NONE: c_int = 0;
const PROT_READ_WRITE: c_int = 3;
const MAP_PRIVATE_ANONYMOUS: c_int = 0x22;

unsafe extern "C" {
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int;
}

/// Memory of a device.
struct Memory {
    base: usize,
    len: usize,
    ordinal: c_int,
    /// Whether look-ups of it fail.
    is_obscure: bool,
}

/// A copy that was asked for and not done.
struct Asked {
    from: usize,
    to: usize,
    len: usize,
    device: usize,
}

#[derive(Default)]
struct State {
    is_initialized: bool,
    memory: Vec<Memory>,
    pinned: HashMap<usize, usize>,
    /// The device of each stream, and its copies.
    streams: HashMap<usize, (c_int, Vec<Asked>)>,
    made: usize,
    calls: HashMap<String, c_int>,
    /// The function whose calls fail, after so many more that don't.
    failing: (String, c_int),
    /// Whether waits for a stream don't end, and the number of those that are held.
    is_held: bool,
    held: c_int,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static RELEASED: Condvar = Condvar::new();

thread_local! {
    /// Contexts of this thread: 1 more than the ordinal of their device.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Counts a call, unless it has to fail.
fn called(name: &str) -> Result<MutexGuard<'static, State>, c_int> {
    let mut state = STATE.lock().unwrap();
    if state.failing.0 == name {
        state.failing.1 -= 1;
        if state.failing.1 < 0 {
            return Err(ILLEGAL_ADDRESS);
        }
    }
    *state.calls.entry(name.to_owned()).or_default() += 1;
    if !state.is_initialized {
        return Err(NOT_INITIALIZED);
    }
    Ok(state)
}

/// The same of a function that works in the context of the thread.
fn called_in_context(name: &str) -> Result<(MutexGuard<'static, State>, c_int), c_int> {
    let state = called(name)?;
    let top = CONTEXTS.with_borrow(|all| all.last().copied()).ok_or(INVALID_CONTEXT)?;
    Ok((state, top as c_int - 1))
}

fn code(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(SUCCESS)
}

impl State {
    fn at(&self, address: usize, len: usize) -> Option<&Memory> {
        self.memory.iter().find(|memory| memory.base <= address && address + len <= memory.base + memory.len)
    }

    fn ask(&mut self, stream: *mut c_void, current: c_int, copy: Asked) -> Result<(), c_int> {
        let memory = self.at(copy.device, copy.len).ok_or(INVALID_VALUE)?;
        if memory.ordinal != current {
            return Err(INVALID_CONTEXT);
        }
        let host = if copy.device == copy.from { copy.to } else { copy.from };
        let is_pinned = |(base, len): (&usize, &usize)| *base <= host && host + copy.len <= base + len;
        if !self.pinned.iter().any(is_pinned) {
            return Err(INVALID_VALUE);
        }
        self.streams.get_mut(&(stream as usize)).ok_or(INVALID_VALUE)?.1.push(copy);
        Ok(())
    }

    /// Makes a stream, whose number is none of those that stand for default streams.
    fn stream(&mut self, device: c_int) -> usize {
        self.made += 1;
        let stream = 0x1000 + self.made;
        self.streams.insert(stream, (device, Vec::new()));
        stream
    }

    fn carry_out(&mut self, stream: usize, current: c_int) -> Result<(), c_int> {
        let (device, copies) = self.streams.get_mut(&stream).ok_or(INVALID_VALUE)?;
        if *device != current {
            return Err(INVALID_CONTEXT);
        }
        for Asked { from, to, len, device } in std::mem::take(copies) {
            let memory = self.at(device, len).ok_or(ILLEGAL_ADDRESS)?;
            let (base, size) = (memory.base as *mut c_void, memory.len);
            unsafe {
                mprotect(base, size, PROT_READ_WRITE);
                ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
                mprotect(base, size, PROT_NONE);
            }
        }
        Ok(())
    }
}

/// Initializes the driver, as an engine does before it allocates device memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: c_uint) -> c_int {
    drop(called("cuInit"));
    STATE.lock().unwrap().is_initialized = true;
    SUCCESS
}

/// Allocates memory of a device.
#[unsafe(no_mangle)]
pub extern "C" fn fake_allocate(len: usize, ordinal: c_int) -> *mut u8 {
    let base = unsafe { mmap(ptr::null_mut(), len, PROT_NONE, MAP_PRIVATE_ANONYMOUS, -1, 0) };
    STATE.lock().unwrap().memory.push(Memory { base: base as usize, len, ordinal, is_obscure: false });
    base.cast()
}

/// Allocates memory of the device of the thread's context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(memory: *mut u64, len: usize) -> c_int {
    code(called_in_context("cuMemAlloc_v2").map(|(state, ordinal)| {
        drop(state);
        unsafe { *memory = fake_allocate(len, ordinal) as u64 };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, _: c_int, _: c_int) -> c_int {
    unsafe { ptr::copy_nonoverlapping(c"no device".as_ptr(), name, 10) };
    SUCCESS
}

/// Lets all look-ups of memory of a device fail.
#[unsafe(no_mangle)]
pub extern "C" fn fake_obscure(base: *mut u8) {
    let mut state = STATE.lock().unwrap();
    let memory = state.memory.iter_mut().find(|memory| memory.base == base as usize);
    memory.unwrap().is_obscure = true;
}

/// Makes a stream of a device, as an engine does.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stream(ordinal: c_int) -> usize {
    STATE.lock().unwrap().stream(ordinal)
}

/// Opens memory of a device to plain accesses, or closes it.
#[unsafe(no_mangle)]
pub extern "C" fn fake_open(base: *mut u8, is_open: bool) {
    let state = STATE.lock().unwrap();
    let memory = state.at(base as usize, 1).unwrap();
    let prot = if is_open { PROT_READ_WRITE } else { PROT_NONE };
    unsafe { mprotect(memory.base as *mut c_void, memory.len, prot) };
}

/// Number of calls of a function; of all, if the name is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_calls(name: *const c_char) -> c_int {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    let calls = &STATE.lock().unwrap().calls;
    if name.is_empty() { calls.values().sum() } else { calls.get(name).copied().unwrap_or(0) }
}

/// Number of copies that are under way.
#[unsafe(no_mangle)]
pub extern "C" fn fake_under_way() -> c_int {
    STATE.lock().unwrap().streams.values().map(|(_, copies)| copies.len()).sum::<usize>() as c_int
}

/// Lets the calls of a function fail, after so many more that don't; of none, if the name is empty. Copies that are under way end without
/// having been done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(name: *const c_char, after: c_int) {
    let mut state = STATE.lock().unwrap();
    state.streams.values_mut().for_each(|(_, copies)| copies.clear());
    state.failing = (unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned(), after);
}

/// Holds the copies that are waited for from now on, or lets them go on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_hold(is_held: bool) {
    STATE.lock().unwrap().is_held = is_held;
    RELEASED.notify_all();
}

/// Number of waits that are held.
#[unsafe(no_mangle)]
pub extern "C" fn fake_held() -> c_int {
    STATE.lock().unwrap().held
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_: c_int, name: *mut *const c_char) -> c_int {
    unsafe { *name = c"CUDA_ERROR_OF_A_TEST".as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    into: *const *mut c_void,
    address: u64,
) -> c_int {
    let state = match called("cuPointerGetAttributes") {
        Ok(state) => state,
        Err(error) => return error,
    };
    let found = state.at(address as usize, 1);
    if found.is_some_and(|memory| memory.is_obscure) {
        return ILLEGAL_ADDRESS;
    }
    for nth in 0..count as usize {
        let (attribute, into) = unsafe { (*attributes.add(nth), *into.add(nth)) };
        match attribute {
            // All memory here is of the virtual-memory API, which has no context.
            1 => unsafe { *into.cast::<*mut c_void>() = ptr::null_mut() },
            2 => unsafe { *into.cast::<c_uint>() = if found.is_some() { 2 } else { 0 } },
            9 => unsafe { *into.cast::<c_int>() = found.map_or(-2, |memory| memory.ordinal) },
            _ => return INVALID_VALUE,
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    code(called("cuDeviceGet").map(|_| unsafe { *device = ordinal }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    let primary = ptr::without_provenance_mut(device as usize + 1);
    code(called("cuDevicePrimaryCtxRetain").map(|_| unsafe { *context = primary }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> c_int {
    code(called("cuDevicePrimaryCtxRelease_v2").map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> c_int {
    code(called("cuCtxPushCurrent_v2").map(|_| CONTEXTS.with_borrow_mut(|all| all.push(context as usize))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> c_int {
    code(called("cuCtxPopCurrent_v2").and_then(|_| {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        unsafe { *context = ptr::without_provenance_mut(popped) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(memory: *mut c_void, len: usize, _: c_uint) -> c_int {
    code(called_in_context("cuMemHostRegister_v2").map(|(mut state, _)| {
        state.pinned.insert(memory as usize, len);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(memory: *mut c_void) -> c_int {
    code(called_in_context("cuMemHostUnregister").and_then(|(mut state, _)| {
        state.pinned.remove(&(memory as usize)).map(drop).ok_or(INVALID_VALUE)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _: c_uint) -> c_int {
    code(called_in_context("cuStreamCreate").map(|(mut state, device)| {
        unsafe { *stream = ptr::without_provenance_mut(state.stream(device)) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    code(
        called("cuStreamDestroy_v2")
            .and_then(|mut state| state.streams.remove(&(stream as usize)).map(drop).ok_or(INVALID_VALUE)),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> c_int {
    code(called_in_context("cuStreamSynchronize").and_then(|(mut state, device)| {
        state.held += 1;
        let mut state = RELEASED.wait_while(state, |state| state.is_held).unwrap();
        state.held -= 1;
        state.carry_out(stream as usize, device)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: *mut c_void) -> c_int {
    let (from, to) = (from as usize, to as usize);
    let asked = called_in_context("cuMemcpyDtoHAsync_v2");
    code(
        asked.and_then(|(mut state, device)| state.ask(stream, device, Asked { from, to, len, device: from })),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: *mut c_void,
) -> c_int {
    let (from, to) = (from as usize, to as usize);
    let asked = called_in_context("cuMemcpyHtoDAsync_v2");
    code(asked.and_then(|(mut state, device)| state.ask(stream, device, Asked { from, to, len, device: to })))
}
