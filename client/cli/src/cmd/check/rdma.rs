//! `mcctl check rdma`: the RDMA devices of this machine, and what keeps it from using them.

use mc_console::{Ended, Global, Output};
use mc_transfer::{DeviceReport, Rdma};
use serde::Serialize;

#[derive(Serialize)]
struct Devices {
    /// Whether at least one device can be used.
    usable: bool,
    /// Why no device was looked at.
    error: Option<String>,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    usable: bool,
    reasons: Vec<String>,
}

pub(super) fn rdma(global: &Global, output: Output) -> Ended {
    let devices = match Rdma::report(&global.rdma_devices, &global.rdma_options) {
        Ok(reports) => Devices {
            usable: reports.iter().any(|report| report.usable),
            error: reports.is_empty().then(|| "this machine has no RDMA device".to_owned()),
            devices: reports.into_iter().map(Device::from).collect(),
        },
        Err(why) => Devices { usable: false, error: Some(why.to_string()), devices: Vec::new() },
    };
    output.result(&devices, || {
        let device = |device: &Device| {
            let used = if device.usable { "can be used" } else { "can't be used" };
            let reasons = device.reasons.iter().map(|reason| format!("  {reason}"));
            [format!("{} {used}", device.name)].into_iter().chain(reasons).collect::<Vec<_>>().join("\n")
        };
        let lines: Vec<String> =
            devices.error.clone().into_iter().chain(devices.devices.iter().map(device)).collect();
        lines.join("\n")
    });
    if devices.usable { Ended::Well } else { Ended::Negative }
}

impl From<DeviceReport> for Device {
    fn from(DeviceReport { device, usable, reasons }: DeviceReport) -> Self {
        Self { name: device, usable, reasons }
    }
}
