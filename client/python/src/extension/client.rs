//! The client class. Its methods convert arguments and results; each call is in `calls.rs`.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_client::{
    ByteSize, Bytes, Code, Error, GetIntoRaw, GetRangesIntoRaw, Health, Mode, Presence, Put, PutFromRaw,
    RangeFromRaw, RangeIntoRaw, RawBytes, RegisteredMemory,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::args::{self, Parts};
use super::memory::{BufferHandle, Memory};
use super::options::{PutOptions, seconds};
use super::process::{self, Generation};
use super::queue::Queue;
use super::registered::Registered;
use super::results::{self, Form};
use super::sessions::{GetSession, PutSession};
use super::store::Store;
use super::{calls, error};
use crate::Call;

/// A client of one cluster and one tenant.
#[pyclass(frozen, weakref, module = "mc._native")]
pub(super) struct Client {
    client: ManuallyDrop<mc_client::Client>,
    form: Form,
    caches: bool,
    /// Number of puts whose group was full, and that were repeated without it.
    ungrouped: Arc<AtomicU64>,
    registered: Registered,
    made_in: Generation,
}

type Any<'a, 'py> = &'a Bound<'py, PyAny>;
type OnQueue<'a, 'py> = Option<&'a Bound<'py, Queue>>;

/// Position in a listing of keys.
#[pyclass(frozen, module = "mc._native")]
pub(super) struct ListPosition(mc_client::ListPosition);

impl Client {
    /// The client, in the process that made it.
    fn client(&self, py: Python<'_>) -> PyResult<mc_client::Client> {
        self.made_in.check(py, "client")?;
        Ok((*self.client).clone())
    }

    fn options(options: Option<&Bound<'_, PutOptions>>) -> mc_client::PutOptions {
        options.map(|options| options.get().0.clone()).unwrap_or_default()
    }
}

fn into(offset: u64, into: RawBytes) -> RangeIntoRaw {
    RangeIntoRaw { offset, into }
}

fn from(offset: u64, from: RawBytes) -> RangeFromRaw {
    RangeFromRaw { offset, from }
}

/// The raw memory of an item: none if an address is zero, which fails the item as one without memory.
fn raw_parts(parts: Parts) -> Vec<RawBytes> {
    let part = |(address, len): (usize, usize)| {
        let address = NonNull::new(address as *mut u8)?;
        // SAFETY: the callers of these methods name memory that stays valid until the call has ended, and buffers are held by their
        // exports.
        Some(unsafe { RawBytes::new(address, len) })
    };
    parts.into_iter().filter(|(_, len)| *len > 0).map(part).collect::<Option<_>>().unwrap_or_default()
}

