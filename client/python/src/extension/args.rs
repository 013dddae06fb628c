//! Arguments: keys, raw memory, and objects with the buffer protocol.

use std::fmt::Display;
use std::str::FromStr;

use mc_client::{Bytes, RdmaDevices};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use smallvec::SmallVec;

/// Raw memory of the caller: address and bytes. Several of one item are its parts, in order.
pub(super) type Parts = Vec<(usize, usize)>;

/// Python's exports of buffers, which keep memory valid and in its place. They are released on a Python thread.
pub(super) type Exports = Vec<PyUntypedBuffer>;

/// Parses an argument that is a word or a list.
pub(super) fn parsed<T>(what: &str, text: &str) -> PyResult<T>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse().map_err(|error| PyValueError::new_err(format!("{what} {text:?}: {error}")))
}

/// RDMA devices by name; an empty list stands for all.
pub(super) fn devices(names: &str) -> PyResult<RdmaDevices> {
    if names.is_empty() { Ok(RdmaDevices::default()) } else { parsed("rdma_devices", names) }
}

/// A key or the name of a group: UTF-8 of a string, or bytes.
pub(super) fn name<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = object.cast::<PyString>() {
        return text.to_str().map(str::as_bytes);
    }
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => {
            Err(PyTypeError::new_err(format!("a key is str or bytes, not {}", object.get_type().name()?)))
        }
    }
}

/// Calls `each` for the items of a list, a tuple or any other iterable but a string.
pub(super) fn each<'py>(
    items: &Bound<'py, PyAny>,
    what: &str,
    mut each: impl FnMut(&Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(list) = items.cast::<PyList>() {
        return list.iter().try_for_each(|item| each(&item));
    }
    if let Ok(tuple) = items.cast::<PyTuple>() {
        return tuple.iter().try_for_each(|item| each(&item));
    }
    if items.is_instance_of::<PyString>() || items.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err(format!("{what} is a list, not {}", items.get_type().name()?)));
    }
    items.try_iter()?.try_for_each(|item| each(&item?))
}

/// Keys or names; all share one allocation.
pub(super) fn keys(items: &Bound<'_, PyAny>) -> PyResult<Vec<Bytes>> {
    let (mut all, mut lens) = (Vec::new(), Vec::new());
    each(items, "keys", |item| {
        let name = name(item)?;
        all.extend_from_slice(name);
        lens.push(name.len());
        Ok(())
    })?;
    let mut all = Bytes::from(all);
    Ok(lens.into_iter().map(|len| all.split_to(len)).collect())
}

/// The groups of as many items; none if there is no list.
pub(super) fn groups(groups: Option<&Bound<'_, PyAny>>, items: usize) -> PyResult<Vec<Bytes>> {
    let Some(groups) = groups else { return Ok(vec![Bytes::new(); items]) };
    let groups = keys(groups)?;
    same("groups", groups.len(), items)?;
    Ok(groups)
}

/// Checks the length of a list that belongs to as many items.
pub(super) fn same(what: &str, len: usize, items: usize) -> PyResult<()> {
    if len == items {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{len} {what} for {items} items: give one for each")))
}

pub(super) fn numbers(items: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
    let mut numbers = Vec::new();
    each(items, what, |item| {
        numbers.push(item.extract()?);
        Ok(())
    })?;
    Ok(numbers)
}

/// Raw memory of each item, from a list of addresses and one of sizes. Instead of numbers these may have lists of them.
pub(super) fn memory(addresses: &Bound<'_, PyAny>, sizes: &Bound<'_, PyAny>) -> PyResult<Vec<Parts>> {
    let (starts, lens) = (numbers_each(addresses, "addresses")?, numbers_each(sizes, "sizes")?);
    same("sizes", lens.len(), starts.len())?;
    starts.into_iter().zip(lens).map(|(starts, lens)| parts(&starts, &lens)).collect()
}

/// The numbers of each item: one, or a list.
fn numbers_each(items: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<SmallVec<[usize; 1]>>> {
    let mut all = Vec::new();
    each(items, what, |item| {
        let mut numbers = SmallVec::new();
        if item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>() {
            each(item, what, |number| {
                numbers.push(number.extract()?);
                Ok(())
            })?;
        } else {
            numbers.push(item.extract()?);
        }
        all.push(numbers);
        Ok(())
    })?;
    Ok(all)
}

/// The parts of an item, which fit into the address space, each and all together.
fn parts(starts: &[usize], lens: &[usize]) -> PyResult<Parts> {
    same("sizes of one item", lens.len(), starts.len())?;
    let mut left = isize::MAX as usize;
    let part = |(start, len): (&usize, &usize)| match (left.checked_sub(*len), start.checked_add(*len)) {
        (Some(rest), Some(_)) => {
            left = rest;
            Ok((*start, *len))
        }
        _ => Err(PyValueError::new_err(format!("{len} bytes at {start:#x}: no memory is that long"))),
    };
    starts.iter().zip(lens).map(part).collect()
}

/// Raw memory of each item with the offsets in its object.
pub(super) fn ranges(
    addresses: &Bound<'_, PyAny>,
    sizes: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
) -> PyResult<Vec<(Parts, Vec<u64>)>> {
    let memory = memory(addresses, sizes)?;
    let mut all = Vec::with_capacity(memory.len());
    each(offsets, "offsets", |item| {
        all.push(match item.extract::<u64>() {
            Ok(number) => vec![number],
            Err(_) => numbers(item, "offsets")?,
        });
        Ok(())
    })?;
    same("offsets", all.len(), memory.len())?;
    memory
        .iter()
        .zip(&all)
        .try_for_each(|(parts, offsets)| same("offsets of one item", offsets.len(), parts.len()))?;
    Ok(memory.into_iter().zip(all).collect())
}

/// Memory of each value: a buffer, or a list of buffers.
pub(super) fn values(values: &Bound<'_, PyAny>) -> PyResult<(Vec<Parts>, Exports)> {
    let (mut all, mut exports) = (Vec::new(), Vec::new());
    each(values, "values", |value| {
        let mut parts = Parts::new();
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            each(value, "values", |part| {
                parts.push(export(part, &mut exports)?);
                Ok(())
            })?;
        } else {
            parts.push(export(value, &mut exports)?);
        }
        all.push(parts);
        Ok(())
    })?;
    Ok((all, exports))
}

/// Address and bytes of an object's buffer.
fn export(object: &Bound<'_, PyAny>, exports: &mut Exports) -> PyResult<(usize, usize)> {
    let buffer = contiguous(object)?;
    let part = (buffer.buf_ptr() as usize, buffer.len_bytes());
    exports.push(buffer);
    Ok(part)
}

/// The buffer of an object, whose bytes are in one piece.
pub(super) fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(PyValueError::new_err(
        "the bytes of the buffer are not in one piece: copy them first, for example with bytes()",
    ))
}
