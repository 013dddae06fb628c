use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use mc_discovery::{LastKnown, Listed};

use crate::{ConnectError, DEFAULT_MASTER_PORT};

/// A resolver that is slower than this counts as one that does not know the name.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(500);

/// The list of masters as the user gave it.
#[derive(Debug)]
pub(crate) struct MasterList {
    entries: Vec<HostPort>,
    last_known: LastKnown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    host: String,
    port: u16,
}

impl MasterList {
    pub(crate) fn parse(list: &str) -> Result<Self, ConnectError> {
        let entries: Vec<HostPort> = list
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(parse_entry)
            .collect::<Result<_, _>>()?;
        if entries.is_empty() {
            return Err(ConnectError::NoMasters);
        }
        Ok(Self { entries, last_known: LastKnown::default() })
    }

    /// The masters, resolved now. A name that does not resolve is what it last was, or stays a name: it may later.
    pub(crate) async fn resolve(&self) -> Listed {
        let lookups = self.entries.iter().map(|entry| async move {
            let name = entry.to_string();
            if entry.host.parse::<IpAddr>().is_ok() {
                return Listed::of(&name, &[]);
            }
            let lookup = tokio::net::lookup_host((entry.host.as_str(), entry.port));
            let records = match tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await {
                Ok(Ok(records)) => records.collect(),
                _ => Vec::new(),
            };
            self.last_known.or_last(&name, &records)
        });
        let entries = futures::future::join_all(lookups).await;
        entries.into_iter().fold(Listed::default(), |all, entry| all | entry)
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn parse_entry(entry: &str) -> Result<HostPort, ConnectError> {
    let fail = |reason: &str| ConnectError::Address { address: entry.to_owned(), reason: reason.to_owned() };
    let (host, port) = if let Some(rest) = entry.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(|| fail("the bracket is not closed"))?;
        host.parse::<Ipv6Addr>().map_err(|_| fail("no IPv6 address in the brackets"))?;
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':').ok_or_else(|| fail("after the bracket comes :port"))?),
        };
        (host, port)
    } else if entry.parse::<Ipv6Addr>().is_ok() {
        (entry, None)
    } else if let Some((host, port)) = entry.split_once(':') {
        (host, Some(port))
    } else {
        (entry, None)
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@?#".contains(c)) {
        return Err(fail("no host name"));
    }
    let port = match port {
        None => DEFAULT_MASTER_PORT,
        Some(port) => {
            port.parse().ok().filter(|port| *port != 0).ok_or_else(|| fail("the port is not 1 to 65535"))?
        }
    };
    Ok(HostPort { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Vec<String> {
        MasterList::parse(list).unwrap().entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_bare_name_gets_the_default_port_and_ipv6_its_brackets() {
        assert_eq!(
            parsed("a, b:7 ,::1,[fe80::2]:9,[fe80::3]"),
            ["a:50051", "b:7", "[::1]:50051", "[fe80::2]:9", "[fe80::3]:50051"]
        );
    }

    #[test]
    fn what_is_no_address_is_named() {
        assert!(matches!(MasterList::parse(" , "), Err(ConnectError::NoMasters)));
        for bad in ["a:", "a:0", "a:99999", ":1", "http://a:1", "[::1", "[x]:1", "a b:1"] {
            let err = MasterList::parse(bad).unwrap_err().to_string();
            assert!(err.contains(bad), "{err}");
        }
    }
}