fn raw_ranges<R>((parts, offsets): (Parts, Vec<u64>), raw: impl Fn(u64, RawBytes) -> R) -> PyResult<Vec<R>> {
    let range = |((address, len), offset)| {
        // A range of no bytes has no memory, and only its offset is checked.
        let address = if len == 0 { Some(NonNull::dangling()) } else { NonNull::new(address as *mut u8) };
        let address = address.ok_or_else(|| PyValueError::new_err("the address of a range is zero"))?;
        // SAFETY: as for `raw_parts`.
        Ok(raw(offset, unsafe { RawBytes::new(address, len) }))
    };
    parts.into_iter().zip(offsets).map(range).collect()
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (masters, *, tenant = "", local_cache = 268_435_456, transports = "auto", rdma_devices = "",
        shared_memory = "same-uid", connect_timeout = 0.3, leader_timeout = 1.0, call_timeout = 5.0, get_timeout = 10.0,
        require_leader = false, publish_local = false, checksum = true, store = None, codes = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        masters: &str,
        tenant: &str,
        local_cache: u64,
        transports: &str,
        rdma_devices: &str,
        shared_memory: &str,
        connect_timeout: f64,
        leader_timeout: f64,
        call_timeout: f64,
        get_timeout: f64,
        require_leader: bool,
        publish_local: bool,
        checksum: bool,
        store: Option<&Bound<'_, Store>>,
        codes: bool,
    ) -> PyResult<Self> {
        let process = process::current(py)?;
        let mut builder = mc_client::Client::builder()
            .masters(masters)
            .tenant(tenant)
            .local_cache(ByteSize(local_cache))
            .transports(args::parsed("transports", transports)?)
            .rdma_devices(args::devices(rdma_devices)?)
            .shared_memory(args::parsed("shared_memory", shared_memory)?)
            .connect_timeout(seconds("connect_timeout", connect_timeout)?)
            .leader_timeout(seconds("leader_timeout", leader_timeout)?)
            .call_timeout(seconds("call_timeout", call_timeout)?)
            .get_timeout(seconds("get_timeout", get_timeout)?)
            .require_leader(require_leader)
            .publish_local(publish_local)
            .checksum(checksum)
            // Mooncake's callers tell a pool without a leader from one without the object.
            .fail_local_misses(codes)
            .fail_unfinished_gets(codes)
            .host_memory(&process.reached.host)
            .runtime(process.runtime.handle().clone());
        if let Some(store) = store {
            builder = store.get().with(py, |store| builder.embedded_store(store.id(), store.memory()))?;
        }
        let client = process::wait(py, builder.connect())?
            .map_err(|failed| error::raised(py, code_of(&failed), true, &failed.to_string()))?;
        let form = if codes { Form::Codes } else { Form::Values };
        let (caches, ungrouped) = (local_cache > 0, Arc::default());
        Ok(Self {
            client: ManuallyDrop::new(client),
            form,
            caches,
            ungrouped,
            registered: Registered::default(),
            made_in: Generation::now(),
        })
    }

    /// Puts the bytes of objects with the buffer protocol.
    #[pyo3(signature = (keys, values, options = None, groups = None, *, queue = None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        values: Any<'_, 'py>,
        options: Option<&Bound<'py, PutOptions>>,
        groups: Option<Any<'_, 'py>>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let keys = args::keys(keys)?;
        let (values, exports) = args::values(values)?;
        args::same("values", values.len(), keys.len())?;
        let fills_cache = self.caches && groups.is_none();
        let groups = args::groups(groups, keys.len())?;
        let (client, options, form) = (self.client(py)?, Self::options(options), self.form);
        let items = put_items(keys, values, groups);
        let ungrouped = self.ungrouped.clone();
        let call = async move {
            match fills_cache {
                true => calls::put_through_cache(&client, items, &options, form, &ungrouped).await,
                false => calls::put(&client, items, &options, form, &ungrouped).await,
            }
        };
        results::run(py, queue, exports, call, move |py, puts| put_results(py, puts, form))
    }

    /// Puts raw memory.
    #[pyo3(signature = (keys, addresses, sizes, options = None, groups = None, *, queue = None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn put_from<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        addresses: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        options: Option<&Bound<'py, PutOptions>>,
        groups: Option<Any<'_, 'py>>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, memory) = (args::keys(keys)?, args::memory(addresses, sizes)?);
        args::same("addresses", memory.len(), keys.len())?;
        let groups = args::groups(groups, keys.len())?;
        let (client, options, form) = (self.client(py)?, Self::options(options), self.form);
        let items = put_items(keys, memory, groups);
        let ungrouped = self.ungrouped.clone();
        let call = async move { calls::put(&client, items, &options, form, &ungrouped).await };
        results::run(py, queue, Vec::new(), call, move |py, puts| put_results(py, puts, form))
    }

    /// Reads objects as bytes.
    #[pyo3(signature = (keys, *, queue = None))]
    fn get<'py>(&self, py: Python<'py>, keys: Any<'_, 'py>, queue: OnQueue<'_, 'py>) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_get(&keys).await };
        results::run(py, queue, Vec::new(), call, move |py, got| results::values(py, got, form, Call::Get))
    }

    /// Reads objects into memory that the caller alone owns.
    #[pyo3(signature = (keys, *, queue = None))]
    fn get_owned<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_get_owned(&keys).await };
        results::run(py, queue, Vec::new(), call, move |py, got| {
            results::objects(py, got, form, Call::Get, |py, value| match form {
                Form::Values => Ok(Py::new(py, Memory::new(RegisteredMemory::from_vec(value)))?.into_any()),
                Form::Codes => BufferHandle::of(py, value),
            })
        })
    }

    /// Reads objects into raw memory.
    #[pyo3(signature = (keys, addresses, sizes, *, queue = None))]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        addresses: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, memory) = (args::keys(keys)?, args::memory(addresses, sizes)?);
        args::same("addresses", memory.len(), keys.len())?;
        let (client, form) = (self.client(py)?, self.form);
        let items: Vec<_> =
            keys.into_iter().zip(memory).map(|(key, parts)| GetIntoRaw::new(key, raw_parts(parts))).collect();
        let call = async move { client.batch_get_into_raw(items).await };
        results::run(py, queue, Vec::new(), call, move |py, got| read_results(py, got, form))
    }

    /// Reads ranges of objects into raw memory.
    #[pyo3(signature = (keys, addresses, sizes, offsets, *, queue = None))]
    fn get_ranges_into<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        addresses: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        offsets: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, ranges) = (args::keys(keys)?, args::ranges(addresses, sizes, offsets)?);
        args::same("addresses", ranges.len(), keys.len())?;
        let (client, form) = (self.client(py)?, self.form);
        let item = |(key, ranges)| Ok(GetRangesIntoRaw::new(key, raw_ranges(ranges, into)?));
        let items = keys.into_iter().zip(ranges).map(item).collect::<PyResult<Vec<_>>>()?;
        let call = async move { client.batch_get_ranges_into_raw(items).await };
        results::run(py, queue, Vec::new(), call, move |py, got| read_results(py, got, form))
    }

    /// Says of each object whether it is there: 1 or 0. Without a lease it may be evicted at once.
    #[pyo3(signature = (keys, lease = true, *, queue = None))]
    fn exist<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        lease: bool,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move {
            match lease {
                true => client.batch_exist(&keys).await,
                false => calls::peek(&client, &keys).await,
            }
        };
        results::run(py, queue, Vec::new(), call, move |py, found| {
            // An engine reads a negative number as a hit or drops the whole batch, so a failure is a miss for it.
            if form == Form::Codes {
                let found = found.into_iter().map(|found| i64::from(found.unwrap_or(false)));
                return Ok(PyList::new(py, found)?.into_any().unbind());
            }
            done_results(py, found, form)
        })
    }

    /// Returns the bytes of each object. Among values, one that is being written or can't be read now is none.
    #[pyo3(signature = (keys, *, queue = None))]
    fn size<'py>(&self, py: Python<'py>, keys: Any<'_, 'py>, queue: OnQueue<'_, 'py>) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_peek(&keys).await };
        results::run(py, queue, Vec::new(), call, move |py, found| {
            let is_there = |presence| match presence {
                Presence::Present(size) => size as i64,
                Presence::Absent => Code::ObjectNotFound as i64,
                Presence::Unavailable | Presence::BeingWritten => Code::ReplicaIsNotReady as i64,
            };
            let sizes = found.into_iter().map(|found| {
                // Among values, an object that can't be read is none.
                found
                    .map(|presence| Some(is_there(presence)).filter(|size| *size >= 0 || form == Form::Codes))
            });
            results::numbers(py, sizes.collect(), form, Call::Get)
        })
    }

    /// Removes objects.
    #[pyo3(signature = (keys, force = false, *, queue = None))]
    fn remove<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        force: bool,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_remove(&keys, force).await };
        results::run(py, queue, Vec::new(), call, move |py, removed| done_results(py, removed, form))
    }

    /// Removes all objects; returns how many were removed, and how many are being read and were not.
    #[pyo3(signature = (force = false, *, queue = None))]
    fn remove_all<'py>(&self, py: Python<'py>, force: bool, queue: OnQueue<'_, 'py>) -> PyResult<Py<PyAny>> {
        let client = self.client(py)?;
        let call = async move { client.remove_all(force).await };
        results::run(py, queue, Vec::new(), call, removed_results)
    }

    /// Removes the objects whose keys match a regular expression; returns numbers as `remove_all` does.
    #[pyo3(signature = (pattern, force = false, *, queue = None))]
    fn remove_by_regex<'py>(
        &self,
        py: Python<'py>,
        pattern: String,
        force: bool,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client(py)?;
        let call = async move { client.remove_by_regex(&pattern, force).await };
        results::run(py, queue, Vec::new(), call, removed_results)
    }

    /// Drops the replicas of objects on a store.
    #[pyo3(signature = (keys, store, *, queue = None))]
    fn drop_replicas<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        store: String,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_drop_replicas(&keys, &store).await };
        results::run(py, queue, Vec::new(), call, move |py, dropped| done_results(py, dropped, form))
    }

    /// Describes objects.
    #[pyo3(signature = (keys, *, queue = None))]
    fn describe<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_describe(&keys).await };
        results::run(py, queue, Vec::new(), call, move |py, described| {
            results::objects(py, described, form, Call::Other, |py, description| {
                described_object(py, &description)
            })
        })
    }

    /// Lists keys with a prefix: pairs of key and bytes, and the position of the next page.
    #[pyo3(signature = (prefix = None, position = None, limit = 0, *, queue = None))]
    fn list_keys<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<Any<'_, 'py>>,
        position: Option<&Bound<'py, ListPosition>>,
        limit: u32,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let prefix = prefix.map(args::name).transpose()?.unwrap_or_default().to_vec();
        let (client, position) = (self.client(py)?, position.map(|position| position.get().0));
        let call = async move { client.list_keys(prefix, position, limit).await };
        results::run(py, queue, Vec::new(), call, |py, page| {
            let page = page.map_err(|failed| error::raise(py, &failed))?;
            let key = |listed: &mc_client::ListedKey| (PyBytes::new(py, &listed.key), listed.size.0);
            let keys: Vec<_> = page.keys.iter().map(key).collect();
            let next = page.next.map(|next| Py::new(py, ListPosition(next))).transpose()?;
            Ok((keys, next).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Opens sessions to read objects.
    #[pyo3(signature = (keys, *, queue = None))]
    fn open_gets<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, client, form) = (args::keys(keys)?, self.client(py)?, self.form);
        let call = async move { client.batch_get_session(&keys).await };
        results::run(py, queue, Vec::new(), call, move |py, opened| {
            results::objects(py, opened, form, Call::Get, |py, session| {
                Ok(Py::new(py, GetSession::new(session))?.into_any())
            })
        })
    }

    /// Reads ranges in sessions into raw memory.
    #[pyo3(signature = (sessions, addresses, sizes, offsets, *, queue = None))]
    fn read_into<'py>(
        &self,
        py: Python<'py>,
        sessions: Vec<PyRef<'py, GetSession>>,
        addresses: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        offsets: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let ranges = args::ranges(addresses, sizes, offsets)?;
        args::same("addresses", ranges.len(), sessions.len())?;
        let item = |(session, ranges): (&PyRef<'_, GetSession>, _)| {
            Ok((session.handle(py)?, raw_ranges(ranges, into)?))
        };
        let items = sessions.iter().zip(ranges).map(item).collect::<PyResult<Vec<_>>>()?;
        let (client, form) = (self.client(py)?, self.form);
        let call = async move { calls::read(&client, &items).await };
        results::run(py, queue, Vec::new(), call, move |py, read| moved_results(py, read, form, Call::Get))
    }

    /// Opens sessions to put objects of these sizes; a key that exists is OBJECT_ALREADY_EXISTS, or `None`.
    #[pyo3(signature = (keys, sizes, options = None, groups = None, *, queue = None))]
    fn open_puts<'py>(
        &self,
        py: Python<'py>,
        keys: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        options: Option<&Bound<'py, PutOptions>>,
        groups: Option<Any<'_, 'py>>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let (keys, sizes) = (args::keys(keys)?, args::numbers(sizes, "sizes")?);
        args::same("sizes", sizes.len(), keys.len())?;
        let groups = args::groups(groups, keys.len())?;
        let items: Vec<(Bytes, u64)> = keys.into_iter().zip(sizes).collect();
        let (client, options, form) = (self.client(py)?, Self::options(options), self.form);
        let call = async move { calls::open_puts(&client, &items, &groups, &options).await };
        results::run(py, queue, Vec::new(), call, move |py, opened| {
            let exists = Code::ObjectAlreadyExists as i32;
            let opened = opened.into_iter().map(|opened| opened.map(Some)).collect();
            results::objects(py, opened, form, Call::Put, |py, session| match (session, form) {
                (Some(session), _) => Ok(Py::new(py, PutSession::new(session))?.into_any()),
                (None, Form::Values) => Ok(py.None()),
                (None, Form::Codes) => Ok(exists.into_pyobject(py)?.into_any().unbind()),
            })
        })
    }

    /// Writes ranges in sessions from raw memory.
    #[pyo3(signature = (sessions, addresses, sizes, offsets, *, queue = None))]
    fn write_from<'py>(
        &self,
        py: Python<'py>,
        sessions: Vec<PyRef<'py, PutSession>>,
        addresses: Any<'_, 'py>,
        sizes: Any<'_, 'py>,
        offsets: Any<'_, 'py>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let ranges = args::ranges(addresses, sizes, offsets)?;
        args::same("addresses", ranges.len(), sessions.len())?;
        let item = |(session, ranges): (&PyRef<'_, PutSession>, _)| {
            Ok((session.handle(py)?, raw_ranges(ranges, from)?))
        };
        let items = sessions.iter().zip(ranges).map(item).collect::<PyResult<Vec<_>>>()?;
        let (client, form) = (self.client(py)?, self.form);
        let call = async move { calls::write(&client, &items).await };
        results::run(py, queue, Vec::new(), call, move |py, written| {
            moved_results(py, written, form, Call::Put)
        })
    }

    /// Ends put sessions, which makes their objects visible.
    #[pyo3(signature = (sessions, *, queue = None))]
    fn finish<'py>(
        &self,
        py: Python<'py>,
        sessions: Vec<PyRef<'py, PutSession>>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let form = self.form;
        self.made_in.check(py, "client")?;
        let sessions = sessions.iter().map(|session| session.handle(py)).collect::<PyResult<Vec<_>>>()?;
        let call =
            async move { futures::future::join_all(sessions.iter().map(|session| session.finish())).await };
        results::run(py, queue, Vec::new(), call, move |py, puts| put_results(py, puts, form))
    }

    /// Gives put sessions up, and frees their space.
    #[pyo3(signature = (sessions, *, queue = None))]
    fn abort<'py>(
        &self,
        py: Python<'py>,
        sessions: Vec<PyRef<'py, PutSession>>,
        queue: OnQueue<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client(py)?;
        let taken = sessions.iter().map(|session| session.take(py)).collect::<PyResult<Vec<_>>>()?;
        // A session that a call is using is revoked when that call ends.
        let owned: Vec<_> = taken.into_iter().flatten().filter_map(std::sync::Arc::into_inner).collect();
        let call = async move { client.batch_abort(owned).await };
        results::run(py, queue, Vec::new(), call, |py, aborted| {
            aborted.map(|()| py.None()).map_err(|failed| error::raise(py, &failed))
        })
    }

    /// Registers memory of the caller.
    fn register(&self, py: Python<'_>, address: usize, length: usize) -> PyResult<()> {
        self.made_in.check(py, "client")?;
        let reached = &process::current(py)?.reached;
        // SAFETY: the caller names memory that stays valid until it is unregistered or the client has ended.
        let added = py.detach(|| unsafe { self.registered.add(reached, address, length) });
        added.map_err(|why| error::raised(py, Code::InvalidParams, true, &why))
    }

    /// Ends the registration of memory.
    fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<()> {
        self.made_in.check(py, "client")?;
        let reached = &process::current(py)?.reached;
        py.detach(|| self.registered.remove(reached, address))
            .map_err(|why| error::raised(py, Code::InvalidParams, true, &why))
    }

    /// "connected", or "local-only" while no leader is in reach.
    #[getter]
    fn mode(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.client(py)?.mode() {
            Mode::Connected => "connected",
            Mode::LocalOnly => "local-only",
        })
    }

    /// "healthy", "no-leader" or "closed".
    #[getter]
    fn health(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.client(py)?.health() {
            Health::Healthy => "healthy",
            Health::NoLeader => "no-leader",
            Health::Closed => "closed",
            _ => "unknown",
        })
    }

    /// Why no leader is in reach.
    #[getter]
    fn last_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.client(py)?.last_error().map(|error| error.to_string()))
    }

    /// Counters of the client by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        self.client(py)?
            .stats()
            .by_name()
            .into_iter()
            .try_for_each(|(name, value)| counters.set_item(name, value))?;
        counters.set_item("puts_without_group", self.ungrouped.load(Ordering::Relaxed))?;
        Ok(counters)
    }

    /// By which transport bytes go to and from each store, and why not by a better one.
    fn transports<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let transport = |transport: &mc_client::PeerTransport| {
            let object = PyDict::new(py);
            object.set_item("name", transport.name)?;
            object.set_item("usable", transport.usable)?;
            object.set_item("how", transport.how.as_str())?;
            object.set_item("bytes", transport.bytes)?;
            Ok(object)
        };
        let peer = |peer: mc_client::PeerReport| {
            let object = PyDict::new(py);
            object.set_item("store", peer.store.0)?;
            object.set_item("address", peer.address)?;
            object.set_item(
                "transports",
                peer.transports.iter().map(transport).collect::<PyResult<Vec<_>>>()?,
            )?;
            Ok(object)
        };
        self.client(py)?.transports().into_iter().map(peer).collect()
    }

    /// Names of the RDMA devices in use, and why there are none.
    fn rdma(&self, py: Python<'_>) -> PyResult<(Vec<String>, Option<String>)> {
        Ok(match self.client(py)?.rdma_devices() {
            Ok(names) => (names, None),
            Err(why) => (Vec::new(), Some(why.to_string())),
        })
    }

    /// Fails all pending and later calls.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.client(py)?.close();
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.made_in.is_now() {
            return;
        }
        if let Some(process) = process::started() {
            // Another thread may register memory, which takes seconds.
            Python::try_attach(|py| py.detach(|| self.registered.remove_all(&process.reached)));
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.client) };
    }
}

