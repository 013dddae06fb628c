//! An embedded store.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use mc_client::{ByteSize, Code};
use mc_store::{Builder, Port, SegmentError, ShmAccess, StartError, Transports};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::options::seconds;
use super::process::{self, Generation};
use super::{args, error};

/// Time for which a store that is dropped waits until the masters have unmounted it.
const UNMOUNT: Duration = Duration::from_secs(2);
/// Number of ports that are tried for a store whose name has its port.
const PORTS: usize = 100;
/// Time between two checks of a wait for the mount.
const LOOK: Duration = Duration::from_millis(2);

/// Memory of this process that is lent to the pool.
#[pyclass(frozen, weakref, module = "mc._native")]
pub(super) struct Store {
    /// `None` once it is stopped.
    store: Mutex<Option<mc_store::Store>>,
    name: String,
    address: String,
    id: u64,
    made_in: Generation,
}

impl Store {
    /// Does something with the store if it was not stopped.
    pub(super) fn with<T>(&self, py: Python<'_>, what: impl FnOnce(&mc_store::Store) -> T) -> PyResult<T> {
        self.made_in.check(py, "store")?;
        // Outside the lock: making an exception runs Python.
        let found = self.store.lock().as_ref().map(what);
        found
            .ok_or_else(|| error::raised(py, Code::UnavailableInCurrentStatus, true, "the store has stopped"))
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (masters, segments, *, name = None, advertise = None, listen = "0.0.0.0:0", data_dir = None,
        transports = "auto", rdma_devices = "", shared_memory = "auto"))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        masters: &str,
        segments: Vec<u64>,
        name: Option<&str>,
        advertise: Option<&str>,
        listen: &str,
        data_dir: Option<std::path::PathBuf>,
        transports: &str,
        rdma_devices: &str,
        shared_memory: &str,
    ) -> PyResult<Self> {
        let listen: SocketAddr = args::parsed("listen", listen)?;
        let (transports, shm) = (
            args::parsed::<Transports>("transports", transports)?,
            args::parsed::<ShmAccess>("shared_memory", shared_memory)?,
        );
        let devices = args::devices(rdma_devices)?;
        let builder = |listen: SocketAddr| -> Builder {
            let mut builder = mc_store::Store::builder()
                .masters(masters)
                .listen(listen)
                .transports(transports)
                .rdma_devices(devices.clone())
                .shared_memory(shm);
            for size in &segments {
                builder = builder.segment(ByteSize(*size));
            }
            if let Some(host) = advertise {
                builder = builder.advertise(host);
            }
            if let Some(dir) = &data_dir {
                builder = builder.data_dir(dir);
            }
            match name {
                Some(name) => builder.name(name.replace("{port}", &listen.port().to_string())),
                None => builder,
            }
        };
        // A name is given before the port is bound, so a name with a port takes one that was free a moment ago.
        let names_port = name.is_some_and(|name| name.contains("{port}")) && listen.port() == 0;
        let mut tried = 0;
        let store = loop {
            let listen =
                if names_port { SocketAddr::new(listen.ip(), free_port(listen.ip())?) } else { listen };
            tried += 1;
            match process::wait(py, builder(listen).start())? {
                Ok(store) => break store,
                Err(StartError::Listen { port: Port::Data, .. }) if names_port && tried < PORTS => {}
                Err(failed) => {
                    return Err(error::raised(py, code_of_start(&failed), true, &failed.to_string()));
                }
            }
        };
        let (report, data) = (store.status().report(), store.data_address());
        let host = advertise.map_or_else(|| data.ip().to_string(), ToOwned::to_owned);
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        Ok(Self {
            name: report.name,
            address: format!("{host}:{}", data.port()),
            id: report.id.0,
            store: Mutex::new(Some(store)),
            made_in: Generation::now(),
        })
    }

    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Waits until a leader has mounted the store; returns whether one has.
    fn wait_mounted(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds("timeout", timeout)?;
        let status = self.with(py, mc_store::Store::status)?;
        process::wait(py, async move {
            let mounted = async {
                while status.ready().is_err() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::time::timeout(timeout, mounted).await.is_ok()
        })
    }

    /// Mounts a further segment, and returns its number. If no leader has mounted it within `timeout`, the segment is
    /// unmounted again.
    #[pyo3(signature = (size, timeout = 10.0))]
    fn mount(&self, py: Python<'_>, size: u64, timeout: f64) -> PyResult<u64> {
        let (segments, timeout) = (self.with(py, mc_store::Store::segments)?, seconds("timeout", timeout)?);
        let mounted = process::wait(py, async move {
            let mounted = segments.mount(ByteSize(size), timeout).await;
            if let Err(SegmentError::Pending { number, .. }) = &mounted {
                // Only this call knows the number, so no other call could unmount the segment later. The store keeps
                // asking the leader for the unmount.
                let _pending = segments.unmount(*number, Duration::ZERO).await;
            }
            mounted
        })?;
        mounted.map(|number| number as u64).map_err(|failed| match failed {
            SegmentError::Pending { number, within } => {
                let why = format!("no leader mounted segment {number} within {within:?}: it was given up");
                error::raised(py, Code::RpcTimeout, false, &why)
            }
            failed => segment_error(py, &failed),
        })
    }

    /// Unmounts a segment, with all replicas in it.
    #[pyo3(signature = (number, timeout = 10.0))]
    fn unmount(&self, py: Python<'_>, number: u64, timeout: f64) -> PyResult<()> {
        let (segments, timeout) = (self.with(py, mc_store::Store::segments)?, seconds("timeout", timeout)?);
        let number = number.try_into().map_err(|_| PyValueError::new_err(format!("no segment {number}")))?;
        process::wait(py, async move { segments.unmount(number, timeout).await })?
            .map_err(|failed| segment_error(py, &failed))
    }

    /// Returns number and bytes of each segment.
    fn segments(&self, py: Python<'_>) -> PyResult<Vec<(usize, u64)>> {
        let sizes = self.with(py, |store| store.segments().list())?;
        Ok(sizes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0).collect())
    }

    /// Unmounts the memory within the time, and stops.
    #[pyo3(signature = (timeout = 2.0))]
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds("timeout", timeout)?;
        self.made_in.check(py, "store")?;
        let Some(store) = self.store.lock().take() else { return Ok(()) };
        // A signal must not leave it half stopped.
        let runtime = &process::current(py)?.runtime;
        py.detach(|| runtime.block_on(store.stop(timeout)));
        Ok(())
    }
}

