use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mc_verbs::{Access, Choice, Device, Domain, Limits, Path, Region, Wanted, choose, self_test};
use parking_lot::Mutex;

use super::{NoRdma, RdmaOptions};
use crate::memory::mapping::{Mapping, Protection, memory_file};

/// Bytes of zeros that each device has registered, for probes of clients.
pub(crate) const BLANK_LEN: u64 = 4 << 10;

/// An open device, with the port and address that were chosen.
pub(crate) struct RdmaDevice {
    pub(crate) domain: Arc<Domain>,
    /// The present path, or why there is none.
    pub(super) path: Mutex<Result<Path, NoRdma>>,
    pub(crate) limits: Limits,
    /// Registered zeros, which the store sends to answer probes of clients.
    pub(crate) blank: Region,
    /// Number of completions of all queue pairs of the store here.
    pub(crate) completed: AtomicU64,
}

impl RdmaDevice {
    pub(super) fn open(name: &str, options: &RdmaOptions) -> Result<(Self, Vec<String>), String> {
        let device = Device::open(name).map_err(|error| error.to_string())?;
        let limits = device.limits().map_err(|error| error.to_string())?;
        let domain = Domain::new(device).map_err(|error| error.to_string())?;
        let blank =
            blank(&domain).map_err(|why| format!("RDMA device {name}: no memory for probes: {why}"))?;
        let opened = Self {
            domain,
            blank,
            path: Mutex::new(Err(NoRdma(String::new()))),
            limits,
            completed: AtomicU64::new(0),
        };
        match opened.find_path(options) {
            Ok((path, reasons)) => {
                self_test(&opened.domain, path)?;
                *opened.path.lock() = Ok(path);
                Ok((opened, reasons))
            }
            Err(why) => {
                let reasons = vec![why.to_string()];
                *opened.path.lock() = Err(why);
                Ok((opened, reasons))
            }
        }
    }

    /// The present path; an error says why there is none.
    pub(crate) fn path(&self) -> Result<Path, NoRdma> {
        self.path.lock().clone()
    }

    /// Chooses a port and an address from what the device reports, and says why.
    pub(super) fn find_path(&self, options: &RdmaOptions) -> Result<(Path, Vec<String>), NoRdma> {
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

    pub(crate) fn name(&self) -> &str {
        self.domain.device().name()
    }
}

/// Registers zeros, for requests of this process only.
fn blank(domain: &Arc<Domain>) -> Result<Region, String> {
    let file = memory_file("mc-rdma-probe", BLANK_LEN).map_err(|(step, error)| format!("{step}: {error}"))?;
    let memory = Mapping::new(&file, BLANK_LEN, Protection::Write).map_err(|error| error.to_string())?;
    Region::new(domain, Arc::new(memory), Access::Local).map_err(|error| error.to_string())
}
