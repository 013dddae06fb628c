//! Follows device events: a port comes up or goes down, an address changes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_verbs::{Device, Event};

use super::devices::Devices;

/// Longest wait for an event. After it, the thread checks whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// Follows each device on a thread of its own, until `devices` are gone.
pub(in crate::memory) fn follow(devices: &Arc<Devices>) {
    for (nth, opened) in devices.opened.iter().enumerate() {
        let (devices, device) = (Arc::downgrade(devices), opened.domain.device().clone());
        let name = device.name().to_owned();
        let follow = move || follow_device(&devices, nth, &device);
        if let Err(error) = std::thread::Builder::new().name("mc-rdma-events".to_owned()).spawn(follow) {
            tracing::warn!(device = name, %error, "changes of this RDMA device need a restart");
        }
    }
}

fn follow_device(devices: &Weak<Devices>, nth: usize, device: &Arc<Device>) {
    loop {
        let event = device.next_event(LOOK);
        let Some(devices) = devices.upgrade() else { return };
        match event {
            Ok(Some(Event::Changed(why))) => devices.renew(nth, &why),
            Ok(Some(Event::Fatal)) => {
                // Later events cannot repair it: it stays failed until it is opened again.
                devices.fail(nth);
                return;
            }
            Ok(Some(Event::Other) | None) => {}
            Err(error) => {
                tracing::warn!("{error}: its changes need a restart");
                return;
            }
        }
    }
}
