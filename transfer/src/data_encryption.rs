use std::fmt;
use std::str::FromStr;

/// Name of the attribute by which a store's endpoint says that its connections need no TLS.
const ATTRIBUTE: &str = "data-encryption";

/// Whether bytes to and from a store with certificates go through TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DataEncryption {
    /// As the level of TLS says.
    #[default]
    On,
    /// In the clear, for requests with proofs that their senders hold their grants. Everybody on the way can read and change the bytes.
    Off,
}

/// A text that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not say whether data is encrypted: write on or off")]
pub struct ParseDataEncryptionError(String);

impl DataEncryption {
    /// Reads it from the attributes of a store's endpoint.
    pub(crate) fn of(attributes: &[(String, String)]) -> Self {
        if attributes.contains(&Self::Off.attribute()) { Self::Off } else { Self::On }
    }

    /// Returns the attribute by which a store's endpoint says it: name and value.
    #[must_use]
    pub fn attribute(self) -> (String, String) {
        (ATTRIBUTE.to_owned(), self.to_string())
    }
}

impl FromStr for DataEncryption {
    type Err = ParseDataEncryptionError;

    fn from_str(text: &str) -> Result<Self, ParseDataEncryptionError> {
        let named = [Self::On, Self::Off].into_iter().find(|choice| choice.to_string() == text);
        named.ok_or_else(|| ParseDataEncryptionError(text.to_owned()))
    }
}

impl fmt::Display for DataEncryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_says_it_and_one_that_says_nothing_encrypts() {
        for choice in [DataEncryption::On, DataEncryption::Off] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
            assert_eq!(DataEncryption::of(&[choice.attribute()]), choice);
        }
        assert_eq!(DataEncryption::of(&[]), DataEncryption::On);
        assert_eq!(DataEncryption::of(&[(ATTRIBUTE.to_owned(), "?".to_owned())]), DataEncryption::On);
        assert!("none".parse::<DataEncryption>().unwrap_err().to_string().contains("on or off"));
    }
}
