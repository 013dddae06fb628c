use std::sync::Arc;

use mc_verbs::{Timing, device_names, self_test};

use super::device::RdmaDevice;
use super::{DeviceReport, NoRdma, RdmaDevices, RdmaOptions};

/// The RDMA devices that this process uses, open.
pub(crate) struct Devices {
    pub(crate) opened: Vec<RdmaDevice>,
    /// Reasons why other devices were skipped when these were opened.
    left: Vec<String>,
    names: RdmaDevices,
    options: RdmaOptions,
}

impl Devices {
    /// Opens the devices.
    ///
    /// # Errors
    /// When none can be used, or one that was named can't. The error says why each was left.
    pub(crate) fn open(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Arc<Self>, NoRdma> {
        let names = match devices {
            RdmaDevices::Off => return Err(NoRdma("switched off".to_owned())),
            RdmaDevices::Auto => device_names().map_err(|error| NoRdma(error.to_string()))?,
            RdmaDevices::Named(names) => names.clone(),
        };
        let (mut opened, mut left) = (Vec::new(), Vec::new());
        for name in names {
            match RdmaDevice::open(&name, options) {
                Ok((device, reasons)) => {
                    match device.path() {
                        Ok(_) => {
                            tracing::info!(
                                device = name,
                                reasons = reasons.join("; "),
                                "uses this RDMA device"
                            );
                        }
                        Err(why) => tracing::warn!("waits for an RDMA device: {why}"),
                    }
                    opened.push(device);
                }
                Err(why) if matches!(devices, RdmaDevices::Named(_)) => return Err(NoRdma(why)),
                Err(why) => left.push(why),
            }
        }
        if opened.is_empty() {
            left.push("no RDMA device can be used".to_owned());
            return Err(NoRdma(left.join("; ")));
        }
        left.iter().for_each(|why| tracing::warn!("goes on without an RDMA device: {why}"));
        Ok(Arc::new(Self { opened, left, names: devices.clone(), options: options.clone() }))
    }

    /// Reports on the devices, whether they can be used or not. `try_memory` registers memory with one, and returns its bytes.
    ///
    /// # Errors
    /// When the system has no RDMA.
    pub(crate) fn report(
        devices: &RdmaDevices,
        options: &RdmaOptions,
        try_memory: impl Fn(&Self) -> Result<u64, NoRdma>,
    ) -> Result<Vec<DeviceReport>, NoRdma> {
        let names = match devices {
            RdmaDevices::Named(names) => names.clone(),
            RdmaDevices::Auto | RdmaDevices::Off => {
                device_names().map_err(|error| NoRdma(error.to_string()))?
            }
        };
        let report = |device: String| match RdmaDevice::open(&device, options) {
            Ok((opened, reasons)) if opened.path().is_err() => {
                DeviceReport { device, usable: false, reasons }
            }
            Ok((opened, mut reasons)) => {
                let limits = opened.limits;
                reasons.push(format!(
                    "registers up to {} bytes at once, {} queue pairs, {} reads at once in each",
                    limits.region_bytes, limits.queue_pairs, limits.reads_at_once
                ));
                reasons.push("moved 4 KiB each way between two queue pairs of its own".to_owned());
                let (names, options) = (devices.clone(), options.clone());
                let memory = try_memory(&Self { opened: vec![opened], left: Vec::new(), names, options });
                reasons.push(match &memory {
                    Ok(bytes) => format!("registered {bytes} bytes to try it"),
                    Err(why) => why.to_string(),
                });
                DeviceReport { device, usable: memory.is_ok(), reasons }
            }
            Err(why) => DeviceReport { device, usable: false, reasons: vec![why] },
        };
        Ok(names.into_iter().map(report).collect())
    }

    /// Whether [`Self::open`] was called with this.
    pub(crate) fn is_opened_as(&self, devices: &RdmaDevices, options: &RdmaOptions) -> bool {
        (&self.names, &self.options) == (devices, options)
    }

    /// Names of the devices that can be used at present.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.opened.iter().filter(|device| device.path().is_ok()).map(RdmaDevice::name)
    }

    /// Why other devices can't be used at present: one line for each, which names it.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let down = self.opened.iter().filter_map(|device| device.path().err().map(|why| why.to_string()));
        self.left.iter().cloned().chain(down).collect()
    }

    /// Why none of the devices can be used at present.
    pub(crate) fn why_down(&self) -> Option<NoRdma> {
        let reasons: Vec<String> =
            self.opened.iter().filter_map(|device| device.path().err().map(|why| why.to_string())).collect();
        (reasons.len() == self.opened.len()).then(|| NoRdma(reasons.join("; ")))
    }

    /// Reads the path of a device again after an event. Connected queue pairs keep their old path; if it no longer
    /// exists, they fail and are replaced.
    pub(super) fn renew(&self, nth: usize, event: &str) {
        let Some(device) = self.opened.get(nth) else { return };
        let mut found = device.find_path(&self.options);
        let before = device.path();
        if let (Err(_), Ok((path, _))) = (&before, &found)
            && let Err(why) = self_test(&device.domain, *path)
        {
            found = Err(NoRdma(why));
        }
        let now = found.map(|(path, _)| path);
        if now == before {
            return;
        }
        match &now {
            Ok(path) => {
                tracing::info!(device = device.name(), event, address = %path.gid, "goes on over another path");
            }
            Err(why) => tracing::warn!(event, "an RDMA device can't be used at present: {why}"),
        }
        *device.path.lock() = now;
    }

    /// Marks a device as failed for good.
    pub(super) fn fail(&self, nth: usize) {
        let Some(device) = self.opened.get(nth) else { return };
        let why =
            format!("RDMA device {}: it has failed: restart this process once it works again", device.name());
        tracing::error!("{why}");
        *device.path.lock() = Err(NoRdma(why));
    }

    /// Maximum number of queue pairs of a store.
    pub(crate) fn max_pairs(&self) -> usize {
        self.options.pairs
    }

    /// Returns how long a queue pair waits for a silent peer.
    pub(crate) fn timing(&self) -> Timing {
        Timing { timeout: self.options.timeout, ..Timing::default() }
    }

    /// Number of devices.
    pub(crate) fn len(&self) -> usize {
        self.opened.len()
    }
}
