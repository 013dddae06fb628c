use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use mc_types::{ClientId, StoreId};
use parking_lot::Mutex;

/// How long a caller is listed after its latest put or heartbeat.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(60);

/// Maximum number of callers that are listed.
const MOST: usize = 256;

/// Least time between two looks for callers that are silent, when there is no room for another one.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A client that puts, or a store, whose newest protocol version is older than this master's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutdatedCaller {
    /// The client; of a store, its store id.
    pub(crate) client: ClientId,
    /// Where it called from, if known.
    pub(crate) host: Option<IpAddr>,
    /// The newest protocol version that it speaks.
    pub(crate) version_max: u32,
    /// The clock's reading at its latest put or heartbeat.
    pub(crate) at: Duration,
}

impl OutdatedCaller {
    /// The id that the caller has if it is a store.
    pub(crate) fn as_store(&self) -> Option<StoreId> {
        u64::try_from(self.client.0).ok().map(StoreId)
    }
}

/// The outdated callers of this term.
#[derive(Debug, Default)]
pub(crate) struct OutdatedCallers(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    callers: HashMap<ClientId, OutdatedCaller>,
    /// When the list was last looked through for room.
    swept: Duration,
}

impl OutdatedCallers {
    /// Lists a caller, if there is room. A store takes the place of a client: there are fewer, and they come first in an upgrade.
    pub(crate) fn note(&self, caller: OutdatedCaller) {
        let Listed { callers, swept } = &mut *self.0.lock();
        if callers.len() >= MOST && !callers.contains_key(&caller.client) {
            if caller.at.saturating_sub(*swept) >= SWEEP_INTERVAL {
                callers.retain(|_, known| is_heard(known, caller.at));
                *swept = caller.at;
            }
            if callers.len() >= MOST {
                let client =
                    callers.values().find(|known| known.as_store().is_none()).map(|known| known.client);
                match client.filter(|_| caller.as_store().is_some()) {
                    Some(client) => callers.remove(&client),
                    None => return,
                };
            }
        }
        callers.insert(caller.client, caller);
    }

    /// Returns those that are in use, the latest first.
    pub(crate) fn heard(&self, now: Duration) -> Vec<OutdatedCaller> {
        let callers = &mut self.0.lock().callers;
        callers.retain(|_, caller| is_heard(caller, now));
        let mut callers: Vec<_> = callers.values().copied().collect();
        callers.sort_unstable_by_key(|caller| (std::cmp::Reverse(caller.at), caller.client));
        callers
    }
}

fn is_heard(caller: &OutdatedCaller, now: Duration) -> bool {
    now.saturating_sub(caller.at) < HEARD_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: u128 = 1 << 64;

    fn caller(id: u128, at: u64) -> OutdatedCaller {
        OutdatedCaller { client: ClientId(id), host: None, version_max: 1, at: Duration::from_secs(at) }
    }

    #[test]
    fn callers_are_listed_for_a_minute_after_their_latest_call_and_bounded() {
        let callers = OutdatedCallers::default();
        let heard = |at| callers.heard(Duration::from_secs(at));
        let (one, two) = (CLIENTS + 1, CLIENTS + 2);
        callers.note(caller(one, 0));
        callers.note(caller(two, 10));
        assert_eq!(heard(59), [caller(two, 10), caller(one, 0)]);
        assert_eq!(heard(60), [caller(two, 10)]);
        callers.note(caller(two, 60));
        assert_eq!(heard(119), [caller(two, 60)]);

        for client in 0..1_000 {
            callers.note(caller(CLIENTS + client, 110));
        }
        assert_eq!(heard(110).len(), MOST);
        callers.note(caller(two, 115));
        assert_eq!(
            heard(115)[0],
            caller(two, 115),
            "a known caller is kept up to date when the list is full"
        );
        let store = 7;
        callers.note(caller(store, 116));
        assert_eq!(
            (heard(116)[0], heard(116).len()),
            (caller(store, 116), MOST),
            "a client makes room for a store"
        );
        callers.note(caller(CLIENTS + 5_000, 176));
        assert_eq!(heard(176), [caller(CLIENTS + 5_000, 176)], "the silent ones make room");
    }
}
