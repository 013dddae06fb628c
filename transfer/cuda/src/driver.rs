//! The driver of the process, and what it says about an address.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libloading::os::unix::{Library, RTLD_NOW};

/// Name of the library. A version with another ABI would have another number.
const NAME: &str = "libcuda.so.1";

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_INITIALIZED: c_int = 3;
const DEINITIALIZED: c_int = 4;
const STUB_LIBRARY: c_int = 34;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, a `c_uint`: tells device memory from host memory.
const MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, a `c_int`: the number of the device.
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`: memory of a device.
const OF_DEVICE: c_uint = 2;

/// A call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CUDA cannot {step}: {why}")]
pub struct CudaError {
    step: &'static str,
    why: String,
}

impl CudaError {
    pub(crate) fn new(step: &'static str, why: impl Into<String>) -> Self {
        Self { step, why: why.into() }
    }
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*);)*) => {
        /// The CUDA driver that this process has loaded.
        #[allow(non_snake_case, reason = "the names of the C library")]
        pub struct Cuda {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Cuda {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be the CUDA driver: its functions have the signatures below.
            unsafe fn of(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the function of that name in the caller's library, kept beside it.
                    $($name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

// Each name is a version of its own: `cuda.h` maps the plain names to those with a suffix.
functions! {
    fn cuGetErrorName(c_int, *mut *const c_char);
    fn cuPointerGetAttributes(c_uint, *const c_int, *const *mut c_void, u64);
    fn cuDeviceGet(*mut c_int, c_int);
    fn cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    fn cuDevicePrimaryCtxRelease_v2(c_int);
    fn cuCtxPushCurrent_v2(*mut c_void);
    fn cuCtxPopCurrent_v2(*mut *mut c_void);
    fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    fn cuMemHostUnregister(*mut c_void);
    fn cuStreamCreate(*mut *mut c_void, c_uint);
    fn cuStreamDestroy_v2(*mut c_void);
    fn cuStreamSynchronize(*mut c_void);
    fn cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, *mut c_void);
    fn cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, *mut c_void);
}

impl Cuda {
    /// Returns the driver, or `None` while nothing in this process has loaded it: then none of its memory is a device's. That takes
    /// some ten nanoseconds. It is `None` in a forked child, too, in which a driver that its parent has used does not work.
    ///
    /// # Errors
    /// When the driver lacks a function. The result is kept: a loaded driver stays loaded.
    pub fn of_this_process() -> Result<Option<&'static Self>, CudaError> {
        static FOUND: OnceLock<(u32, Result<Cuda, CudaError>)> = OnceLock::new();
        /// Libraries that had been loaded when the driver was last missing.
        static MISSING_AT: AtomicU64 = AtomicU64::new(0);
        let of_here = |(process, found): &'static (u32, Result<Self, CudaError>)| match found {
            _ if *process != std::process::id() => Ok(None),
            Ok(cuda) => Ok(Some(cuda)),
            Err(why) => Err(why.clone()),
        };
        if let Some(found) = FOUND.get() {
            return of_here(found);
        }
        // Looking for a missing library opens files, so look again only after another library was loaded. Read the
        // count before the look: a library that is loaded meanwhile raises the count for the next call.
        let loaded = loaded_libraries();
        if MISSING_AT.load(Ordering::Relaxed) == loaded {
            return Ok(None);
        }
        // SAFETY: it is loaded already, so nothing of it is run.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | libc::RTLD_NOLOAD) };
        let Ok(library) = library else {
            MISSING_AT.store(loaded, Ordering::Relaxed);
            return Ok(None);
        };
        of_here(FOUND.get_or_init(|| {
            // SAFETY: the library of that name is the CUDA driver.
            let cuda = unsafe { Self::of(library) };
            let cuda = cuda.map_err(|why| CudaError::new("be used from this driver", why.to_string()));
            (std::process::id(), cuda)
        }))
    }

    /// Returns the device in whose memory the address lies, however that was allocated; `None` for host memory. All of an allocation
    /// lies in one device.
    ///
    /// # Errors
    /// When the driver does not tell.
    pub fn device_of(&'static self, address: u64) -> Result<Option<Device>, CudaError> {
        let (mut kind, mut ordinal): (c_uint, c_int) = (0, -1);
        let attributes = [MEMORY_TYPE, DEVICE_ORDINAL];
        let into: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
        // SAFETY: two attributes, and room of the size of each. Any address may be asked for.
        let done = unsafe { (self.cuPointerGetAttributes)(2, attributes.as_ptr(), into.as_ptr(), address) };
        match done {
            // There is no device memory before `cuInit`, at the end of the process, and with the toolkit's stand-in for a driver.
            // Older drivers say of memory that they don't know that it is invalid.
            NOT_INITIALIZED | DEINITIALIZED | STUB_LIBRARY | INVALID_VALUE => return Ok(None),
            done => self.check("tell the kind of an address", done)?,
        }
        // Memory of the virtual-memory API has no context, so ask for its device instead.
        Ok((kind == OF_DEVICE).then_some(Device { cuda: self, ordinal }))
    }

    pub(crate) fn check(&self, step: &'static str, done: c_int) -> Result<(), CudaError> {
        if done == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: room for the answer, which is a constant text.
        let known = unsafe { (self.cuGetErrorName)(done, &raw mut name) } == SUCCESS && !name.is_null();
        // SAFETY: as above.
        let why = known.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        Err(CudaError::new(step, why.unwrap_or_else(|| format!("error {done}"))))
    }
}

/// Number of libraries that this process has ever loaded, including those that it has unloaded.
fn loaded_libraries() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
        // SAFETY: the description of a library, valid during the call, and room for the answer.
        unsafe { *loaded.cast::<u64>() = (*info).dlpi_adds };
        // Stop after the first entry: each one carries the count.
        1
    }
    let mut loaded = 0u64;
    // SAFETY: a function of that signature, and room for its answer.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loaded).cast()) };
    loaded
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cuda")
    }
}

/// A device of this process.
#[derive(Clone, Copy)]
pub struct Device {
    pub(crate) cuda: &'static Cuda,
    ordinal: c_int,
}

impl Device {
    /// Its number in this process.
    #[must_use]
    pub fn ordinal(self) -> i32 {
        self.ordinal
    }

    /// Keeps its primary context, the one that the CUDA runtime uses, until the result is dropped.
    pub(crate) fn context(self) -> Result<Context, CudaError> {
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: room for the answer.
        let done = unsafe { (self.cuda.cuDeviceGet)(&raw mut device, self.ordinal) };
        self.cuda.check("find a device", done)?;
        // SAFETY: as above, and a device of the driver.
        let done = unsafe { (self.cuda.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        self.cuda.check("open the primary context of a device", done)?;
        Ok(Context { cuda: self.cuda, device, context })
    }

    /// Waits for the work that was queued on a stream of the device, in its primary context: streams that are named by
    /// a number of the driver are of the context of the thread.
    ///
    /// # Safety
    /// The stream must exist, or be such a number.
    ///
    /// # Errors
    /// [`CudaError`].
    pub unsafe fn wait_for(self, stream: usize) -> Result<(), CudaError> {
        let context = self.context()?;
        let _current = context.enter()?;
        // SAFETY: the caller's stream. This thread has a context.
        let done = unsafe { (self.cuda.cuStreamSynchronize)(ptr::without_provenance_mut(stream)) };
        self.cuda.check("wait for a stream", done)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.ordinal)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.ordinal).finish()
    }
}

/// The primary context of a device, kept.
pub(crate) struct Context {
    pub(crate) cuda: &'static Cuda,
    device: c_int,
    context: *mut c_void,
}

// SAFETY: the driver serializes calls on a context, and any thread may make it its own.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes it the current context of this thread. Dropping the result restores the earlier one.
    pub(crate) fn enter(&self) -> Result<Current<'_>, CudaError> {
        // SAFETY: a context that is kept.
        let done = unsafe { (self.cuda.cuCtxPushCurrent_v2)(self.context) };
        self.cuda.check("use a context", done)?;
        Ok(Current(self, std::marker::PhantomData))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: kept in `Device::context`.
        let done = unsafe { (self.cuda.cuDevicePrimaryCtxRelease_v2)(self.device) };
        if let Err(why) = self.cuda.check("release the primary context of a device", done) {
            tracing::warn!("{why}");
        }
    }
}

/// The context of this thread. It does not leave the thread.
pub(crate) struct Current<'a>(&'a Context, std::marker::PhantomData<*mut ()>);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: pushed in `enter`, by this thread.
        let done = unsafe { (self.0.cuda.cuCtxPopCurrent_v2)(&raw mut popped) };
        if let Err(why) = self.0.cuda.check("restore the context of a thread", done) {
            tracing::warn!("{why}");
        }
    }
}
