//! Stands in for functions of libibverbs: they go on to the library, unless a test has them fail for a device. mc-verbs finds them because
//! this executable has a `dlsym` of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// How a device misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has no reliable connections, like EFA and iWARP.
    NoPairs,
    /// It registers no more than 64 KiB at once.
    NoMemory,
    /// Each event of it is that it has failed.
    Fatal,
}

static FAULTS: Mutex<Vec<(&str, Fault)>> = Mutex::new(Vec::new());
static CONNECTED: Mutex<Vec<Connected>> = Mutex::new(Vec::new());
static VECTORS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

/// A fault of a device, until it is dropped.
pub(crate) struct Faulty(&'static str, Fault);

pub(crate) fn have(device: &'static str, fault: Fault) -> Faulty {
    FAULTS.lock().push((device, fault));
    Faulty(device, fault)
}

impl Drop for Faulty {
    fn drop(&mut self) {
        FAULTS.lock().retain(|fault| *fault != (self.0, self.1));
    }
}

/// How a queue pair was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
}

/// Returns how queue pairs were connected since the last call.
pub(crate) fn connected() -> Vec<Connected> {
    std::mem::take(&mut CONNECTED.lock())
}

/// Returns the completion vectors of the queues that were made since the last call.
pub(crate) fn vectors() -> Vec<c_int> {
    std::mem::take(&mut VECTORS.lock())
}

/// The first fields of the library's structures, as far as they are used here.
#[repr(C)]
struct Context {
    device: *mut c_void,
}

/// A protection domain or a queue pair.
#[repr(C)]
struct OfContext {
    context: *const Context,
}

#[repr(C)]
struct Event {
    element: *mut c_void,
    kind: c_int,
}

/// `ibv_qp_attr`.
#[repr(C)]
struct Attributes {
    state: c_int,
    before: [u32; 13],
    route: Route,
    other_route: Route,
    keys: [u16; 2],
    limits: [u8; 5],
    port: u8,
    timeout: u8,
    retries: u8,
}

/// `ibv_ah_attr`.
#[repr(C)]
struct Route {
    gid: [u64; 2],
    flow_label: u32,
    gid_index: u8,
    hops: u8,
    traffic_class: u8,
    lid: u16,
    service_level: u8,
    path: u8,
    rate: u8,
    is_global: u8,
    port: u8,
}

const READY_TO_RECEIVE: c_int = 2;
const READY_TO_SEND: c_int = 3;
const DEVICE_FATAL: c_int = 8;

/// The library, as `dlopen` returned it.
struct Library(*mut c_void);

// SAFETY: only an argument of `dlsym`, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

static LIBRARY: OnceLock<Library> = OnceLock::new();

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's function.
fn real_dlsym() -> Lookup {
    // SAFETY: names that end with a zero byte. The first version is the one that every C library since has, too.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
    assert!(!found.is_null(), "the C library has no dlsym");
    // SAFETY: its signature.
    unsafe { std::mem::transmute::<*mut c_void, Lookup>(found) }
}

/// Looks a function up, as the C library does; those below are found in place of the library's.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = match name.to_bytes() {
        b"ibv_create_qp" => ibv_create_qp as *mut c_void,
        b"ibv_create_cq" => ibv_create_cq as *mut c_void,
        b"ibv_reg_mr" => ibv_reg_mr as *mut c_void,
        b"ibv_get_async_event" => ibv_get_async_event as *mut c_void,
        b"ibv_modify_qp" => ibv_modify_qp as *mut c_void,
        // SAFETY: the caller's arguments.
        _ => return unsafe { real_dlsym()(library, name.as_ptr()) },
    };
    LIBRARY.get_or_init(|| Library(library));
    ours
}

fn has(context: *const Context, fault: Fault) -> bool {
    // SAFETY: the signature of the library's function.
    let name: extern "C" fn(*mut c_void) -> *const c_char =
        unsafe { std::mem::transmute(library(c"ibv_get_device_name")) };
    // SAFETY: the context of a live object, whose device has a name.
    let name = unsafe { CStr::from_ptr(name((*context).device)) };
    FAULTS.lock().iter().any(|(device, of)| name.to_bytes() == device.as_bytes() && *of == fault)
}

fn fail(errno: c_int) {
    // SAFETY: the place of this thread's error number.
    unsafe { *libc::__errno_location() = errno };
}

/// The library's function of that name.
fn library(name: &CStr) -> *mut c_void {
    let Library(library) = LIBRARY.get().expect("mc-verbs has looked its functions up");
    // SAFETY: the library, and a name that ends with a zero byte.
    let found = unsafe { real_dlsym()(*library, name.as_ptr()) };
    assert!(!found.is_null(), "libibverbs has no {name:?}");
    found
}

extern "C" fn ibv_create_qp(domain: *mut OfContext, wanted: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's live domain.
    if has(unsafe { (*domain).context }, Fault::NoPairs) {
        fail(libc::EOPNOTSUPP);
        return ptr::null_mut();
    }
    // SAFETY: the signature of the library's function.
    let real: extern "C" fn(*mut OfContext, *mut c_void) -> *mut c_void =
        unsafe { std::mem::transmute(library(c"ibv_create_qp")) };
    real(domain, wanted)
}

extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    with: *mut c_void,
    channel: *mut c_void,
    vector: c_int,
) -> *mut c_void {
    VECTORS.lock().push(vector);
    // SAFETY: the signature of the library's function.
    let real: extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut c_void =
        unsafe { std::mem::transmute(library(c"ibv_create_cq")) };
    real(context, entries, with, channel, vector)
}

extern "C" fn ibv_reg_mr(
    domain: *mut OfContext,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut c_void {
    // SAFETY: the caller's live domain.
    if len > 64 << 10 && has(unsafe { (*domain).context }, Fault::NoMemory) {
        fail(libc::ENOMEM);
        return ptr::null_mut();
    }
    // SAFETY: the signature of the library's function.
    let real: extern "C" fn(*mut OfContext, *mut c_void, usize, c_int) -> *mut c_void =
        unsafe { std::mem::transmute(library(c"ibv_reg_mr")) };
    real(domain, address, len, access)
}

extern "C" fn ibv_get_async_event(context: *mut Context, event: *mut Event) -> c_int {
    // SAFETY: the signature of the library's function.
    let real: extern "C" fn(*mut Context, *mut Event) -> c_int =
        unsafe { std::mem::transmute(library(c"ibv_get_async_event")) };
    let done = real(context, event);
    if done == 0 && has(context, Fault::Fatal) {
        // SAFETY: the caller's event, which the library has filled.
        unsafe { (*event).kind = DEVICE_FATAL };
    }
    done
}

extern "C" fn ibv_modify_qp(pair: *mut c_void, to: *const Attributes, named: c_int) -> c_int {
    // SAFETY: the caller's attributes.
    let Attributes { state, route, timeout, retries, .. } = unsafe { &*to };
    let mut connected = CONNECTED.lock();
    match *state {
        READY_TO_RECEIVE => connected.push(Connected {
            port: route.port,
            gid_index: route.gid_index,
            traffic_class: route.traffic_class,
            service_level: route.service_level,
            ..Connected::default()
        }),
        READY_TO_SEND => connected
            .last_mut()
            .into_iter()
            .for_each(|last| (last.timeout, last.retries) = (*timeout, *retries)),
        _ => {}
    }
    drop(connected);
    // SAFETY: the signature of the library's function.
    let real: extern "C" fn(*mut c_void, *const Attributes, c_int) -> c_int =
        unsafe { std::mem::transmute(library(c"ibv_modify_qp")) };
    real(pair, to, named)
}
