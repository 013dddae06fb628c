use std::io;

/// Why a device can't be used.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library can't be opened, or lacks a function.
    #[error(
        "RDMA needs libibverbs of rdma-core 35 or newer: {0}: install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or \
         libibverbs (Fedora, RHEL)"
    )]
    NoLibrary(String),
    /// The system offers no RDMA devices.
    #[error("this machine offers no RDMA devices: {0}")]
    NoDevices(io::Error),
    /// No device has that name.
    #[error("no RDMA device is called {name}: there are {there}")]
    NoSuchDevice {
        /// The name.
        name: String,
        /// Names of the devices that exist.
        there: String,
    },
    /// A call of the library failed.
    #[error("RDMA device {device}: cannot {step}: {source}")]
    Step {
        /// Name of the device.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
