use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time for which a host is remembered.
const LATELY: Duration = Duration::from_secs(60);
/// Most hosts that are remembered.
const REMEMBERED: usize = 1_024;
/// Most hosts that are named.
const NAMED: usize = 16;

/// Peers without an identity that were let in.
#[derive(Default)]
pub(super) struct Tolerated {
    count: AtomicU64,
    hosts: Mutex<HashMap<IpAddr, Instant>>,
}

impl Tolerated {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, host: Option<IpAddr>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(host) = host.map(|host| host.to_canonical()) else { return };
        let (mut hosts, now) = (self.hosts.lock(), Instant::now());
        if hosts.len() >= REMEMBERED && !hosts.contains_key(&host) {
            hosts.retain(|_, at| now.duration_since(*at) < LATELY);
            if hosts.len() >= REMEMBERED {
                return;
            }
        }
        hosts.insert(host, now);
    }

    /// Returns hosts of the last minute, the latest first.
    pub(super) fn lately(&self) -> Vec<IpAddr> {
        let now = Instant::now();
        let mut hosts = self.hosts.lock();
        hosts.retain(|_, at| now.duration_since(*at) < LATELY);
        let mut hosts: Vec<_> = hosts.iter().map(|(host, at)| (Reverse(*at), *host)).collect();
        hosts.sort_unstable();
        hosts.into_iter().take(NAMED).map(|(_, host)| host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_hosts_are_remembered_and_all_are_counted() {
        let tolerated = Tolerated::default();
        for n in 0..2 * u32::try_from(REMEMBERED).unwrap() {
            tolerated.note(Some(IpAddr::from(n.to_be_bytes())));
        }
        tolerated.note(None);
        assert_eq!(tolerated.count(), 2 * REMEMBERED as u64 + 1);
        assert_eq!(tolerated.hosts.lock().len(), REMEMBERED);
        assert_eq!(tolerated.lately().len(), NAMED);
    }
}
