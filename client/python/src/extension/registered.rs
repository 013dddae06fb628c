//! Memory that a client's user has registered.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Registered ranges by their address.
#[derive(Default)]
pub(super) struct Registered(Mutex<BTreeMap<usize, usize>>);

impl Registered {
    /// Adds a range, which overlaps no other one.
    pub(super) fn add(&self, address: usize, length: usize) -> Result<(), String> {
        let what = format!("cannot register {length} bytes at {address:#x}");
        if address == 0 || length == 0 {
            return Err(format!("{what}: give an address and a length that are not zero"));
        }
        let Some(end) = address.checked_add(length) else {
            return Err(format!("{what}: it goes beyond the last address"));
        };
        let mut ranges = self.0.lock();
        match ranges.range(..end).next_back() {
            Some((other, bytes)) if other + bytes > address => Err(format!(
                "{what}: it overlaps {bytes} bytes at {other:#x}, which are registered: unregister them first"
            )),
            _ => {
                ranges.insert(address, length);
                Ok(())
            }
        }
    }

    /// Removes the range that begins at the address.
    pub(super) fn remove(&self, address: usize) -> Result<(), String> {
        let removed = self.0.lock().remove(&address);
        removed.map(drop).ok_or_else(|| format!("no memory is registered at {address:#x}"))
    }
}
