//! The driver for tests, as an engine loads it.
#![allow(unsafe_code, dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::ffi::{CStr, c_char, c_int};
use std::process::Command;
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

/// Name of the driver in the folder.
pub(crate) const NAME: &str = "libcuda.so.1";

/// Returns a folder with the driver.
pub(crate) fn build() -> TempDir {
    build_without(None)
}

/// Returns a folder with a driver that may lack a function.
pub(crate) fn build_without(function: Option<&str>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("libcuda.rs");
    let mut code = include_str!("libcuda.rs").to_owned();
    if let Some(function) = function {
        code = code.replace(&format!("fn {function}("), "fn fake_unknown(");
    }
    std::fs::write(&source, code).unwrap();
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort"])
        .args(["-C", &format!("link-arg=-Wl,-soname,{NAME}"), "-o"])
        .arg(folder.path().join(NAME))
        .arg(source)
        .status()
        .unwrap();
    assert!(built.success());
    folder
}

/// The driver of this process.
pub(crate) struct Fake {
    library: Library,
}

/// Returns a function that counts the calls of one of the driver's. The driver must be loaded.
pub(crate) fn counter(name: &'static CStr) -> impl Fn() -> c_int + Send + Sync {
    // SAFETY: the driver for tests, loaded already.
    let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) }.unwrap();
    // SAFETY: the function's signature.
    let calls = unsafe { *library.get::<extern "C" fn(*const c_char) -> c_int>(b"fake_calls\0").unwrap() };
    move || {
        let _kept = &library;
        calls(name.as_ptr())
    }
}

/// Memory of a device, which plain accesses can't reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: an address, whose bytes are the driver's.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn address(self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Fake {
    /// Loads the driver, which is not initialized then.
    fn load() -> Self {
        let folder = build();
        // SAFETY: the driver for tests.
        let library = unsafe { Library::open(Some(folder.path().join(NAME)), RTLD_NOW | RTLD_LOCAL) };
        Self { library: library.unwrap() }
    }

    /// Returns the driver to one test at a time: they count calls. `loaded` is called before anybody has initialized it.
    pub(crate) fn get_after(loaded: impl FnOnce(&Self)) -> MutexGuard<'static, Self> {
        static FAKE: OnceLock<Mutex<Fake>> = OnceLock::new();
        let fake = FAKE.get_or_init(|| {
            let fake = Self::load();
            loaded(&fake);
            assert_eq!(fake.calls(c"cuInit"), 0, "only the engine starts CUDA");
            // SAFETY: the function's signature.
            unsafe { fake.library.get::<extern "C" fn(u32) -> c_int>(b"cuInit\0").unwrap()(0) };
            Mutex::new(fake)
        });
        fake.lock()
    }

    pub(crate) fn get() -> MutexGuard<'static, Self> {
        Self::get_after(|_| {})
    }

    /// Number of calls of a function; of all, if the name is empty.
    pub(crate) fn calls(&self, name: &CStr) -> c_int {
        // SAFETY: the function's signature.
        unsafe {
            self.library.get::<extern "C" fn(*const c_char) -> c_int>(b"fake_calls\0").unwrap()(name.as_ptr())
        }
    }

    /// Lets the calls of a function fail, after so many more that don't; of none, if the name is empty.
    pub(crate) fn fail(&self, name: &CStr, after: c_int) {
        // SAFETY: the function's signature.
        let fail = unsafe { self.library.get::<extern "C" fn(*const c_char, c_int)>(b"fake_fail\0") };
        fail.unwrap()(name.as_ptr(), after);
    }

    /// Number of copies that are under way.
    pub(crate) fn under_way(&self) -> c_int {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn() -> c_int>(b"fake_under_way\0").unwrap()() }
    }

    /// Holds the copies that are waited for from now on, or lets them go on.
    pub(crate) fn hold(&self, is_held: bool) {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn(bool)>(b"fake_hold\0").unwrap()(is_held) };
    }

    /// Number of copies that are held.
    pub(crate) fn held(&self) -> c_int {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn() -> c_int>(b"fake_held\0").unwrap()() }
    }

    /// Lets all look-ups of memory fail.
    pub(crate) fn obscure(&self, memory: Memory) {
        // SAFETY: the function's signature.
        let obscure = unsafe { self.library.get::<extern "C" fn(*mut u8)>(b"fake_obscure\0") };
        obscure.unwrap()(memory.base.as_ptr());
    }

    /// A stream of a device.
    pub(crate) fn stream(&self, device: c_int) -> usize {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn(c_int) -> usize>(b"fake_stream\0").unwrap()(device) }
    }

    pub(crate) fn allocate(&self, len: usize, device: c_int) -> Memory {
        // SAFETY: the function's signature.
        let base = unsafe {
            self.library.get::<extern "C" fn(usize, c_int) -> *mut u8>(b"fake_allocate\0").unwrap()(
                len, device,
            )
        };
        Memory { base: NonNull::new(base).unwrap(), len }
    }

    /// Memory with these bytes.
    pub(crate) fn holding(&self, bytes: &[u8], device: c_int) -> Memory {
        let memory = self.allocate(bytes.len(), device);
        self.with(memory, |there| there.copy_from_slice(bytes));
        memory
    }

    /// Looks at memory of a device.
    pub(crate) fn with<T>(&self, Memory { base, len }: Memory, look: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the function's signature.
        let open = unsafe { self.library.get::<extern "C" fn(*mut u8, bool)>(b"fake_open\0") }.unwrap();
        open(base.as_ptr(), true);
        // SAFETY: mapped, and open to plain accesses.
        let looked = look(unsafe { slice::from_raw_parts_mut(base.as_ptr(), len) });
        open(base.as_ptr(), false);
        looked
    }

    pub(crate) fn bytes(&self, memory: Memory) -> Vec<u8> {
        self.with(memory, |there| there.to_vec())
    }

    /// Number of things that were made and have not ended: kept contexts, contexts of threads, pinned memory, streams and copies.
    pub(crate) fn left(&self) -> [c_int; 5] {
        let left = |made, ended| self.calls(made) - self.calls(ended);
        [
            left(c"cuDevicePrimaryCtxRetain", c"cuDevicePrimaryCtxRelease_v2"),
            left(c"cuCtxPushCurrent_v2", c"cuCtxPopCurrent_v2"),
            left(c"cuMemHostRegister_v2", c"cuMemHostUnregister"),
            left(c"cuStreamCreate", c"cuStreamDestroy_v2"),
            self.under_way(),
        ]
    }
}
