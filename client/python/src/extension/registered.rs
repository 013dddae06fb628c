//! Memory that clients' users have registered.
#![allow(unsafe_code)]

use std::collections::btree_map::{BTreeMap, Entry};
use std::time::{Duration, Instant};

use mc_client::{HostMemory, RegisterError};
use parking_lot::Mutex;

/// Time to wait for the end of the use of memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for all memory of a client that ends.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(1);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(2);

/// Memory that transports of this process reach, shared by all clients.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) host: HostMemory,
    /// Number of clients that have registered a range, by address and length.
    users: Mutex<BTreeMap<(usize, usize), usize>>,
}

/// Ranges that one client has registered, by their address.
#[derive(Default)]
pub(super) struct Registered(Mutex<BTreeMap<usize, Range>>);

#[derive(Clone, Copy)]
struct Range {
    len: usize,
    /// Whether transports reach it. Another client may have registered an overlapping range, and then its bytes are copied.
    is_reached: bool,
}

impl Reached {
    /// # Safety
    /// As of [`HostMemory::register`].
    unsafe fn add(&self, address: usize, len: usize) -> bool {
        let mut users = self.users.lock();
        match users.entry((address, len)) {
            Entry::Occupied(mut user) => *user.get_mut() += 1,
            Entry::Vacant(user) => {
                // SAFETY: as the caller promises.
                if let Err(why) = unsafe { self.host.register(address as *mut u8, len) } {
                    tracing::info!(len, "the bytes of registered memory are copied: {why}");
                    return false;
                }
                user.insert(1);
            }
        }
        true
    }

    /// Removes a range of a client. It waits until no device has access to the memory and no registration of it is under way.
    fn remove(&self, address: usize, len: usize, until: Instant) -> Result<(), String> {
        {
            let mut users = self.users.lock();
            let Entry::Occupied(mut user) = users.entry((address, len)) else { return Ok(()) };
            if *user.get() > 1 {
                *user.get_mut() -= 1;
                return Ok(());
            }
            user.remove();
        }
        // Outside the lock, which other clients take. A client that registers the range meanwhile has its bytes copied.
        loop {
            match self.host.unregister(address as *const u8) {
                Ok(()) => return Ok(()),
                Err(RegisterError::InUse { .. }) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(why) => {
                    // It can be tried again.
                    self.users.lock().insert((address, len), 1);
                    return Err(why.to_string());
                }
            }
        }
    }
}

impl Registered {
    /// Adds a range, which overlaps no other one of the client.
    ///
    /// # Safety
    /// As of [`HostMemory::register`].
    pub(super) unsafe fn add(&self, reached: &Reached, address: usize, len: usize) -> Result<(), String> {
        let what = format!("cannot register {len} bytes at {address:#x}");
        if address == 0 || len == 0 {
            return Err(format!("{what}: give an address and a length that are not zero"));
        }
        let Some(end) = address.checked_add(len) else {
            return Err(format!("{what}: it goes beyond the last address"));
        };
        let mut ranges = self.0.lock();
        if let Some((other, range)) = ranges.range(..end).next_back()
            && other + range.len > address
        {
            let bytes = range.len;
            return Err(format!(
                "{what}: it overlaps {bytes} bytes at {other:#x}, which are registered: unregister them first"
            ));
        }
        // SAFETY: as the caller promises.
        let is_reached = unsafe { reached.add(address, len) };
        ranges.insert(address, Range { len, is_reached });
        Ok(())
    }

    /// Removes the range that begins at the address.
    pub(super) fn remove(&self, reached: &Reached, address: usize) -> Result<(), String> {
        let mut ranges = self.0.lock();
        let Some(range) = ranges.get(&address).copied() else {
            return Err(format!("no memory is registered at {address:#x}"));
        };
        if range.is_reached {
            reached.remove(address, range.len, Instant::now() + PATIENCE)?;
        }
        ranges.remove(&address);
        Ok(())
    }

    /// Removes all ranges of a client that ends.
    pub(super) fn remove_all(&self, reached: &Reached) {
        let until = Instant::now() + PATIENCE_AT_THE_END;
        for (address, range) in std::mem::take(&mut *self.0.lock()) {
            if range.is_reached
                && let Err(why) = reached.remove(address, range.len, until)
            {
                tracing::warn!("memory stays registered: {why}");
            }
        }
    }
}
