//! Who gets a place on a port: decisions over numbers, no I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// Number of connections that a port may have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum number of connections in total.
    pub most: usize,
    /// Part of `most` that only connections with a reason ([`Place::vouch`]) may keep.
    pub kept: usize,
}

/// Connections of a port at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Have not said enough yet to be told from a flood.
    pub(crate) silent: usize,
    /// Have spoken, found only kept places, and have moments to be vouched for.
    pub(crate) guests: usize,
    /// Have spoken and may stay.
    pub(crate) settled: usize,
    /// May stay, and take a kept place if there is no other.
    pub(crate) vouched: usize,
}

impl Count {
    fn all(self) -> usize {
        self.silent + self.guests + self.settled + self.vouched
    }

    /// Returns how many silent connections to close so that one more fits; `None` if it does not fit in any case.
    pub(crate) fn to_close_for_one_more(self, room: Room) -> Option<usize> {
        let surplus = (self.all() + 1).saturating_sub(room.most);
        (surplus <= self.silent).then_some(surplus)
    }

    /// Standing of a connection that has just spoken and was silent before.
    fn standing_of_next(self, room: Room) -> Standing {
        let free = room.most.saturating_sub(room.kept);
        if self.settled < free { Standing::Settled } else { Standing::Guest }
    }

    fn of(&mut self, standing: Standing) -> &mut usize {
        match standing {
            Standing::Guest | Standing::Dismissed => &mut self.guests,
            Standing::Settled => &mut self.settled,
            Standing::Vouched => &mut self.vouched,
        }
    }
}

/// Right of a connection to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Guest,
    /// A guest that was refused, and is about to be closed.
    Dismissed,
    Settled,
    Vouched,
}

impl Standing {
    const ALL: [Self; 4] = [Self::Guest, Self::Dismissed, Self::Settled, Self::Vouched];
}

/// Place of one connection on its port; given back on drop.
#[derive(Debug)]
pub struct Place {
    port: Arc<Mutex<Count>>,
    /// Index in [`Standing::ALL`]; changes only under the lock of `port`.
    standing: AtomicU8,
}

impl Place {
    /// Turns a silent connection, which `port` counts, into one that has spoken.
    pub(crate) fn of_silent(port: &Arc<Mutex<Count>>, room: Room) -> Self {
        let mut count = port.lock();
        count.silent -= 1;
        let standing = count.standing_of_next(room);
        *count.of(standing) += 1;
        Self { port: port.clone(), standing: AtomicU8::new(standing as u8) }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing::ALL[usize::from(self.standing.load(Ordering::Acquire))]
    }

    fn change(&self, to: impl FnOnce(Standing) -> Standing) {
        let mut count = self.port.lock();
        let (from, to) = (self.standing(), to(self.standing()));
        *count.of(from) -= 1;
        *count.of(to) += 1;
        self.standing.store(to as u8, Ordering::Release);
    }

    /// Vouches for the connection: it may stay in a kept place, until its peer closes it.
    pub fn vouch(&self) {
        if self.standing() != Standing::Vouched {
            self.change(|_| Standing::Vouched);
        }
    }

    /// Whether only kept places were free, so that the connection is closed unless it is vouched for.
    pub fn is_guest(&self) -> bool {
        matches!(self.standing(), Standing::Guest | Standing::Dismissed)
    }

    /// Gives up the place of a guest: its connection is closed after its peer had a moment to read an answer.
    pub fn dismiss(&self) {
        self.change(|from| if from == Standing::Guest { Standing::Dismissed } else { from });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let standing = self.standing();
        *self.port.lock().of(standing) -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { most: 10, kept: 3 };

    #[test]
    fn a_newcomer_takes_the_place_of_a_silent_one_and_of_no_other() {
        let full = Count { silent: 2, guests: 1, settled: 6, vouched: 1 };
        assert_eq!(Count { silent: 1, ..full }.to_close_for_one_more(ROOM), Some(0));
        assert_eq!(full.to_close_for_one_more(ROOM), Some(1));
        assert_eq!(Count { silent: 0, settled: 8, ..full }.to_close_for_one_more(ROOM), None);
        let smaller = Room { most: 9, kept: 3 };
        assert_eq!(full.to_close_for_one_more(smaller), Some(2), "the limit was lowered meanwhile");
        assert_eq!(full.to_close_for_one_more(Room { most: 8, kept: 3 }), None);
    }

    #[test]
    fn kept_places_are_for_those_with_a_reason() {
        let port = Arc::new(Mutex::new(Count { silent: 10, ..Count::default() }));
        let mut places: Vec<_> = (0..10).map(|_| Place::of_silent(&port, ROOM)).collect();
        assert_eq!(*port.lock(), Count { silent: 0, guests: 3, settled: 7, vouched: 0 });
        assert!(!places[6].is_guest() && places[7].is_guest());

        places[7].vouch();
        places[7].dismiss();
        places[8].dismiss();
        places[0].vouch();
        assert_eq!(*port.lock(), Count { silent: 0, guests: 2, settled: 6, vouched: 2 });
        assert!(!places[7].is_guest() && places[8].is_guest());
        places.truncate(1);
        assert_eq!(*port.lock(), Count { vouched: 1, ..Count::default() });
    }
}
