//! Memory that Python reaches through the buffer protocol.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_client::{RawBytes, RegisteredMemory};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::process::{self, Generation};

/// Writable bytes, with an address for calls that take raw memory.
#[pyclass(frozen, weakref, subclass, module = "mc._native")]
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// `None` once it is released.
    owned: Mutex<Option<RegisteredMemory>>,
    /// Number of buffers that Python has of it.
    exports: AtomicUsize,
    made_in: Generation,
}

// SAFETY: the address of memory that `owned` keeps; the bytes are Python's to guard.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(mut memory: RegisteredMemory) -> Self {
        let bytes = memory.as_mut_slice();
        let (base, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        let (owned, exports) = (Mutex::new(Some(memory)), AtomicUsize::new(0));
        Self { base, len, owned, exports, made_in: Generation::now() }
    }
}

#[pymethods]
impl Memory {
    /// Address of the first byte.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        match &*self.owned.lock() {
            Some(_) => Ok(self.base.as_ptr() as usize),
            None => Err(released()),
        }
    }

    /// Whether the memory was released.
    #[getter]
    fn released(&self) -> bool {
        self.owned.lock().is_none()
    }

    /// Number of buffers of it that are in use.
    #[getter]
    fn exports(&self) -> usize {
        self.exports.load(Ordering::Acquire)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Frees the memory.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.made_in.check(py, "memory")?;
        let mut owned = self.owned.lock();
        match self.exports.load(Ordering::Acquire) {
            0 => drop(owned.take()),
            exports => {
                let why = format!("{exports} buffers of this memory are in use: release them first");
                return Err(PyBufferError::new_err(why));
            }
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        // Under the lock, so that no release comes between.
        let owned = this.owned.lock();
        if owned.is_none() {
            return Err(released());
        }
        let len = ffi::Py_ssize_t::try_from(this.len).map_err(|_| PyBufferError::new_err("too long"))?;
        // SAFETY: the interpreter's view; the memory stays until the export ends, which holds this object and is counted.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.base.as_ptr().cast(), len, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        this.exports.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The memory of a value, under the names that Mooncake's callers know.
#[pyclass(frozen, extends = Memory, module = "mc._native")]
pub(super) struct BufferHandle;

impl BufferHandle {
    pub(super) fn of(py: Python<'_>, value: Vec<u8>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, (Self, Memory::new(RegisteredMemory::from_vec(value))))?.into_any())
    }
}

#[pymethods]
impl BufferHandle {
    /// Address of the first byte.
    fn ptr(slf: PyRef<'_, Self>) -> PyResult<usize> {
        slf.as_super().address()
    }

    /// Number of bytes.
    fn size(slf: PyRef<'_, Self>) -> usize {
        slf.as_super().len
    }
}

/// The buffer of an object, held in its place until this is dropped.
#[pyclass(frozen, module = "mc._native")]
pub(super) struct Export {
    buffer: PyUntypedBuffer,
}

#[pymethods]
impl Export {
    #[new]
    #[pyo3(signature = (object, writable = false))]
    fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let buffer = super::args::contiguous(object)?;
        if writable && buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only: give one that can be written to"));
        }
        Ok(Self { buffer })
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.buffer.buf_ptr() as usize
    }

    /// Number of bytes.
    #[getter]
    fn length(&self) -> usize {
        self.buffer.len_bytes()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.made_in.is_now() {
            std::mem::forget(self.owned.get_mut().take());
        }
    }
}

fn released() -> PyErr {
    PyValueError::new_err("this memory was released")
}

/// Looks an address up.
fn located(address: usize) -> PyResult<Option<RawBytes>> {
    let Some(base) = NonNull::new(address as *mut u8) else { return Ok(None) };
    // SAFETY: no call gets it. Any address may be looked up.
    let mut byte = unsafe { RawBytes::new(base, 1) };
    RawBytes::locate([&mut byte]).map_err(|why| PyRuntimeError::new_err(why.to_string()))?;
    Ok(Some(byte))
}

/// Number of the GPU in whose memory an address lies; `None` for memory of the host.
#[pyfunction]
pub(super) fn gpu_of(address: usize) -> PyResult<Option<i32>> {
    Ok(located(address)?.and_then(|byte| byte.gpu()))
}

/// Waits for the work that a stream of the GPU has got in whose memory an address lies.
#[pyfunction]
pub(super) fn wait_for_stream(py: Python<'_>, address: usize, stream: usize) -> PyResult<()> {
    let Some(byte) = located(address)? else { return Ok(()) };
    // SAFETY: the stream that an object names for its own memory, which the caller keeps.
    let waited = py.detach(|| unsafe { byte.wait_for(stream) });
    waited.map_err(|why| PyValueError::new_err(format!("can't wait for stream {stream:#x}: {why}")))
}

/// Allocates zeroed memory that all clients of this process share with stores.
#[pyfunction]
pub(super) fn allocate(py: Python<'_>, length: usize) -> PyResult<Memory> {
    let host = &process::current(py)?.reached.host;
    let memory = py.detach(|| host.allocate(length));
    memory.map(Memory::new).map_err(|error| PyMemoryError::new_err(error.to_string()))
}
