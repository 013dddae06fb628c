//! Registered memory, and the transfers that use it.

use std::collections::{BTreeMap, HashMap};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::sockets::end;
use crate::{Range, RegisterError};

/// Time that requests get to end by themselves when their memory is unregistered.
const PATIENCE: Duration = Duration::from_secs(1);

/// The memory that an engine has registered.
///
/// The kernel reaches memory only while a [`Use`] is [`Active`], and the caller may free memory once [`Self::remove`] or
/// [`Self::close`] has returned. Both end the uses of the memory under the lock under which each becomes active, so that none does
/// any more, also of a transfer that has not sent its next request yet. Then they wait for those that are. They shut down the connections of
/// requests that take their time, and a call on such a connection fails as soon as it has taken what the kernel had received.
#[derive(Default)]
pub(crate) struct Regions {
    state: Mutex<State>,
    became_inactive: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    next: u64,
    by_address: BTreeMap<u64, Region>,
    uses: HashMap<u64, Uses>,
}

struct Region {
    /// Identifies the registration; each gets a higher number than the one before.
    id: u64,
    len: u64,
    /// Whether peers may reach it.
    is_shared: bool,
}

struct Uses {
    regions: Vec<u64>,
    has_ended: bool,
    /// The connection, while it is active.
    active: Option<Arc<TcpStream>>,
}

/// The use of memory by one transfer or request, until it is dropped.
pub(crate) struct Use {
    regions: Arc<Regions>,
    id: u64,
}

/// A use for which the kernel reaches memory, until it is dropped.
pub(crate) struct Active<'a>(&'a Use);

/// Reason why a use did not begin, or was ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoUse {
    /// The engine was closed, or the memory unregistered.
    Ended,
    /// The range is not in memory that peers may reach.
    Unregistered(Range),
}

impl Regions {
    pub(crate) fn add(&self, address: usize, len: usize, is_shared: bool) -> Result<(), RegisterError> {
        let (start, bytes) = (address as u64, len as u64);
        if address == 0 || len == 0 || start.checked_add(bytes).is_none() {
            return Err(RegisterError::NoMemory { address, len });
        }
        let mut state = self.state.lock();
        if let Some((other, region)) = state.overlapping(start, bytes).next() {
            let (other, other_len) = (other as usize, region.len as usize);
            return Err(RegisterError::Overlaps { address, len, other, other_len });
        }
        let id = state.next_id();
        state.by_address.insert(start, Region { id, len: bytes, is_shared });
        Ok(())
    }

    /// Removes the memory that begins there. When this returns, no use that began when it was registered reaches it.
    pub(crate) fn remove(&self, address: usize) -> Result<(), RegisterError> {
        let mut state = self.state.lock();
        let region = state.by_address.remove(&(address as u64)).ok_or(RegisterError::Unknown(address))?.id;
        for using in state.uses.values_mut().filter(|using| using.regions.contains(&region)) {
            using.has_ended = true;
        }
        let is_active = |state: &mut State| state.active().any(|(regions, _)| regions.contains(&region));
        self.became_inactive.wait_while_until(&mut state, is_active, Instant::now() + PATIENCE);
        state.active().filter(|(regions, _)| regions.contains(&region)).for_each(|(_, socket)| end(socket));
        self.became_inactive.wait_while(&mut state, is_active);
        Ok(())
    }

    /// Ends all uses. When this returns, no transfer reaches any memory.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.uses.values_mut().for_each(|using| using.has_ended = true);
        state.active().for_each(|(_, socket)| end(socket));
        self.became_inactive.wait_while(&mut state, |state| state.active().next().is_some());
    }

    /// Whether a range lies in one piece of registered memory.
    pub(crate) fn hold(&self, range: Range) -> bool {
        self.state.lock().around(&range).is_some()
    }

    /// Returns the range that was registered first, of those that peers may reach.
    pub(crate) fn first(&self) -> Option<Range> {
        let state = self.state.lock();
        let shared = state.by_address.iter().filter(|(_, region)| region.is_shared);
        let (address, region) = shared.min_by_key(|(_, region)| region.id)?;
        Some(Range { address: *address, len: region.len })
    }

    /// Begins a use by a peer, for which each range has to be in memory that it may reach.
    pub(crate) fn use_by_peer(self: &Arc<Self>, ranges: &[Range]) -> Result<Use, NoUse> {
        let mut state = self.state.lock();
        let mut regions = Vec::new();
        for range in ranges {
            match state.around(range).filter(|region| region.is_shared) {
                Some(region) if regions.last() == Some(&region.id) => {}
                Some(region) => regions.push(region.id),
                None => return Err(NoUse::Unregistered(*range)),
            }
        }
        self.begin(&mut state, regions)
    }

    /// Begins a use by this process, which may use any memory of its own.
    pub(crate) fn use_here(self: &Arc<Self>, ranges: impl Iterator<Item = Range>) -> Result<Use, NoUse> {
        let mut state = self.state.lock();
        let mut regions: Vec<_> = ranges
            .flat_map(|range| state.overlapping(range.address, range.len).map(|(_, region)| region.id))
            .collect();
        regions.sort_unstable();
        regions.dedup();
        self.begin(&mut state, regions)
    }

    fn begin(self: &Arc<Self>, state: &mut State, regions: Vec<u64>) -> Result<Use, NoUse> {
        if state.is_closed {
            return Err(NoUse::Ended);
        }
        let id = state.next_id();
        state.uses.insert(id, Uses { regions, has_ended: false, active: None });
        Ok(Use { regions: self.clone(), id })
    }
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the registered memory that contains a range.
    fn around(&self, range: &Range) -> Option<&Region> {
        let (start, region) = self.by_address.range(..=range.address).next_back()?;
        let left = region.len.checked_sub(range.address - start)?;
        (range.len <= left).then_some(region)
    }

    /// The registered memory that has bytes of a range, the last first.
    fn overlapping(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, &Region)> {
        let before_end = self.by_address.range(..start.saturating_add(len)).rev();
        before_end
            .map(|(other, region)| (*other, region))
            .take_while(move |(other, region)| other + region.len > start)
    }

    /// The regions and the connection of each active use.
    fn active(&self) -> impl Iterator<Item = (&[u64], &TcpStream)> {
        self.uses.values().filter_map(|using| Some((&*using.regions, &**using.active.as_ref()?)))
    }
}

