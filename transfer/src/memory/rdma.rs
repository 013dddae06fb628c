use std::fmt;
use std::sync::Arc;

use super::rdma_devices::{self, DeviceReport, Devices, NoRdma, RdmaDevices, RdmaOptions};
use super::staging::{Pool, Staging};
use crate::choice::Transports;

/// The RDMA devices that this process uses, open, and memory for its transfers as a client.
pub struct Rdma {
    devices: Arc<Devices>,
    /// Memory of this process's transfers as a client.
    buffers: Arc<Pool>,
}

impl Rdma {
    /// Opens the devices of a process that uses `transports`; returns the reason why there are none, if RDMA was not asked
    /// for by name.
    ///
    /// # Errors
    /// When RDMA, or a device, was named and can't be used. Devices that are named for transports without RDMA are not opened.
    pub fn for_process(
        transports: Transports,
        devices: &RdmaDevices,
        options: &RdmaOptions,
    ) -> Result<Result<Arc<Self>, NoRdma>, NoRdma> {
        if !transports.rdma() {
            return Ok(Err(NoRdma(format!("the transports are limited to {transports}"))));
        }
        let named = transports == Transports::Rdma || matches!(devices, RdmaDevices::Named(_));
        let opened = Self::open(devices, options);
        let why_not = opened.as_ref().map_or_else(|why| Some(why.clone()), |rdma| rdma.why_down());
        match why_not {
            Some(why) if named => Err(why),
            _ => Ok(opened),
        }
    }

    /// Opens the devices.
    ///
    /// # Errors
    /// When none can be used, or one that was named can't. The error says why each was left.
    pub fn open(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Arc<Self>, NoRdma> {
        let devices = Devices::open(devices, options)?;
        rdma_devices::follow(&devices);
        Ok(Arc::new(Self { devices, buffers: Pool::new() }))
    }

    /// Reports on the devices, whether they can be used or not.
    ///
    /// # Errors
    /// When the system has no RDMA.
    pub fn report(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Vec<DeviceReport>, NoRdma> {
        Devices::report(devices, options, Staging::try_one)
    }

    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Takes memory for `len` bytes of a request. Waits for that of other requests.
    pub(crate) async fn staging(&self, len: u64) -> Result<Staging, NoRdma> {
        Staging::take(&self.buffers, &self.devices, len).await
    }

    /// Whether [`Self::open`] was called with this.
    pub(crate) fn is_opened_as(&self, devices: &RdmaDevices, options: &RdmaOptions) -> bool {
        self.devices.is_opened_as(devices, options)
    }

    /// Names of the devices that can be used at present.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.names()
    }

    /// Why other devices can't be used at present: one line for each, which names it.
    #[must_use]
    pub fn lacks(&self) -> Vec<String> {
        self.devices.lacks()
    }

    /// Why this process can't register memory for its transfers as a client at present.
    pub(crate) fn why_not(&self) -> Option<NoRdma> {
        self.buffers.why_not().or_else(|| self.devices.why_down())
    }

    /// Why none of the devices can be used at present.
    #[must_use]
    pub fn why_down(&self) -> Option<NoRdma> {
        self.devices.why_down()
    }

    /// Maximum number of queue pairs of a store.
    #[must_use]
    pub fn max_pairs(&self) -> usize {
        self.devices.max_pairs()
    }

    /// Number of devices.
    pub(crate) fn len(&self) -> usize {
        self.devices.len()
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("devices", &self.names().collect::<Vec<_>>())
            .field("lacks", &self.lacks())
            .field("free_buffer_bytes", &self.buffers.free_bytes())
            .finish_non_exhaustive()
    }
}
