//! Recognises the memory of devices, and copies it, with a driver that keeps plain accesses out of it (see fake/libcuda.rs).
#![allow(unsafe_code, clippy::unwrap_used, reason = "a test")]

mod fake;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mc_cuda::{Cuda, CudaError, Stage};
use parking_lot::{Mutex, MutexGuard};

const PIECE: usize = 4096;

/// The driver of this process, as an engine has loaded it.
struct Fake {
    cuda: &'static Cuda,
    library: Library,
}

impl Fake {
    fn load() -> Self {
        let folder = fake::build();
        let path = folder.path().join(fake::NAME);
        // SAFETY: the driver for tests.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let cuda = Cuda::of_this_process().unwrap().expect("it is loaded");
        // Not initialized yet.
        let byte = 0u8;
        assert_eq!(cuda.device_of(&raw const byte as u64).unwrap(), None);
        let fake = Self { cuda, library };
        assert_eq!(fake.calls(c"cuInit"), 0, "only the engine starts CUDA");
        // SAFETY: the function's signature.
        unsafe { fake.library.get::<extern "C" fn(u32) -> c_int>(b"cuInit\0").unwrap()(0) };
        fake
    }

    /// One test at a time: they count calls.
    fn get() -> MutexGuard<'static, Self> {
        static FAKE: OnceLock<Mutex<Fake>> = OnceLock::new();
        FAKE.get_or_init(|| Mutex::new(Self::load())).lock()
    }

    fn calls(&self, name: &CStr) -> c_int {
        // SAFETY: the function's signature.
        unsafe {
            self.library.get::<extern "C" fn(*const c_char) -> c_int>(b"fake_calls\0").unwrap()(name.as_ptr())
        }
    }

    /// Lets the calls of a function fail from now on; of none, if the name is empty.
    fn fail(&self, name: &CStr) {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn(*const c_char)>(b"fake_fail\0").unwrap()(name.as_ptr()) };
    }

    fn under_way(&self) -> c_int {
        // SAFETY: the function's signature.
        unsafe { self.library.get::<extern "C" fn() -> c_int>(b"fake_under_way\0").unwrap()() }
    }

    fn allocate(&self, len: usize, device: c_int) -> *mut u8 {
        // SAFETY: the function's signature.
        unsafe {
            self.library.get::<extern "C" fn(usize, c_int) -> *mut u8>(b"fake_allocate\0").unwrap()(
                len, device,
            )
        }
    }

    /// Looks at memory of a device, which must be whole.
    fn with<T>(&self, base: *mut u8, len: usize, look: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the function's signature.
        let open = unsafe { self.library.get::<extern "C" fn(*mut u8, bool)>(b"fake_open\0") }.unwrap();
        open(base, true);
        // SAFETY: mapped, and open to plain accesses.
        let looked = look(unsafe { slice::from_raw_parts_mut(base, len) });
        open(base, false);
        looked
    }

    fn stage(&self, address: *mut u8) -> Stage {
        Stage::new(self.cuda.device_of(address as u64).unwrap().unwrap(), PIECE).unwrap()
    }

    /// Number of things that were made and have not ended: kept contexts, contexts of threads, pinned buffers, streams and copies.
    fn left(&self) -> [c_int; 5] {
        let left = |made, ended| self.calls(made) - self.calls(ended);
        [
            left(c"cuDevicePrimaryCtxRetain", c"cuDevicePrimaryCtxRelease_v2"),
            left(c"cuCtxPushCurrent_v2", c"cuCtxPopCurrent_v2"),
            left(c"cuMemHostAlloc", c"cuMemFreeHost"),
            left(c"cuStreamCreate", c"cuStreamDestroy_v2"),
            self.under_way(),
        ]
    }
}

/// Why a test stopped.
#[derive(Debug)]
enum Stop {
    Cuda(CudaError),
    GivenUp,
}

impl From<CudaError> for Stop {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096 * 13) as u8).collect()
}

