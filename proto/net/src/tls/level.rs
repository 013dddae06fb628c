use std::fmt;
use std::str::FromStr;

/// How far a process that has certificates insists on TLS. A cluster goes from plain connections to TLS by these steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TlsLevel {
    /// Accepts plain connections and TLS, and makes plain ones.
    Allow,
    /// Accepts both, and makes connections by TLS, or plain ones to processes that have none.
    Prefer,
    /// Accepts calls by TLS alone, and makes no other connections.
    Require,
}

impl TlsLevel {
    pub(super) fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Allow,
            1 => Self::Prefer,
            _ => Self::Require,
        }
    }
}

/// A text that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a level of TLS: write allow, prefer or require")]
pub struct ParseLevelError(String);

impl FromStr for TlsLevel {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        match text {
            "allow" => Ok(Self::Allow),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            _ => Err(ParseLevelError(text.to_owned())),
        }
    }
}

impl fmt::Display for TlsLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
        })
    }
}
