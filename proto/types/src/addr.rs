use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host (a name or an IP address) and a port. Shown as `host:port`, IPv6 in brackets; names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    host: String,
    port: u16,
}

/// The error of a text that is not an address, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address ({why}): write host, host:port, ip:port or [ipv6]:port")]
pub struct ParseAddressError {
    text: String,
    why: &'static str,
}

impl HostPort {
    /// Makes an address from a host and a port.
    ///
    /// # Errors
    /// [`ParseAddressError`] when `host` is neither a name nor an IP address.
    pub fn new(host: &str, port: u16) -> Result<Self, ParseAddressError> {
        let fail = |why| ParseAddressError { text: host.to_owned(), why };
        // One text for each IP address: `::1` and `0:0::1` are the same host.
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port });
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        if name.is_empty() {
            return Err(fail("no host"));
        }
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')) {
            return Err(fail("the host has other characters than letters, digits, dots and dashes"));
        }
        if name.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(fail("the host is neither a name nor an IP address"));
        }
        Ok(Self { host: name.to_ascii_lowercase(), port })
    }

    /// Parses `host`, `host:port`, `[ipv6]`, `[ipv6]:port` or a bare IPv6 address. A text without a port gets
    /// `default_port`.
    ///
    /// # Errors
    /// [`ParseAddressError`]
    pub fn parse(text: &str, default_port: u16) -> Result<Self, ParseAddressError> {
        Self::read(text, Some(default_port))
    }

    fn read(text: &str, default_port: Option<u16>) -> Result<Self, ParseAddressError> {
        let text = text.trim();
        let fail = |why| ParseAddressError { text: text.to_owned(), why };
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (ip, rest) = rest.split_once(']').ok_or_else(|| fail("a bracket is not closed"))?;
            ip.parse::<Ipv6Addr>().map_err(|_| fail("what is in brackets is not an IPv6 address"))?;
            match rest {
                "" => (ip, None),
                rest => (ip, Some(rest.strip_prefix(':').ok_or_else(|| fail("no colon after the bracket"))?)),
            }
        } else if text.parse::<Ipv6Addr>().is_ok() {
            (text, None)
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let port = match (port, default_port) {
            (Some(port), _) => port.parse().map_err(|_| fail("the port is not a number up to 65535"))?,
            (None, Some(port)) => port,
            (None, None) => return Err(fail("no port")),
        };
        Self::new(host, port).map_err(|err| fail(err.why))
    }

    /// Returns the name or IP address, IPv6 without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the IP address if the host is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Parses a comma-separated list of remote addresses; empty items are skipped.
///
/// # Errors
/// [`ParseAddressError`] of the first item that is not an address, or whose port is 0.
pub fn parse_list(text: &str, default_port: u16) -> Result<Vec<HostPort>, ParseAddressError> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| match HostPort::parse(item, default_port)? {
            HostPort { port: 0, .. } => {
                Err(ParseAddressError { text: item.to_owned(), why: "port 0 cannot be reached" })
            }
            address => Ok(address),
        })
        .collect()
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = ParseAddressError;
    /// Parses an address with a port. The port is required, because an address without one could not be displayed and
    /// parsed back.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::read(text, None)
    }
}

impl TryFrom<String> for HostPort {
    type Error = ParseAddressError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        address.to_string()
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gets_its_port() {
        for (text, shown) in [
            ("a", "a:7"),
            ("A.Example.com.", "a.example.com:7"),
            ("a:9", "a:9"),
            (" 10.0.0.1 ", "10.0.0.1:7"),
            ("10.0.0.1:9", "10.0.0.1:9"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[0:0::1]:9", "[::1]:9"),
        ] {
            let address = HostPort::parse(text, 7).unwrap();
            assert_eq!(address.to_string(), shown, "{text}");
            assert_eq!(address.to_string().parse::<HostPort>().unwrap(), address);
        }
        assert!("a".parse::<HostPort>().is_err(), "no port and no default");
    }

    #[test]
    fn what_is_not_an_address_says_why() {
        for (text, why) in [
            ("", "no host"),
            (":1", "no host"),
            ("a:b", "the port is not a number"),
            ("a:65536", "the port is not a number"),
            ("a b", "other characters"),
            ("http://a:1", "the port is not a number"),
            ("1.2.3.4.5", "neither a name nor an IP address"),
            ("[::1", "not closed"),
            ("[a]:1", "not an IPv6"),
        ] {
            let err = HostPort::parse(text, 7).unwrap_err().to_string();
            assert!(err.contains(why), "{text}: {err}");
        }
    }

    #[test]
    fn a_list_may_have_spaces_and_a_comma_at_its_end() {
        let list = parse_list("a, b:2,", 1).unwrap();
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "b:2"]);
        for zero in ["b:0", "b:00"] {
            assert!(parse_list(&format!("a,{zero}"), 1).unwrap_err().to_string().contains(zero));
        }
    }
}
