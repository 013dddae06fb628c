//! Sessions of reads and puts.

use std::sync::Arc;

use mc_client::Code;
use parking_lot::Mutex;
use pyo3::prelude::*;

use super::error;
use super::process::Generation;

/// One version of an object that is read range by range.
#[pyclass(frozen, module = "mc._native")]
pub(super) struct GetSession(Handle<mc_client::GetSession>);

/// An object that is put range by range.
#[pyclass(frozen, module = "mc._native")]
pub(super) struct PutSession(Handle<mc_client::PutSession>);

/// A session until it is given back, and in the process that opened it.
struct Handle<S> {
    session: Mutex<Option<Arc<S>>>,
    made_in: Generation,
}

impl<S> Handle<S> {
    fn new(session: S) -> Self {
        Self { session: Mutex::new(Some(Arc::new(session))), made_in: Generation::now() }
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<S>> {
        self.made_in.check(py, "session")?;
        let session = self.session.lock().clone();
        session.ok_or_else(|| error::raised(py, Code::InvalidParams, true, "the session was closed"))
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<Arc<S>>> {
        self.made_in.check(py, "session")?;
        Ok(self.session.lock().take())
    }
}

impl<S> Drop for Handle<S> {
    fn drop(&mut self) {
        if !self.made_in.is_now() {
            std::mem::forget(self.session.get_mut().take());
        }
    }
}

impl GetSession {
    pub(super) fn new(session: mc_client::GetSession) -> Self {
        Self(Handle::new(session))
    }

    pub(super) fn handle(&self, py: Python<'_>) -> PyResult<Arc<mc_client::GetSession>> {
        self.0.get(py)
    }
}

impl PutSession {
    pub(super) fn new(session: mc_client::PutSession) -> Self {
        Self(Handle::new(session))
    }

    pub(super) fn handle(&self, py: Python<'_>) -> PyResult<Arc<mc_client::PutSession>> {
        self.0.get(py)
    }

    /// Takes the session out, which revokes it unless it is finished or in use by a call.
    pub(super) fn take(&self, py: Python<'_>) -> PyResult<Option<Arc<mc_client::PutSession>>> {
        self.0.take(py)
    }
}

#[pymethods]
impl GetSession {
    /// Size of the object in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.size())
    }

    /// Id of the put that wrote this version.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.version().to_string())
    }

    /// Ends the session: its lease is not renewed any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.take(py).map(drop)
    }
}

#[pymethods]
impl PutSession {
    /// Size of the object in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.size())
    }

    /// Id of the put, which is the version of the object once it is finished.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.id().to_string())
    }
}
