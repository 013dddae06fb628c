//! The values that exist once in a process: a runtime, lines of the log, and memory that transports reach.
//!
//! A forked child has none of the runtime's threads, so it gets a process value of its own at its first call, and the parent's
//! is left as it is: its locks may be held by threads that don't exist here. Handles remember the [`Generation`] that
//! made them, and refuse to be used in another one.
#![allow(unsafe_code)]

use std::future::Future;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use super::error;
use super::lines::Lines;
use super::registered::Reached;

/// Time between two looks at pending signals, such as Ctrl-C, during a call.
const SIGNALS: Duration = Duration::from_millis(100);
/// Default number of the runtime's threads: what they do is bound by memory and network, and engines need the processors.
const THREADS: usize = 2;
const MOST_THREADS: usize = 64;

static GENERATION: AtomicU64 = AtomicU64::new(0);
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Number of forks between the process that imported the module and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

pub(super) struct Process {
    pub(super) runtime: Runtime,
    pub(super) lines: Lines,
    pub(super) reached: Reached,
}

/// Notices forks from now on.
pub(super) fn notice_forks() {
    extern "C" fn in_the_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        CURRENT.store(std::ptr::null_mut(), Ordering::Release);
        // This thread's generator is a copy of the parent's, and ids of clients, stores and puts are drawn from it. It fails only where the
        // system has no random numbers, and then the first draw of any process fails.
        let _ = rand::rng().reseed();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: in the child of a process with threads, the handler stores to atomics, reads random numbers from the kernel, and at most
        // allocates, for which the C library has put its allocator in order before.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    });
}

impl Generation {
    pub(super) fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process made the value.
    pub(super) fn is_now(self) -> bool {
        self == Self::now()
    }

    /// Checks that this process made the value.
    pub(super) fn check(self, py: Python<'_>, what: &str) -> PyResult<()> {
        if self.is_now() {
            return Ok(());
        }
        let why =
            format!("this {what} belongs to the parent process: a forked child has to create one of its own");
        Err(error::raised(py, mc_client::Code::InvalidParams, true, &why))
    }
}

/// Returns the value of this process if something was started here.
pub(super) fn started() -> Option<&'static Process> {
    // SAFETY: null, or a leaked value of this process.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the value of this process; the first call starts it.
pub(super) fn current(py: Python<'_>) -> PyResult<&'static Process> {
    if let Some(process) = started() {
        return Ok(process);
    }
    let new = Box::into_raw(Box::new(Process {
        runtime: runtime()?,
        lines: Lines::default(),
        reached: Reached::default(),
    }));
    // Without a lock, which a fork could leave locked in the child.
    let null = std::ptr::null_mut();
    match CURRENT.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked just now.
        Ok(_) => Ok(unsafe { &*new }),
        Err(_) => {
            // SAFETY: another thread was faster, and nobody else knows this one.
            let late = unsafe { Box::from_raw(new) };
            py.detach(|| late.runtime.shutdown_background());
            started()
                .ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the process was forked meanwhile"))
        }
    }
}

fn runtime() -> PyResult<Runtime> {
    let threads = match std::env::var("MC_PY_THREADS") {
        Err(_) => THREADS,
        Ok(text) => match text.parse() {
            Ok(threads @ 1..=MOST_THREADS) => threads,
            _ => {
                let why = format!(
                    "MC_PY_THREADS={text}: set it to the number of threads that move bytes, from 1 to {MOST_THREADS}"
                );
                return Err(pyo3::exceptions::PyValueError::new_err(why));
            }
        },
    };
    Ok(Builder::new_multi_thread().worker_threads(threads).thread_name("mc-python").enable_all().build()?)
}

/// Runs a call without the GIL, and looks for signals meanwhile. If one raises, the call is dropped here: nothing of it touches the
/// caller's memory when this returns.
pub(super) fn wait<F>(py: Python<'_>, call: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let runtime = &current(py)?.runtime;
    let mut call = Box::pin(call);
    loop {
        let turn =
            py.detach(|| runtime.block_on(async { tokio::time::timeout(SIGNALS, call.as_mut()).await }));
        if let Ok(output) = turn {
            return Ok(output);
        }
        if let Err(raised) = py.check_signals() {
            // The end of an abandoned call may wait for a device.
            py.detach(|| {
                let _in = runtime.enter();
                drop(call);
            });
            return Err(raised);
        }
    }
}
