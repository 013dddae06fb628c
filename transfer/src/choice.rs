use std::fmt;
use std::str::FromStr;

/// Transports that a process uses besides the TCP connections that all need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// Every transport that this machine has, and TCP where the others can't be used.
    #[default]
    Auto,
    /// None.
    Tcp,
    /// Shared memory, and TCP to other hosts.
    Shm,
    /// RDMA. A client with this choice moves bytes by nothing else.
    Rdma,
}

/// The text is not the name of a choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of auto, tcp, shm, rdma")]
pub struct ParseTransportsError(String);

impl Transports {
    /// Whether shared memory may be used.
    #[must_use]
    pub fn shm(self) -> bool {
        matches!(self, Self::Auto | Self::Shm)
    }

    /// Whether RDMA may be used.
    #[must_use]
    pub fn rdma(self) -> bool {
        matches!(self, Self::Auto | Self::Rdma)
    }
}

impl FromStr for Transports {
    type Err = ParseTransportsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Auto, Self::Tcp, Self::Shm, Self::Rdma];
        let named = all.into_iter().find(|choice| choice.to_string() == text);
        named.ok_or_else(|| ParseTransportsError(text.to_owned()))
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_shown() {
        for text in ["auto", "tcp", "shm", "rdma"] {
            assert_eq!(text.parse::<Transports>().unwrap().to_string(), text);
        }
        let error = "ib".parse::<Transports>().unwrap_err().to_string();
        assert!(error.contains("\"ib\"") && error.contains("rdma"), "{error}");
        assert!(Transports::Auto.shm() && Transports::Auto.rdma());
        assert!(!Transports::Rdma.shm() && !Transports::Shm.rdma() && !Transports::Tcp.shm());
    }
}
