use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mc_verbs::{
    Access, Address, Choice, Device, Domain, Limits, LinkLayer, Path, QueuePair, Region, Timing, Wanted,
    choose, device_names, self_test,
};
use parking_lot::Mutex;

use super::buffers::Pool;
use super::events;
use super::{DeviceReport, NoRdma, RdmaDevices, RdmaOptions, Staging};
use crate::memory::{Mapping, Protection, memory_file};
use crate::wire::{End, PROBE_LEN};

/// The RDMA devices that this process uses, open.
pub struct Rdma {
    pub(super) ways: Vec<Way>,
    /// Why other devices were left when these were opened.
    left: Vec<String>,
    /// Memory of this process's transfers as a client.
    pub(super) buffers: Arc<Pool>,
    devices: RdmaDevices,
    options: RdmaOptions,
}

/// A way into the network: a device, with the port and address that were chosen.
pub(super) struct Way {
    pub(super) domain: Arc<Domain>,
    /// The present path, or why there is none.
    path: Mutex<Result<Path, NoRdma>>,
    pub(super) limits: Limits,
    /// Zeros, for probes of clients.
    pub(super) blank: Region,
    /// Number of completions of all queue pairs of the store here.
    pub(super) completed: AtomicU64,
}

impl Rdma {
    /// Opens the devices.
    ///
    /// # Errors
    /// When none can be used, or one that was named can't. The error says why each was left.
    pub fn open(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Arc<Self>, NoRdma> {
        let names = match devices {
            RdmaDevices::Off => return Err(NoRdma("switched off".to_owned())),
            RdmaDevices::Auto => device_names().map_err(|error| NoRdma(error.to_string()))?,
            RdmaDevices::Named(names) => names.clone(),
        };
        let (mut ways, mut left) = (Vec::new(), Vec::new());
        for name in names {
            match Way::open(&name, options) {
                Ok((way, reasons)) => {
                    match way.path() {
                        Ok(_) => {
                            tracing::info!(
                                device = name,
                                reasons = reasons.join("; "),
                                "uses this RDMA device"
                            );
                        }
                        Err(why) => tracing::warn!("waits for an RDMA device: {why}"),
                    }
                    ways.push(way);
                }
                Err(why) if matches!(devices, RdmaDevices::Named(_)) => return Err(NoRdma(why)),
                Err(why) => left.push(why),
            }
        }
        if ways.is_empty() {
            left.push("no RDMA device can be used".to_owned());
            return Err(NoRdma(left.join("; ")));
        }
        left.iter().for_each(|why| tracing::warn!("goes on without an RDMA device: {why}"));
        let (devices, options) = (devices.clone(), options.clone());
        let opened = Arc::new(Self { ways, left, buffers: Pool::new(), devices, options });
        events::follow(&opened);
        Ok(opened)
    }

    /// Reports on the devices, whether they can be used or not.
    ///
    /// # Errors
    /// When the system has no RDMA.
    pub fn report(devices: &RdmaDevices, options: &RdmaOptions) -> Result<Vec<DeviceReport>, NoRdma> {
        let names = match devices {
            RdmaDevices::Named(names) => names.clone(),
            RdmaDevices::Auto | RdmaDevices::Off => {
                device_names().map_err(|error| NoRdma(error.to_string()))?
            }
        };
        let report = |device: String| match Way::open(&device, options) {
            Ok((way, reasons)) if way.path().is_err() => DeviceReport { device, usable: false, reasons },
            Ok((way, mut reasons)) => {
                let limits = way.limits;
                reasons.push(format!(
                    "registers up to {} bytes at once, {} queue pairs, {} reads at once in each",
                    limits.region_bytes, limits.queue_pairs, limits.reads_at_once
                ));
                reasons.push("moved 4 KiB each way between two queue pairs of its own".to_owned());
                let (ways, left, buffers) = (vec![way], Vec::new(), Pool::new());
                let (devices, options) = (devices.clone(), options.clone());
                let memory = Staging::try_one(&Self { ways, left, buffers, devices, options });
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
        (&self.devices, &self.options) == (devices, options)
    }

    /// Names of the devices that can be used at present.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ways.iter().filter(|way| way.path().is_ok()).map(Way::name)
    }

    /// Why other devices can't be used at present: one line for each, which names it.
    #[must_use]
    pub fn lacks(&self) -> Vec<String> {
        let down = self.ways.iter().filter_map(|way| way.path().err().map(|why| why.to_string()));
        self.left.iter().cloned().chain(down).collect()
    }

    /// Why this process can't register memory for its transfers as a client at present.
    pub(crate) fn why_not(&self) -> Option<NoRdma> {
        self.buffers.why_not().or_else(|| self.why_down())
    }

    /// Why none of the devices can be used at present.
    #[must_use]
    pub fn why_down(&self) -> Option<NoRdma> {
        let reasons: Vec<String> =
            self.ways.iter().filter_map(|way| way.path().err().map(|why| why.to_string())).collect();
        (reasons.len() == self.ways.len()).then(|| NoRdma(reasons.join("; ")))
    }

    /// Reads the path of a device again, after an event. Queue pairs that are connected keep theirs; if it is gone, they fail, and
    /// others are made.
    pub(super) fn renew(&self, nth: usize, event: &str) {
        let Some(way) = self.ways.get(nth) else { return };
        let mut found = way.find_path(&self.options);
        let before = way.path();
        if let (Err(_), Ok((path, _))) = (&before, &found)
            && let Err(why) = self_test(&way.domain, *path)
        {
            found = Err(NoRdma(why));
        }
        let now = found.map(|(path, _)| path);
        if now == before {
            return;
        }
        match &now {
            Ok(path) => {
                tracing::info!(device = way.name(), event, address = %path.gid, "goes on over another path");
            }
            Err(why) => tracing::warn!(event, "an RDMA device can't be used at present: {why}"),
        }
        *way.path.lock() = now;
    }

    /// Gives a device up.
    pub(super) fn fail(&self, nth: usize) {
        let Some(way) = self.ways.get(nth) else { return };
        let why =
            format!("RDMA device {}: it has failed: restart this process once it works again", way.name());
        tracing::error!("{why}");
        *way.path.lock() = Err(NoRdma(why));
    }

    /// Maximum number of queue pairs of a store.
    #[must_use]
    pub fn max_pairs(&self) -> usize {
        self.options.pairs
    }

    /// How long a queue pair waits for a silent peer.
    pub(super) fn timing(&self) -> Timing {
        Timing { timeout: self.options.timeout, ..Timing::default() }
    }

    /// Number of devices.
    pub(crate) fn len(&self) -> usize {
        self.ways.len()
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

impl Way {
    fn open(name: &str, options: &RdmaOptions) -> Result<(Self, Vec<String>), String> {
        let device = Device::open(name).map_err(|error| error.to_string())?;
        let limits = device.limits().map_err(|error| error.to_string())?;
        let domain = Domain::new(device).map_err(|error| error.to_string())?;
        let blank =
            blank(&domain).map_err(|why| format!("RDMA device {name}: no memory for probes: {why}"))?;
        let way = Self {
            domain,
            blank,
            path: Mutex::new(Err(NoRdma(String::new()))),
            limits,
            completed: AtomicU64::new(0),
        };
        match way.find_path(options) {
            Ok((path, reasons)) => {
                self_test(&way.domain, path)?;
                *way.path.lock() = Ok(path);
                Ok((way, reasons))
            }
            Err(why) => {
                let reasons = vec![why.to_string()];
                *way.path.lock() = Err(why);
                Ok((way, reasons))
            }
        }
    }

    /// The present path; an error says why there is none.
    pub(super) fn path(&self) -> Result<Path, NoRdma> {
        self.path.lock().clone()
    }

    /// Chooses a port and an address from what the device reports, and says why.
    fn find_path(&self, options: &RdmaOptions) -> Result<(Path, Vec<String>), NoRdma> {
        self.choose_path(options).map_err(NoRdma)
    }

    fn choose_path(&self, options: &RdmaOptions) -> Result<(Path, Vec<String>), String> {
        let (device, name) = (self.domain.device(), self.name());
        let wanted = Wanted { port: options.port, gid_index: options.gid_index };
        let Choice { path, reasons } = choose(&device.ports().map_err(|error| error.to_string())?, wanted);
        let Some(mut path) = path else {
            return Err(format!("RDMA device {name}: {}", reasons.join("; ")));
        };
        path.marks.traffic_class = options.traffic_class;
        path.marks.service_level = options.service_level;
        if let Some(pkey) = options.pkey {
            let index = device.pkey_index(path.port, pkey).map_err(|error| error.to_string())?;
            let missing =
                || format!("RDMA device {name}: port {} has no partition key {pkey:#06x}", path.port);
            path.marks.pkey_index = index.ok_or_else(missing)?;
        }
        Ok((path, reasons))
    }

    pub(super) fn name(&self) -> &str {
        self.domain.device().name()
    }

    /// The end of a queue pair on this device, as its peer hears of it. `way` is a number that [`End::way`] explains.
    pub(super) fn end(&self, pair: &QueuePair, reads_at_once: u8, way: u16) -> End {
        let link = link(pair.path());
        let Address { pair, first_packet, lid, gid, mtu } = pair.address();
        End { link, reads_at_once, way, pair, first_packet, mtu, lid, gid }
    }
}

/// Registers zeros, for requests of this process only.
fn blank(domain: &Arc<Domain>) -> Result<Region, String> {
    let file = memory_file("mc-rdma-probe", PROBE_LEN).map_err(|(step, error)| format!("{step}: {error}"))?;
    let memory = Mapping::new(&file, PROBE_LEN, Protection::Write).map_err(|error| error.to_string())?;
    Region::new(domain, Arc::new(memory), Access::Local).map_err(|error| error.to_string())
}

/// Number of the kind of link of a path in an end.
pub(super) fn link(path: Path) -> u8 {
    match path.link {
        LinkLayer::InfiniBand => 0,
        LinkLayer::Ethernet => 1,
    }
}

impl From<&End> for Address {
    fn from(end: &End) -> Self {
        let End { pair, first_packet, mtu, lid, gid, .. } = *end;
        Self { pair, first_packet, lid, gid, mtu }
    }
}
