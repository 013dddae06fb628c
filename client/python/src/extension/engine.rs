//! A transfer engine, which copies memory between processes beside the pool.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::time::Duration;

use mc_engine::{Direction, Limits, Notice, Peer, Piece, Range, RegisterError, Submitted};
use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::memory::gpu_of;
use super::process::Generation;

/// One end of transfers. Calls that fail raise `ValueError` or `RuntimeError`.
#[pyclass(frozen, weakref, module = "mc._native")]
pub(super) struct Engine {
    /// Not dropped in a forked child, which has none of its threads.
    engine: ManuallyDrop<mc_engine::Engine>,
    submitted: Mutex<Transfers>,
    made_in: Generation,
}

#[derive(Default)]
struct Transfers {
    last: u64,
    under_way: HashMap<u64, Submitted>,
}

fn failed(why: impl ToString) -> PyErr {
    PyRuntimeError::new_err(why.to_string())
}

fn refused(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}

/// The pieces of a transfer, from as many numbers of each kind.
fn pieces(local: &[usize], remote: &[u64], lengths: &[usize]) -> PyResult<Vec<Piece>> {
    if local.len() != remote.len() || local.len() != lengths.len() {
        let (local, remote, lengths) = (local.len(), remote.len(), lengths.len());
        return Err(refused(format!(
            "{local} addresses here, {remote} at the peer and {lengths} lengths: give as many of each"
        )));
    }
    let pieces = local.iter().zip(remote).zip(lengths);
    Ok(pieces.map(|((local, remote), len)| Piece { local: *local, remote: *remote, len: *len }).collect())
}

fn direction(write: bool) -> Direction {
    if write { Direction::Write } else { Direction::Read }
}

#[pymethods]
impl Engine {
    /// Listens on a free port of the host.
    #[new]
    fn new(py: Python<'_>, host: String, timeout: f64) -> PyResult<Self> {
        let transfer = Duration::try_from_secs_f64(timeout).map_err(refused)?;
        let limits = Limits { transfer, ..Limits::default() };
        let engine = py.detach(|| mc_engine::Engine::listen(&host, limits)).map_err(failed)?;
        Ok(Self {
            engine: ManuallyDrop::new(engine),
            submitted: Mutex::default(),
            made_in: Generation::now(),
        })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.engine.address().port()
    }

    /// Registers memory of the host, which is valid until it is unregistered. `BufferError` if part of it is registered already.
    #[pyo3(signature = (address, length, shared = true))]
    fn register(&self, py: Python<'_>, address: usize, length: usize, shared: bool) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        if let Some(gpu) = gpu_of(address)? {
            let why = format!("{address:#x} is memory of GPU {gpu}, which this engine does not move");
            return Err(PyNotImplementedError::new_err(why));
        }
        // SAFETY: memory of the caller, who keeps it until it is unregistered.
        unsafe { self.engine.register(address, length, shared) }.map_err(|why| match why {
            RegisterError::Overlaps { .. } => PyBufferError::new_err(why.to_string()),
            _ => refused(why),
        })
    }

    /// Unregisters the memory that begins there; afterwards no transfer reaches it.
    fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        py.detach(|| self.engine.unregister(address)).map_err(refused)
    }

    /// Whether so many bytes lie in one piece of registered memory.
    fn holds(&self, py: Python<'_>, address: u64, length: u64) -> PyResult<bool> {
        self.made_in.check(py, "transfer engine")?;
        Ok(self.engine.holds(Range { address, len: length }))
    }

    /// Address of what a peer registered first of the memory that it shares.
    fn first_of(&self, py: Python<'_>, host: String, port: u16) -> PyResult<Option<u64>> {
        self.made_in.check(py, "transfer engine")?;
        let first = py.detach(|| self.engine.first_of(&Peer { host, port })).map_err(failed)?;
        Ok(first.map(|range| range.address))
    }

    /// Copies bytes from or to a peer.
    #[expect(clippy::too_many_arguments, reason = "the arguments of Mooncake's call")]
    fn transfer(
        &self,
        py: Python<'_>,
        host: String,
        port: u16,
        write: bool,
        local: Vec<usize>,
        remote: Vec<u64>,
        lengths: Vec<usize>,
    ) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        let pieces = pieces(&local, &remote, &lengths)?;
        // SAFETY: memory of the caller, who keeps it until this returns.
        let copied =
            py.detach(|| unsafe { self.engine.transfer(&Peer { host, port }, direction(write), &pieces) });
        copied.map_err(failed)
    }

    /// Starts to copy bytes from or to a peer, and returns a number for `is_done` or `wait`.
    #[expect(clippy::too_many_arguments, reason = "the arguments of Mooncake's call")]
    fn submit(
        &self,
        py: Python<'_>,
        host: String,
        port: u16,
        write: bool,
        local: Vec<usize>,
        remote: Vec<u64>,
        lengths: Vec<usize>,
    ) -> PyResult<u64> {
        self.made_in.check(py, "transfer engine")?;
        let pieces = pieces(&local, &remote, &lengths)?;
        let peer = Peer { host, port };
        // SAFETY: memory of the caller, who keeps it until the transfer has ended or the engine is gone.
        let submitted =
            py.detach(|| unsafe { self.engine.submit(peer, direction(write), pieces) }).map_err(failed)?;
        let mut transfers = self.submitted.lock();
        transfers.last += 1;
        let number = transfers.last;
        transfers.under_way.insert(number, submitted);
        Ok(number)
    }

    /// Whether a transfer has ended; its number ends with it.
    fn is_done(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        self.made_in.check(py, "transfer engine")?;
        let ended = {
            let mut transfers = self.submitted.lock();
            match transfers.under_way.get(&number) {
                None => return Err(unknown(number)),
                Some(transfer) if !transfer.is_finished() => return Ok(false),
                Some(_) => transfers.under_way.remove(&number),
            }
        };
        ended.map_or(Ok(true), |transfer| transfer.wait().map(|()| true).map_err(failed))
    }

    /// Waits for a transfer.
    fn wait(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        let transfer = self.submitted.lock().under_way.remove(&number).ok_or_else(|| unknown(number))?;
        py.detach(|| transfer.wait()).map_err(failed)
    }

    /// Finds out whether a peer answers.
    fn probe(&self, py: Python<'_>, host: String, port: u16) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        py.detach(|| self.engine.probe(&Peer { host, port })).map_err(failed)
    }

    /// Gives a notice to a peer.
    fn notify(&self, py: Python<'_>, host: String, port: u16, name: String, message: String) -> PyResult<()> {
        self.made_in.check(py, "transfer engine")?;
        py.detach(|| self.engine.notify(&Peer { host, port }, &Notice { name, message })).map_err(failed)
    }

    /// Ends all connections and transfers; afterwards none reaches memory. In a forked child nothing happens.
    fn close(&self, py: Python<'_>) {
        if self.made_in.is_now() {
            py.detach(|| self.engine.close());
        }
    }

    /// Takes the notices of peers: name and message of each.
    fn notices(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        self.made_in.check(py, "transfer engine")?;
        Ok(self.engine.notices().into_iter().map(|notice| (notice.name, notice.message)).collect())
    }
}

fn unknown(number: u64) -> PyErr {
    refused(format!("no transfer {number} is under way: it was none of this engine, or its end was told"))
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.made_in.is_now() {
            // SAFETY: once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.engine) };
        }
    }
}