fn put_items(keys: Vec<Bytes>, values: Vec<Parts>, groups: Vec<Bytes>) -> Vec<PutFromRaw> {
    let items = keys.into_iter().zip(values).zip(groups);
    items.map(|((key, parts), group)| PutFromRaw::new(key, raw_parts(parts)).with_group(group)).collect()
}

fn put_results(py: Python<'_>, puts: Vec<Result<Put, Error>>, form: Form) -> PyResult<Py<PyAny>> {
    let numbers = puts.into_iter().map(|put| results::put(put, form)).collect();
    results::numbers(py, numbers, form, Call::Put)
}

fn read_results(py: Python<'_>, got: Vec<Result<Option<usize>, Error>>, form: Form) -> PyResult<Py<PyAny>> {
    let numbers = got.into_iter().map(|read| read.map(|read| read.map(|bytes| bytes as i64))).collect();
    results::numbers(py, numbers, form, Call::Get)
}

fn moved_results(
    py: Python<'_>,
    moved: Vec<Result<usize, Error>>,
    form: Form,
    call: Call,
) -> PyResult<Py<PyAny>> {
    let numbers = moved.into_iter().map(|moved| moved.map(|bytes| Some(bytes as i64))).collect();
    results::numbers(py, numbers, form, call)
}

/// Converts results of calls that either did something or found nothing: to 0 or OBJECT_NOT_FOUND, or to `True` and
/// `False`.
fn done_results(py: Python<'_>, done: Vec<Result<bool, Error>>, form: Form) -> PyResult<Py<PyAny>> {
    match form {
        Form::Codes => {
            let numbers = done.into_iter().map(|done| done.map(|done| done.then_some(0))).collect();
            results::numbers(py, numbers, form, Call::Other)
        }
        Form::Values => {
            let done = done.into_iter().map(|done| done.map(Some)).collect();
            results::objects(py, done, form, Call::Other, |py, done: bool| {
                Ok(done.into_pyobject(py)?.to_owned().into_any().unbind())
            })
        }
    }
}