#[test]
fn an_address_is_of_the_device_that_it_was_allocated_on_or_of_the_host() {
    let fake = Fake::get();
    let (first, second, host) = (fake.allocate(PIECE, 0), fake.allocate(2 * PIECE, 1), [0u8; 8]);
    let ordinal = |address: u64| fake.cuda.device_of(address).unwrap().map(|device| device.ordinal());
    assert_eq!(ordinal(first as u64), Some(0));
    assert_eq!(ordinal(second as u64 + 2 * PIECE as u64 - 1), Some(1));
    assert_eq!(ordinal(host.as_ptr() as u64), None);
    assert_eq!(ordinal(0), None);
    fake.fail(c"cuPointerGetAttributes");
    let why = fake.cuda.device_of(first as u64).unwrap_err().to_string();
    fake.fail(c"");
    assert!(why.contains("the kind of an address") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
    assert_eq!(fake.calls(c"cuInit"), 1, "the engine's");
}

#[test]
fn memory_of_a_device_is_read_in_pieces_while_the_next_one_is_copied() {
    let fake = Fake::get();
    for len in [0, 1, PIECE, PIECE + 1, 5 * PIECE - 3] {
        let (memory, bytes, before) = (fake.allocate(len.max(1), 1), pattern(len), fake.left());
        let mut read = Vec::new();
        fake.with(memory, len, |there| there.copy_from_slice(&bytes));
        let mut stage = fake.stage(memory);
        // SAFETY: memory of the device, which nothing else uses.
        let done = unsafe {
            stage.read(memory as u64, len, |piece| {
                read.extend_from_slice(piece);
                assert_eq!(fake.under_way(), c_int::from(read.len() < len), "the next piece is on its way");
                Ok::<_, Stop>(())
            })
        };
        done.unwrap();
        assert!(read == bytes, "{len} bytes");
        drop(stage);
        assert_eq!(fake.left(), before);
    }
}

#[test]
fn memory_of_a_device_is_written_in_pieces_while_the_one_before_is_copied() {
    let fake = Fake::get();
    for len in [0, 1, PIECE, PIECE + 1, 5 * PIECE - 3] {
        let (memory, bytes, before) = (fake.allocate(len.max(1), 0), pattern(len), fake.left());
        let mut filled = 0;
        let mut stage = fake.stage(memory);
        // SAFETY: memory of the device, which nothing else uses.
        let done = unsafe {
            stage.write(memory as u64, len, |piece| {
                assert_eq!(fake.under_way(), c_int::from(filled > 0), "the piece before is on its way");
                piece.copy_from_slice(&bytes[filled..filled + piece.len()]);
                filled += piece.len();
                Ok::<_, Stop>(())
            })
        };
        done.unwrap();
        assert_eq!(fake.under_way(), 0, "nothing touches the memory after the call");
        assert!(fake.with(memory, len, |there| *there == bytes), "{len} bytes");
        drop(stage);
        assert_eq!(fake.left(), before);
    }
}

#[test]
fn no_copy_is_under_way_after_a_caller_that_gave_up_or_panicked() {
    let fake = Fake::get();
    let (memory, before) = (fake.allocate(4 * PIECE, 0), fake.left());
    let mut stage = fake.stage(memory);
    // SAFETY: memory of the device, which nothing else uses.
    let given_up = unsafe {
        stage.read(memory as u64, 4 * PIECE, |_| {
            assert_eq!(fake.under_way(), 1);
            Err(Stop::GivenUp)
        })
    };
    assert!(matches!(given_up, Err(Stop::GivenUp)));
    assert_eq!(fake.under_way(), 0);
    let mut pieces = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as above.
        let done = unsafe {
            stage.write(memory as u64, 4 * PIECE, |_| {
                pieces += 1;
                assert!(pieces < 3, "with a copy under way");
                Ok::<_, Stop>(())
            })
        };
        done.unwrap();
    }));
    panicked.unwrap_err();
    drop(stage);
    assert_eq!((pieces, fake.left()), (3, before));
}

#[test]
fn buffers_of_a_copy_that_cannot_be_waited_for_are_never_used_again() {
    let fake = Fake::get();
    let (memory, before) = (fake.allocate(4 * PIECE, 0), fake.left());
    let mut stage = fake.stage(memory);
    // SAFETY: memory of the device, which nothing else uses.
    let mut read = || unsafe {
        stage.read(memory as u64, 4 * PIECE, |_| {
            fake.fail(c"cuStreamSynchronize");
            Ok::<_, Stop>(())
        })
    };
    let mut failed = || match read() {
        Err(Stop::Cuda(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let why = failed();
    assert!(why.contains("wait for a copy") && why.contains("CUDA_ERROR_OF_A_TEST"), "{why}");
    fake.fail(c"");
    let why = failed();
    assert!(why.contains("an earlier copy did not end"), "{why}");
    drop(stage);
    // The driver frees them with the context, after whatever it does there.
    let [contexts, currents, pinned, streams, copies] = before;
    assert_eq!(fake.left(), [contexts, currents, pinned + 2, streams + 2, copies]);
}

#[test]
fn nothing_is_left_of_a_stage_that_could_not_be_made() {
    let fake = Fake::get();
    let (memory, before) = (fake.allocate(PIECE, 0), fake.left());
    let device = fake.cuda.device_of(memory as u64).unwrap().unwrap();
    for step in [c"cuDevicePrimaryCtxRetain", c"cuCtxPushCurrent_v2", c"cuMemHostAlloc", c"cuStreamCreate"] {
        fake.fail(step);
        Stage::new(device, PIECE).unwrap_err();
        fake.fail(c"");
        assert_eq!(fake.left(), before, "{step:?}");
    }
}

#[test]
fn a_write_whose_last_copy_fails_is_an_error() {
    let fake = Fake::get();
    let memory = fake.allocate(PIECE, 0);
    let mut stage = fake.stage(memory);
    // SAFETY: memory of the device, which nothing else uses.
    let failed = unsafe {
        stage.write(memory as u64, PIECE, |_| {
            fake.fail(c"cuStreamSynchronize");
            Ok::<_, Stop>(())
        })
    };
    fake.fail(c"");
    assert!(matches!(failed, Err(Stop::Cuda(_))), "{failed:?}");
}
