//! Calls that no thread waits for, and the queue of their results: for asyncio and for LMCache's connector.
//!
//! A call is a task of the runtime. It owns addresses, and this queue the exports of the buffers behind them, where the call has taken objects
//! rather than addresses. When the task has
//! ended, its result is put into the queue and the descriptor becomes readable. A Python thread drains the queue then: it converts the
//! results and releases the buffers. So buffers live until nothing can touch them, and the runtime's threads never wait for the GIL.
//! A cancelled call is in the queue, too, once its future was dropped.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use tokio::task::AbortHandle;

use super::args::Exports;
use super::process::{self, Generation};

/// Converts the result of a call under the GIL.
type Convert = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Drained = (u64, bool, Option<Py<PyAny>>, Option<Py<PyAny>>);

/// Results of calls that were started with it.
#[pyclass(frozen, weakref, module = "mc._native")]
pub(super) struct Queue {
    shared: Arc<Shared>,
    running: Mutex<Running>,
    made_in: Generation,
}

struct Shared {
    /// Number of each call that has ended, with its result; `None` if it was cancelled.
    ended: Mutex<Vec<(u64, Option<Convert>)>>,
    descriptor: OwnedFd,
}

#[derive(Default)]
struct Running {
    next: u64,
    calls: HashMap<u64, Call>,
}

struct Call {
    abort: AbortHandle,
    /// Released when the result is drained.
    _exports: Exports,
}

/// Tells the queue that a call has ended, also when its task is dropped.
struct End {
    shared: Arc<Shared>,
    number: u64,
    result: Option<Convert>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.shared.ended.lock().push((self.number, self.result.take()));
        self.shared.ring();
    }
}

impl Shared {
    fn ring(&self) {
        // It fails only when the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl Queue {
    /// Starts a call, and returns its number.
    pub(super) fn submit<F, T>(
        &self,
        py: Python<'_>,
        exports: Exports,
        call: F,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<u64>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.made_in.check(py, "queue")?;
        let runtime = &process::current(py)?.runtime;
        let mut running = self.running.lock();
        let number = running.next;
        running.next += 1;
        let end = End { shared: self.shared.clone(), number, result: None };
        let task = runtime.spawn(async move {
            // A local, so that it is dropped after the call's future, which is all that touches the buffers.
            let mut end = end;
            let output = call.await;
            end.result = Some(Box::new(move |py| convert(py, output)));
        });
        running.calls.insert(number, Call { abort: task.abort_handle(), _exports: exports });
        Ok(number)
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new() -> PyResult<Self> {
        let descriptor =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let shared = Arc::new(Shared { ended: Mutex::default(), descriptor });
        Ok(Self { shared, running: Mutex::default(), made_in: Generation::now() })
    }

    /// Descriptor that is readable while there are results to drain.
    fn fileno(&self) -> i32 {
        self.shared.descriptor.as_raw_fd()
    }

    /// Takes the results of calls: number, whether it ended rather than was cancelled, result, and the exception in its place.
    fn drain(&self, py: Python<'_>) -> PyResult<Vec<Drained>> {
        self.made_in.check(py, "queue")?;
        let mut count = [0; 8];
        // Nothing to read is fine.
        let _ = rustix::io::read(&self.shared.descriptor, &mut count);
        let ended = std::mem::take(&mut *self.shared.ended.lock());
        let mut drained = Vec::with_capacity(ended.len());
        for (number, convert) in ended {
            let call = self.running.lock().calls.remove(&number);
            // Dropped outside the lock: releasing an export may run Python.
            drop(call);
            drained.push(match convert.map(|convert| convert(py)) {
                None => (number, false, None, None),
                Some(Ok(result)) => (number, true, Some(result), None),
                Some(Err(error)) => (number, true, None, Some(error.into_value(py).into_any())),
            });
        }
        Ok(drained)
    }

    /// Cancels a call; it is drained when nothing of it touches memory any more.
    fn cancel(&self, number: u64) -> PyResult<()> {
        match self.running.lock().calls.get(&number) {
            Some(call) => call.abort.abort(),
            None => return Err(PyValueError::new_err(format!("no call {number}: it was drained"))),
        }
        Ok(())
    }

    /// Number of calls that were not drained.
    fn __len__(&self) -> usize {
        self.running.lock().calls.len()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let running = std::mem::take(self.running.get_mut());
        if !self.made_in.is_now() {
            std::mem::forget(running);
            return;
        }
        running.calls.values().for_each(|call| call.abort.abort());
        // The exports are released after the last future was dropped.
        let shared = &self.shared;
        let ended = || {
            while shared.ended.lock().len() < running.calls.len() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        if !running.calls.is_empty() {
            Python::try_attach(|py| py.detach(ended));
        }
    }
}
