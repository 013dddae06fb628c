//! Registered memory, and what is under way in it.

use std::collections::{BTreeMap, HashMap};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::sockets::end;
use crate::{Range, RegisterError};

/// Time that transfers get to end by themselves when their memory is unregistered.
const PATIENCE: Duration = Duration::from_secs(1);

/// The memory that an engine has registered.
///
/// The kernel reaches memory during a [`Use`] alone, and the caller may free memory once [`Self::remove`] or [`Self::close`] has
/// returned: both first keep new uses out, under the lock that each use begins under, and then wait for those that began before.
/// They end the connections of uses that take their time, and each call on an ended connection fails at once.
#[derive(Default)]
pub(crate) struct Regions {
    state: Mutex<State>,
    use_ended: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    next: u64,
    by_address: BTreeMap<u64, Region>,
    uses: HashMap<u64, (Vec<u64>, Arc<TcpStream>)>,
}

struct Region {
    /// Grows with each registration.
    id: u64,
    len: u64,
    /// Whether peers may reach it.
    is_shared: bool,
}

/// Memory in use by one transfer, until it is dropped.
pub(crate) struct Use<'a> {
    regions: &'a Regions,
    id: u64,
}

/// Why a use did not begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoUse {
    Closed,
    Unregistered(Range),
}

impl Regions {
    pub(crate) fn add(&self, address: usize, len: usize, is_shared: bool) -> Result<(), RegisterError> {
        let (start, bytes) = (address as u64, len as u64);
        if address == 0 || len == 0 || start.checked_add(bytes).is_none() {
            return Err(RegisterError::NoMemory { address, len });
        }
        let mut state = self.state.lock();
        if let Some((other, region)) = state.by_address.range(..start + bytes).next_back()
            && other + region.len > start
        {
            let (other, other_len) = (*other as usize, region.len as usize);
            return Err(RegisterError::Overlaps { address, len, other, other_len });
        }
        let id = state.next_id();
        state.by_address.insert(start, Region { id, len: bytes, is_shared });
        Ok(())
    }

    /// Removes the memory that begins there. When this returns, no transfer reaches it.
    pub(crate) fn remove(&self, address: usize) -> Result<(), RegisterError> {
        let mut state = self.state.lock();
        let region = state.by_address.remove(&(address as u64)).ok_or(RegisterError::Unknown(address))?;
        let patience = Instant::now() + PATIENCE;
        while state.uses.values().any(|(ids, _)| ids.contains(&region.id)) {
            if self.use_ended.wait_until(&mut state, patience).timed_out() {
                for (ids, socket) in state.uses.values() {
                    if ids.contains(&region.id) {
                        end(socket);
                    }
                }
                self.use_ended.wait(&mut state);
            }
        }
        Ok(())
    }

