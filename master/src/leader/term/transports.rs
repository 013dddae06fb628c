use std::collections::{HashMap, HashSet};

use mc_types::StoreId;
use parking_lot::Mutex;

/// Maximum number of transports that a store can name, and of bytes in a text of theirs.
const MOST: usize = 8;
const LONGEST: usize = 512;

/// A transport of a store, as the store describes it to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportUse {
    pub(crate) name: String,
    pub(crate) offered: bool,
    /// How the store offers the transport, or the reason why it does not.
    pub(crate) how: String,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// The transports of the stores that this leader has heard of.
#[derive(Debug, Default)]
pub(crate) struct TransportsInUse(Mutex<HashMap<StoreId, Vec<TransportUse>>>);

impl TransportsInUse {
    /// Takes in what a mounted store says, if it says something.
    pub(crate) fn note(&self, store: StoreId, mut transports: Vec<TransportUse>) {
        if transports.is_empty() {
            return;
        }
        transports.truncate(MOST);
        for transport in &mut transports {
            for text in [&mut transport.name, &mut transport.how] {
                let fits = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
                text.truncate(fits.unwrap_or_default());
            }
        }
        self.0.lock().insert(store, transports);
    }

    /// Forgets the stores that are not mounted any more.
    pub(crate) fn keep(&self, mounted: &HashSet<StoreId>) {
        self.0.lock().retain(|store, _| mounted.contains(store));
    }

    pub(crate) fn of(&self, store: StoreId) -> Vec<TransportUse> {
        self.0.lock().get(&store).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_is_bounded_and_kept_while_it_is_mounted() {
        let (one, two) = (StoreId(1), StoreId(2));
        let said = TransportUse {
            name: "tcp".into(),
            offered: true,
            how: "\u{e4}".repeat(LONGEST),
            read_bytes: 1,
            written_bytes: 2,
        };
        let transports = TransportsInUse::default();
        transports.note(one, vec![said.clone(); MOST + 1]);
        transports.note(two, vec![said]);
        transports.note(two, Vec::new());
        assert_eq!(transports.of(one).len(), MOST);
        assert_eq!(transports.of(two)[0].how.len(), LONGEST, "and not in the middle of a letter");
        transports.keep(&HashSet::from([two]));
        assert_eq!((transports.of(one).len(), transports.of(two).len()), (0, 1));
    }
}