impl Use {
    /// Lets the kernel reach the memory, for a request on the connection.
    pub(crate) fn on(&self, socket: &Arc<TcpStream>) -> Result<Active<'_>, NoUse> {
        let mut state = self.regions.state.lock();
        match state.uses.get_mut(&self.id) {
            Some(using) if !using.has_ended => using.active = Some(socket.clone()),
            _ => return Err(NoUse::Ended),
        }
        Ok(Active(self))
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let Use { regions, id } = self.0;
        if let Some(using) = regions.state.lock().uses.get_mut(id) {
            using.active = None;
        }
        regions.became_inactive.notify_all();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.regions.state.lock().uses.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    fn socket() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    #[test]
    fn only_what_lies_in_one_shared_range_is_reached_by_peers() {
        let regions = Arc::new(Regions::default());
        regions.add(1_000, 100, true).unwrap();
        regions.add(1_100, 100, false).unwrap();
        let reaches = |address, len| regions.use_by_peer(&[Range { address, len }]).is_ok();
        assert!(reaches(1_000, 100) && reaches(1_050, 50) && reaches(1_100 - 1, 1));
        let unreachable =
            [(999, 2), (1_050, 51), (1_099, 2), (1_100, 1), (2_000, 1), (0, 1), (1_001, u64::MAX)];
        for (address, len) in unreachable {
            assert!(!reaches(address, len), "{len} bytes at {address}");
        }
        assert_eq!(regions.first(), Some(Range { address: 1_000, len: 100 }));
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
    fn nothing_is_active_when_memory_is_unregistered() {
        let regions = Arc::new(Regions::default());
        regions.add(1_000, 100, true).unwrap();
        let range = Range { address: 1_000, len: 1 };
        let (ended, sockets) = (Mutex::new(0), [socket(), socket(), socket(), socket()]);
        let uses = sockets.each_ref().map(|_| regions.use_by_peer(&[range]).unwrap());
        let active = std::array::from_fn::<_, 4, _>(|n| uses[n].on(&sockets[n]).unwrap());
        std::thread::scope(|scope| {
            for (active, mut socket) in active.into_iter().zip(sockets.iter().map(|socket| &**socket)) {
                let ended = &ended;
                scope.spawn(move || {
                    // Ends as a transfer does: when its connection ends.
                    let _ = socket.read(&mut [0]);
                    *ended.lock() += 1;
                    drop(active);
                });
            }
            regions.remove(1_000).unwrap();
            assert_eq!(*ended.lock(), 4);
        });
        assert!(uses.iter().all(|using| using.on(&sockets[0]).is_err()), "none goes on");
        assert_eq!(regions.use_by_peer(&[range]).err(), Some(NoUse::Unregistered(range)));
    }

    #[test]
    fn a_use_of_several_pieces_ends_with_each() {
        let regions = Arc::new(Regions::default());
        let socket = socket();
        for unregistered in [1_000, 1_100] {
            regions.add(1_000, 100, true).unwrap();
            regions.add(1_100, 100, true).unwrap();
            // Before it is active for the first time, as of a submitted transfer.
            let across = regions.use_here([Range { address: 1_050, len: 100 }].into_iter()).unwrap();
            let elsewhere = regions.use_here([Range { address: 2_000, len: 100 }].into_iter()).unwrap();
            regions.remove(unregistered).unwrap();
            assert!(across.on(&socket).is_err() && elsewhere.on(&socket).is_ok());
            regions.remove(2_100 - unregistered).unwrap();
        }
        let later = regions.use_here(std::iter::empty()).unwrap();
        regions.close();
        assert!(later.on(&socket).is_err() && regions.use_here(std::iter::empty()).is_err());
    }
}