fn removed_results(py: Python<'_>, removed: Result<mc_client::Removed, Error>) -> PyResult<Py<PyAny>> {
    let removed = removed.map_err(|failed| error::raise(py, &failed))?;
    Ok((removed.objects, removed.leased).into_pyobject(py)?.into_any().unbind())
}

fn described_object(py: Python<'_>, description: &mc_client::Description) -> PyResult<Py<PyAny>> {
    let object = PyDict::new(py);
    object.set_item("size", description.size.0)?;
    object.set_item("version", description.version.to_string())?;
    let (pin, left) = match description.pin {
        None => ("none", None),
        Some(mc_client::Pin::Hard) => ("hard", None),
        Some(mc_client::Pin::Soft { left }) => ("soft", Some(left.as_secs_f64())),
        Some(_) => ("unknown", None),
    };
    object.set_item("pin", pin)?;
    object.set_item("soft_pin", left)?;
    object.set_item("group", description.group.map(|group| format!("{:032x}", group.id)))?;
    object.set_item("data_type", description.data_type)?;
    let replica = |replica: &mc_client::DescribedReplica| {
        let object = PyDict::new(py);
        object.set_item("store", replica.store.0)?;
        object.set_item("store_name", &replica.store_name)?;
        object.set_item("address", &replica.address)?;
        object.set_item("segment", u64::from(replica.segment))?;
        object.set_item("offset", replica.offset)?;
        object.set_item("suspect", replica.suspect)?;
        Ok(object)
    };
    object.set_item("replicas", description.replicas.iter().map(replica).collect::<PyResult<Vec<_>>>()?)?;
    Ok(object.into_any().unbind())
}

fn code_of(failed: &mc_client::ConnectError) -> Code {
    use mc_client::ConnectError as C;
    match failed {
        C::NoLeader { .. } => Code::NoLeader,
        C::VersionSkew { .. } => Code::VersionSkew,
        C::WrongCluster { .. } => Code::WrongCluster,
        C::Thread { .. } => Code::ResourceExhausted,
        _ => Code::InvalidParams,
    }
}
