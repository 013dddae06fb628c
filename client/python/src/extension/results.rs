//! Results of calls as Python gets them: for the package `mc` with exceptions in the place of failed items, for Mooncake's callers as
//! codes.
#![allow(unsafe_code)]

use std::future::Future;

use mc_client::{Bytes, Code, Error, Put};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::args::Exports;
use super::queue::Queue;
use super::{error, process};
use crate::{Call, mooncake};

/// Result of an item that is a number where it succeeded.
pub(super) type Numbers = Vec<Result<Option<i64>, Error>>;

/// Form in which a call returns its results to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Values, `None` for a miss, and exceptions.
    Values,
    /// Result codes of Mooncake, as integers.
    Codes,
}

/// Runs a call, or starts it if there is a queue for its result. Returns the result, or the number of the call.
pub(super) fn run<F, T>(
    py: Python<'_>,
    queue: Option<&Bound<'_, Queue>>,
    exports: Exports,
    call: F,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    match queue {
        Some(queue) => {
            let number = queue.get().submit(py, exports, call, convert)?;
            Ok(number.into_pyobject(py)?.into_any().unbind())
        }
        None => {
            let output = process::wait(py, call)?;
            drop(exports);
            convert(py, output)
        }
    }
}

/// The number for the result of a put.
pub(super) fn put(result: Result<Put, Error>, form: Form) -> Result<Option<i64>, Error> {
    result.map(|put| {
        Some(match (put, form) {
            (Put::Stored, _) | (Put::AlreadyExists, Form::Codes) => 0,
            (Put::AlreadyExists, Form::Values) => 1,
            (Put::LocalOnly, Form::Values) => 2,
            // Kept for this process, and not in the pool.
            (Put::LocalOnly, Form::Codes) => i64::from(mooncake(Call::Put, Code::NoLeader)),
        })
    })
}

/// Returns numbers; a miss is OBJECT_NOT_FOUND among codes.
pub(super) fn numbers(py: Python<'_>, results: Numbers, form: Form, call: Call) -> PyResult<Py<PyAny>> {
    if form == Form::Codes {
        let codes = results.into_iter().map(|result| match result {
            Ok(number) => number.unwrap_or(Code::ObjectNotFound as i64),
            Err(error) => i64::from(mooncake(call, error.code)),
        });
        return Ok(PyList::new(py, codes)?.into_any().unbind());
    }
    objects(py, results, form, call, |py, number| Ok(number.into_pyobject(py)?.into_any().unbind()))
}

/// Returns objects, `None` for a miss, and failures in the form.
pub(super) fn objects<T>(
    py: Python<'_>,
    results: Vec<Result<Option<T>, Error>>,
    form: Form,
    call: Call,
    mut object: impl FnMut(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let code =
        |code| -> PyResult<Py<PyAny>> { Ok(mooncake(call, code).into_pyobject(py)?.into_any().unbind()) };
    let all: PyResult<Vec<Py<PyAny>>> = results
        .into_iter()
        .map(|result| match (result, form) {
            (Ok(Some(value)), _) => object(py, value),
            (Ok(None), Form::Values) => Ok(py.None()),
            (Ok(None), Form::Codes) => code(Code::ObjectNotFound),
            (Err(failed), Form::Values) => error::of(py, &failed),
            (Err(failed), Form::Codes) => code(failed.code),
        })
        .collect();
    Ok(PyList::new(py, all?)?.into_any().unbind())
}

/// Bytes above which values are copied without the GIL.
const MANY: usize = 64 << 10;

/// Returns copies of values as bytes of Python.
pub(super) fn values(
    py: Python<'_>,
    results: Vec<Result<Option<Bytes>, Error>>,
    form: Form,
    call: Call,
) -> PyResult<Py<PyAny>> {
    let total: usize = results.iter().flatten().flatten().map(Bytes::len).sum();
    if total <= MANY {
        return objects(py, results, form, call, |py, value| {
            Ok(PyBytes::new(py, &value).into_any().unbind())
        });
    }
    let mut copies: Vec<(Bytes, Uninit)> = Vec::new();
    let all = objects(py, results, form, call, |py, value| {
        let len = value.len() as pyo3::ffi::Py_ssize_t;
        // SAFETY: a new object of that length, or null with an exception set.
        let object = unsafe {
            Bound::from_owned_ptr_or_err(py, pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), len))?
        };
        // SAFETY: it is a bytes object.
        copies.push((value, Uninit(unsafe { pyo3::ffi::PyBytes_AsString(object.as_ptr()) }.cast())));
        Ok(object.unbind())
    })?;
    py.detach(|| {
        for (value, Uninit(to)) in copies {
            // SAFETY: the object has as many bytes, is in `all`, and nobody else has seen it yet.
            unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len()) };
        }
    });
    Ok(all)
}

/// The bytes of a new object.
struct Uninit(*mut u8);

// SAFETY: an address, used as `values` says.
unsafe impl Send for Uninit {}
