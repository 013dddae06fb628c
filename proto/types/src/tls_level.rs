use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Level of TLS: how strictly processes with certificates require it. A running cluster moves from plain connections to TLS by
/// these steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum TlsLevel {
    /// Accept plain connections and TLS, and make plain ones.
    Allow,
    /// Accept both, and make connections by TLS, or plain ones to processes that have none.
    Prefer,
    /// Accept calls by TLS alone, and make no other connections.
    Require,
}

impl TlsLevel {
    /// All levels, each at its own number.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Prefer, Self::Require];

    /// Its number in messages and metrics, from 1 on: 0 stands for no level.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32 + 1
    }

    /// Returns the level with a number; `None` for 0, and for a level that this build does not know.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.number() == number)
    }
}

/// A text that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a level of TLS: write allow, prefer or require")]
pub struct ParseLevelError(String);

impl FromStr for TlsLevel {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        let named = Self::ALL.into_iter().find(|level| level.to_string() == text);
        named.ok_or_else(|| ParseLevelError(text.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_the_name_and_the_number_that_people_and_messages_use() {
        let levels = TlsLevel::ALL.map(|level| (level.to_string(), level.number()));
        assert_eq!(
            levels,
            [("allow", 1), ("prefer", 2), ("require", 3)].map(|(name, n)| (name.to_owned(), n))
        );
        assert_eq!(TlsLevel::ALL.map(|level| level.to_string().parse()), TlsLevel::ALL.map(Ok));
        assert!("off".parse::<TlsLevel>().is_err());
        let numbers = [0, 1, 2, 3, 4].map(TlsLevel::of_number);
        let [allow, prefer, require] = TlsLevel::ALL.map(Some);
        assert_eq!(numbers, [None, allow, prefer, require, None]);
    }
}