/// Stops stores side by side, each within the time.
#[pyfunction]
pub(super) fn stop_stores(py: Python<'_>, stores: Vec<PyRef<'_, Store>>, timeout: f64) -> PyResult<()> {
    let timeout = seconds("timeout", timeout)?;
    let of_here = stores.iter().filter(|store| store.made_in.is_now());
    let running: Vec<_> = of_here.filter_map(|store| store.store.lock().take()).collect();
    let Some(process) = process::started() else { return Ok(()) };
    let stop = join_all(running.into_iter().map(|store| store.stop(timeout)));
    py.detach(|| drop(process.runtime.block_on(stop)));
    Ok(())
}

impl Drop for Store {
    fn drop(&mut self) {
        let store = self.store.get_mut().take();
        if !self.made_in.is_now() {
            std::mem::forget(store);
            return;
        }
        let (Some(store), Some(process)) = (store, process::started()) else { return };
        let stop = || process.runtime.block_on(store.stop(UNMOUNT));
        Python::try_attach(|py| py.detach(stop));
    }
}

fn code_of_start(failed: &StartError) -> Code {
    match failed {
        StartError::Config(_) => Code::InvalidParams,
        _ => Code::ResourceExhausted,
    }
}

fn segment_error(py: Python<'_>, failed: &SegmentError) -> PyErr {
    let (code, is_definite) = match failed {
        // The store keeps asking, so the outcome is unknown.
        SegmentError::Pending { .. } => (Code::RpcTimeout, false),
        SegmentError::Small(_) | SegmentError::Last(_) => (Code::InvalidParams, true),
        SegmentError::Unknown(_) => (Code::SegmentNotFound, true),
        SegmentError::Stopped | SegmentError::Starting => (Code::UnavailableInCurrentStatus, true),
        _ => (Code::ResourceExhausted, true),
    };
    error::raised(py, code, is_definite, &failed.to_string())
}

/// Returns a port that is free at the moment.
fn free_port(host: IpAddr) -> PyResult<u16> {
    Ok(mc_net::listen((host, 0).into())?.local_addr()?.port())
}
