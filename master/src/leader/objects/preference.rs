//! Stores that a call's puts prefer, by name and by host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mc_index::{State, StoreView};
use mc_types::StoreId;

/// Most stores that a put is sent to first.
const PREFERRED_MAX: usize = 16;

/// Where the puts of a call are placed, besides the stores that each prefers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preference {
    /// Names or addresses of stores to prefer, in this order. Unknown ones are passed over.
    pub(crate) names: Vec<String>,
    pub(crate) near: Near,
}

/// Host whose stores a call's puts prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Near {
    /// No preference: stores with more free space first.
    #[default]
    Any,
    /// The caller's, by its address.
    Caller(IpAddr),
    /// One host for all puts of the call: the one with the most free space.
    EachOther,
}

impl Preference {
    /// Lists the preferred stores, the best first. Stores in `suspects`, which is sorted, are left out.
    pub(super) fn stores(&self, state: &State, suspects: &[StoreId]) -> Vec<StoreId> {
        let usable: Vec<StoreView<'_>> =
            state.stores().filter(|store| suspects.binary_search(&store.store).is_err()).collect();
        let by_name = self.names.iter().filter_map(|name| usable.iter().find(|store| is_called(store, name)));
        let mut stores: Vec<StoreId> = by_name.map(|store| store.store).collect();
        let host = match self.near {
            Near::Any => None,
            Near::Caller(address) => Some(address.to_string()),
            Near::EachOther => freest_host(&usable),
        };
        if let Some(host) = host {
            let mut there: Vec<_> = usable.iter().filter(|store| host_of(store) == Some(&host)).collect();
            there.sort_by_key(|store| std::cmp::Reverse(store.capacity.saturating_sub(store.used)));
            stores.extend(there.iter().map(|store| store.store));
        }
        stores.dedup();
        stores.truncate(PREFERRED_MAX);
        stores
    }
}

/// Whether a store has this name or this address.
pub(super) fn is_called(store: &StoreView<'_>, name: &str) -> bool {
    store.name == name || store.endpoints.iter().any(|endpoint| endpoint.address == name)
}

/// Returns the host of a store's first endpoint, without the port and the brackets of an IPv6 address.
fn host_of<'a>(store: &StoreView<'a>) -> Option<&'a str> {
    let address = &store.endpoints.first()?.address;
    let (host, _) = address.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

fn freest_host(stores: &[StoreView<'_>]) -> Option<String> {
    let mut free: BTreeMap<&str, u64> = BTreeMap::new();
    for store in stores {
        if let Some(host) = host_of(store) {
            *free.entry(host).or_default() += store.capacity.saturating_sub(store.used);
        }
    }
    free.into_iter().max_by_key(|(_, free)| *free).map(|(host, _)| host.to_owned())
}

#[cfg(test)]
mod tests {
    use mc_index::{Command, Op, Settings, Stamp};

    use super::*;
    use crate::leader::tests::mount;

    fn pool(stores: &[(&str, u64)]) -> State {
        let mut state = State::new(Settings::default());
        for (id, (address, bytes)) in (1..).zip(stores) {
            let stamp = Stamp { term: 1, ..Stamp::default() };
            state.apply(id, 1, &Command { stamp, op: Op::MountStore(mount(id, &[address], &[*bytes])) });
        }
        state
    }

    fn ids(stores: &[StoreId]) -> Vec<u64> {
        stores.iter().map(|store| store.0).collect()
    }

    #[test]
    fn named_stores_come_first_then_those_of_the_host() {
        let state = pool(&[("10.0.0.1:1", 64), ("10.0.0.2:1", 128), ("[::1]:1", 64), ("10.0.0.2:2", 256)]);
        let names = ["store-3", "nobody", "10.0.0.1:1"].map(str::to_owned).into();
        let near = Near::Caller("10.0.0.2".parse().unwrap());
        assert_eq!(ids(&Preference { names, near }.stores(&state, &[])), [3, 1, 4, 2]);
        let near = Near::Caller("::1".parse().unwrap());
        assert_eq!(ids(&Preference { names: vec![], near }.stores(&state, &[StoreId(3)])), [0u64; 0]);
    }

    #[test]
    fn puts_that_go_together_go_to_the_host_with_most_free_space() {
        let state = pool(&[("a:1", 128), ("b:1", 64), ("b:2", 128), ("c:1", 64)]);
        let together = Preference { names: vec![], near: Near::EachOther };
        assert_eq!(ids(&together.stores(&state, &[])), [3, 2]);
    }
}