    /// Keeps new uses out. When this returns, no transfer reaches any memory. The connections have been closed before.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        while !state.uses.is_empty() {
            self.use_ended.wait(&mut state);
        }
    }

    /// Whether a range lies in one piece of registered memory.
    pub(crate) fn hold(&self, range: Range) -> bool {
        self.state.lock().around(&range).is_some()
    }

    /// What peers may reach, in the order of registration.
    pub(crate) fn shared(&self) -> Vec<Range> {
        let state = self.state.lock();
        let mut shared: Vec<_> = state.by_address.iter().filter(|(_, region)| region.is_shared).collect();
        shared.sort_unstable_by_key(|(_, region)| region.id);
        shared.into_iter().map(|(address, region)| Range { address: *address, len: region.len }).collect()
    }

    /// Begins a use by a peer, for which each range has to be in memory that is shared.
    pub(crate) fn use_by_peer(&self, ranges: &[Range], socket: &Arc<TcpStream>) -> Result<Use<'_>, NoUse> {
        let mut state = self.state.lock();
        let mut ids = Vec::new();
        for range in ranges {
            match state.around(range).filter(|region| region.is_shared) {
                Some(region) if ids.last() == Some(&region.id) => {}
                Some(region) => ids.push(region.id),
                None => return Err(NoUse::Unregistered(*range)),
            }
        }
        self.begin(&mut state, ids, socket)
    }

    /// Begins a use by this process, which may use any memory of its own.
    pub(crate) fn use_here(
        &self,
        ranges: impl Iterator<Item = Range>,
        socket: &Arc<TcpStream>,
    ) -> Result<Use<'_>, NoUse> {
        let mut state = self.state.lock();
        let mut ids: Vec<_> = ranges.filter_map(|range| Some(state.around(&range)?.id)).collect();
        ids.dedup();
        self.begin(&mut state, ids, socket)
    }

    fn begin(&self, state: &mut State, ids: Vec<u64>, socket: &Arc<TcpStream>) -> Result<Use<'_>, NoUse> {
        if state.is_closed {
            return Err(NoUse::Closed);
        }
        let id = state.next_id();
        state.uses.insert(id, (ids, socket.clone()));
        Ok(Use { regions: self, id })
    }
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The registered memory that a range lies in.
    fn around(&self, range: &Range) -> Option<&Region> {
        let (start, region) = self.by_address.range(..=range.address).next_back()?;
        let left = region.len.checked_sub(range.address - start)?;
        (range.len <= left).then_some(region)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.regions.state.lock().uses.remove(&self.id);
        self.regions.use_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn socket() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    #[test]
    fn only_what_lies_in_one_shared_range_is_reached_by_peers() {
        let regions = Regions::default();
        regions.add(1_000, 100, true).unwrap();
        regions.add(1_100, 100, false).unwrap();
        let socket = socket();
        let reaches = |address, len| regions.use_by_peer(&[Range { address, len }], &socket).is_ok();
        assert!(reaches(1_000, 100) && reaches(1_050, 50) && reaches(1_100 - 1, 1));
        for (address, len) in
            [(999, 2), (1_050, 51), (1_099, 2), (1_100, 1), (2_000, 1), (0, 1), (1_001, u64::MAX)]
        {
            assert!(!reaches(address, len), "{len} bytes at {address}");
        }
        assert_eq!(regions.shared(), [Range { address: 1_000, len: 100 }]);
    }

    #[test]
    fn ranges_do_not_overlap() {
        let regions = Regions::default();
        regions.add(1_000, 100, true).unwrap();
        for (address, len) in [(1_000, 100), (999, 2), (1_099, 1), (900, 1_000), (1_050, 10)] {
            assert!(
                matches!(regions.add(address, len, true), Err(RegisterError::Overlaps { .. })),
                "{address}"
            );
        }
        regions.add(900, 100, true).unwrap();
        regions.add(1_100, 1, true).unwrap();
        assert!(matches!(regions.add(0, 1, true), Err(RegisterError::NoMemory { .. })));
        assert!(matches!(regions.add(1, 0, true), Err(RegisterError::NoMemory { .. })));
        assert!(matches!(regions.add(usize::MAX, 2, true), Err(RegisterError::NoMemory { .. })));
        assert_eq!(regions.remove(1_001), Err(RegisterError::Unknown(1_001)));
    }

    #[test]
    fn nothing_is_in_use_when_memory_is_unregistered() {
        let regions = Regions::default();
        regions.add(1_000, 100, true).unwrap();
        let (ended, socket) = (Mutex::new(false), socket());
        let begun = regions.use_by_peer(&[Range { address: 1_000, len: 1 }], &socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Ends as a transfer does: when its connection ends.
                let _ = std::io::Read::read(&mut &*socket, &mut [0]);
                *ended.lock() = true;
                drop(begun);
            });
            regions.remove(1_000).unwrap();
            assert!(*ended.lock());
        });
        assert_eq!(
            regions.use_by_peer(&[Range { address: 1_000, len: 1 }], &socket).err(),
            Some(NoUse::Unregistered(Range { address: 1_000, len: 1 }))
        );
    }
}
