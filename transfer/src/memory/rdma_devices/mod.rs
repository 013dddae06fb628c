//! The RDMA devices of this process: which ones, how they are used, and what becomes of them while they are open.

mod device;
mod devices;
mod events;
mod names;
mod options;

pub(crate) use self::device::{BLANK_LEN, RdmaDevice};
pub(crate) use self::devices::Devices;
pub(in crate::memory) use self::events::follow;
pub use self::names::{ParseRdmaDevicesError, RdmaDevices};
pub use self::options::{ParseRdmaOptionsError, RdmaOptions};

/// Why RDMA can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoRdma(pub(crate) String);

impl NoRdma {
    /// Creates the error of a process that has another reason.
    #[must_use]
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// A device, and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Name of the device.
    pub device: String,
    /// Whether it can be used.
    pub usable: bool,
    /// Reasons: one line for each port, address and limit.
    pub reasons: Vec<String>,
}
