use std::sync::Arc;

use mc_discovery::{LastKnown, Listed};
use mc_types::{HostPort, parse_list};

use crate::ConnectError;
use crate::config::DEFAULT_MASTER_PORT;

/// The list of masters as the user gave it.
#[derive(Debug)]
pub(crate) struct MasterList {
    entries: Vec<HostPort>,
    last_known: Arc<LastKnown>,
}

impl MasterList {
    pub(crate) fn parse(list: &str) -> Result<Self, ConnectError> {
        let entries = parse_list(list, DEFAULT_MASTER_PORT)?;
        if entries.is_empty() {
            return Err(ConnectError::NoMasters);
        }
        Ok(Self { entries, last_known: Arc::default() })
    }

    pub(crate) fn entries(&self) -> &[HostPort] {
        &self.entries
    }

    /// Returns the last known records of its names.
    pub(crate) fn last_known(&self) -> Arc<LastKnown> {
        Arc::clone(&self.last_known)
    }

    /// Resolves the list now. A name that does not resolve keeps its last addresses, or stays a name that may resolve
    /// later.
    pub(crate) async fn resolve(&self) -> Listed {
        Listed::resolve(&self.entries, &self.last_known).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_gets_the_default_port_and_ipv6_its_brackets() {
        let list = MasterList::parse("a, b:7 ,::1,[fe80::2]:9,[fe80::3]").unwrap();
        let entries: Vec<_> = list.entries.iter().map(ToString::to_string).collect();
        assert_eq!(entries, ["a:50051", "b:7", "[::1]:50051", "[fe80::2]:9", "[fe80::3]:50051"]);
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
