//! Identifiers. Random ids are drawn from the operating system's generator where they originate (a node's first start,
//! a store's allocation of memory, a client's put) and are never reused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $int:ty, $hex:literal, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// Draws a fresh id; never zero, which stands for "not known".
            #[must_use]
            pub fn random() -> Self {
                loop {
                    let id: $int = rand::random();
                    if id != 0 {
                        return Self(id);
                    }
                }
            }

            /// Encodes the id for the wire, as big-endian bytes.
            #[must_use]
            pub fn to_bytes(self) -> [u8; $bytes] {
                self.0.to_be_bytes()
            }

            /// Decodes the bytes of [`Self::to_bytes`]; `None` if the length is wrong.
            #[must_use]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self(<$int>::from_be_bytes(bytes.try_into().ok()?)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $hex, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $hex, ")"), self.0)
            }
        }

        impl From<$int> for $name {
            fn from(id: $int) -> Self {
                Self(id)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                <$int>::from_str_radix(text, 16).map(Self)
            }
        }
    };
}

id!(
    /// Id of a cluster of masters: random, fixed when the cluster forms.
    ClusterId, u128, "{:032x}", 16
);
id!(
    /// Id of a master: random, drawn once, kept in its data directory. A master that lost its data is a new node.
    NodeId, u64, "{:016x}", 8
);
id!(
    /// Id of a store: random, drawn once, kept in its data directory.
    StoreId, u64, "{:016x}", 8
);
id!(
    /// Id of one allocation of a store's memory. A store that restarts has the same id and another epoch, so nothing
    /// said of the old memory can be mistaken for the new.
    SegmentEpoch, u64, "{:016x}", 8
);
id!(
    /// Id of one put, drawn by the client. It names the put through every retry and is the object's version afterwards.
    PutId, u128, "{:032x}", 16
);
id!(
    /// Id of one client of the library: random, drawn when it connects for the first time.
    ClientId, u128, "{:032x}", 16
);

/// Number of a segment within its store, counted from zero.
pub type SegmentNumber = u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_bytes_and_their_text() {
        let id = PutId::random();
        assert_eq!(PutId::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(id.to_string().parse::<PutId>().unwrap(), id);
        assert_eq!(NodeId::from_bytes(&id.to_bytes()), None, "a length that is wrong is refused");
    }
}
