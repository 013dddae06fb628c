//! `mc.McError`, whose classes are written in Python.

use mc_client::{Code, Error};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Returns an exception, without raising it.
pub(super) fn exception(py: Python<'_>, code: Code, is_definite: bool, message: &str) -> PyResult<Py<PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make =
        MAKE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("mc._errors")?.getattr("error_of")?.unbind()))?;
    make.call1(py, (code as i32, code.name(), is_definite, message))
}

/// Returns the exception for a failed call or item.
pub(super) fn of(py: Python<'_>, error: &Error) -> PyResult<Py<PyAny>> {
    exception(py, error.code, !error.is_unknown(), &error.to_string())
}

/// Returns an exception to be raised.
pub(super) fn raised(py: Python<'_>, code: Code, is_definite: bool, message: &str) -> PyErr {
    match exception(py, code, is_definite, message) {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(failed) => failed,
    }
}

/// Returns the exception to be raised for a failed call.
pub(super) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    raised(py, error.code, !error.is_unknown(), &error.to_string())
}
