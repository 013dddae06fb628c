use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// Ports to choose from, below Linux's range of ephemeral ports. In that range an outgoing connection could take the
/// port of a process that is down for a moment, and the process could not come back.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// Loopback ports that belong to one test while this value lives, even when no process listens on them.
///
/// A locked file per port keeps tests of other processes off. The system releases the lock when the process ends.
#[derive(Debug)]
pub struct Ports {
    ip: IpAddr,
    held: Vec<File>,
}

impl Default for Ports {
    /// Makes an empty set of ports on 127.0.0.1.
    fn default() -> Self {
        Self::on(Ipv4Addr::LOCALHOST.into())
    }
}

impl Ports {
    /// Makes an empty set of ports on the loopback address `ip`.
    pub fn on(ip: IpAddr) -> Self {
        Self { ip, held: Vec::new() }
    }

    /// Reserves a free port; returns it as `127.0.0.1:port` or `[::1]:port`.
    pub fn address(&mut self) -> String {
        let dir = std::env::temp_dir().join("mc-test-ports");
        std::fs::create_dir_all(&dir).expect("the directory of port locks");
        // Tests start at different places, so that they do not all try the same ports in turn.
        let mut random = crate::Seeded::new(u64::from(std::process::id()) << 32 | self.held.len() as u64);
        for _ in 0..10_000 {
            let port = random.within(u64::from(RANGE.start)..u64::from(RANGE.end)) as u16;
            let lock =
                File::options().create(true).truncate(false).write(true).open(dir.join(port.to_string()));
            let Ok(lock) = lock else { continue };
            let address = SocketAddr::new(self.ip, port);
            if lock.try_lock().is_ok() && TcpListener::bind(address).is_ok() {
                self.held.push(lock);
                return address.to_string();
            }
        }
        panic!("no free port on {} in {RANGE:?}", self.ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_two_tests_are_all_distinct_and_free() {
        let (mut one, mut two) = (Ports::default(), Ports::default());
        let mut addresses: Vec<String> = (0..20).flat_map(|_| [one.address(), two.address()]).collect();
        let bound: Vec<_> = addresses.iter().map(|address| TcpListener::bind(address).unwrap()).collect();
        assert_eq!(bound.len(), 40);
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 40);
    }
}
