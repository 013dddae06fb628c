//! The `--peers` list and the addresses that its names stand for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures::future::{BoxFuture, join_all};
use mc_types::{HostPort, ParseAddressError};

/// Port of the Raft service for an address without a port.
pub const DEFAULT_RAFT_PORT: u16 = 50055;
/// Time allowed for resolving one name. A slower resolver counts as not having answered in this round.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves a name to its addresses. Passed in, so that a test or a simulation can have names of its own.
pub(crate) type Resolver =
    Arc<dyn Fn(HostPort) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Returns the resolver of the operating system.
#[must_use]
pub(crate) fn system_resolver() -> Resolver {
    Arc::new(|address| Box::pin(async move { mc_net::resolve(&address).await }))
}

/// The masters of a cluster as an operator lists them, in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerList {
    listed: Vec<HostPort>,
    cluster_size: Option<usize>,
}

/// Why a list of peers can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// The list is empty.
    #[error("--peers is empty: name the Raft address of every master, this one included")]
    Empty,
    /// An item is not an address.
    #[error("--peers: {0}")]
    Address(#[from] ParseAddressError),
    /// An address is listed twice.
    #[error("--peers names {0} twice: name each master once")]
    Duplicate(HostPort),
    /// A name has several records, and no cluster size says how many masters to expect.
    #[error(
        "--peers: {name} has {} records ({}): add --cluster-size with the number of masters, so that a cluster \
         is not formed before all of them are there",
        records.len(), list(records)
    )]
    SeveralRecords {
        /// Name with several records.
        name: HostPort,
        /// Its records.
        records: Vec<HostPort>,
    },
}

/// Masters of a list, as its names resolve now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// Addresses to dial: distinct, sorted.
    pub(crate) addresses: Vec<HostPort>,
    /// Number of masters at these addresses: a master with an IPv4 and an IPv6 record has two addresses and counts
    /// once.
    pub(crate) masters: usize,
}

impl Entries {
    /// Whether two addresses may belong to one master: some name has records of both families, and these are one of
    /// each.
    #[must_use]
    pub(crate) fn may_be_one(&self, a: &HostPort, b: &HostPort) -> bool {
        let families = (a.ip().map(|ip| ip.is_ipv4()), b.ip().map(|ip| ip.is_ipv4()));
        self.masters < self.addresses.len() && matches!(families, (Some(a), Some(b)) if a != b)
    }
}

/// Result of resolving a list at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expansion {
    /// Every name resolved to these masters.
    Entries(Entries),
    /// The masters are not known yet, for this reason.
    Incomplete(String),
}

impl PeerList {
    /// Parses the addresses; each item may itself be a list with commas. An address without a port gets
    /// [`DEFAULT_RAFT_PORT`]. `cluster_size` is the number of masters, needed where a name has several records.
    ///
    /// # Errors
    /// [`PeersError`]
    pub(crate) fn parse<T: AsRef<str>>(items: &[T], cluster_size: Option<usize>) -> Result<Self, PeersError> {
        let mut listed = Vec::new();
        for item in items {
            listed.extend(mc_types::parse_list(item.as_ref(), DEFAULT_RAFT_PORT)?);
        }
        listed.sort();
        if let Some(pair) = listed.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PeersError::Duplicate(pair[0].clone()));
        }
        if listed.is_empty() {
            return Err(PeersError::Empty);
        }
        Ok(Self { listed, cluster_size })
    }

    /// The addresses as listed, sorted.
    #[must_use]
    pub(crate) fn listed(&self) -> &[HostPort] {
        &self.listed
    }

    /// Resolves the list to the masters that it stands for now.
    ///
    /// A name with one record stays a name, so that every connect resolves it again. A name with several records
    /// becomes its addresses. It counts as many masters as its larger address family has records, because a machine
    /// with an IPv4 and an IPv6 address is one machine.
    ///
    /// # Errors
    /// [`PeersError::SeveralRecords`] without a cluster size.
    pub(crate) async fn expand(&self, resolver: &Resolver) -> Result<Expansion, PeersError> {
        let resolved = join_all(self.listed.iter().map(|address| async move {
            let records = match address.ip() {
                Some(ip) => Ok(Ok(vec![SocketAddr::new(ip, address.port())])),
                None => tokio::time::timeout(RESOLVE_TIMEOUT, resolver(address.clone())).await,
            };
            (address, records)
        }))
        .await;
        let mut entries = Entries::default();
        let mut missing = Vec::new();
        for (address, records) in resolved {
            let mut records: Vec<HostPort> = match records {
                Ok(Ok(records)) => records.into_iter().map(HostPort::from).collect(),
                Ok(Err(err)) => {
                    missing.push(format!("{} does not resolve ({err})", address.host()));
                    continue;
                }
                Err(_) => {
                    missing.push(format!("{} does not resolve (no answer)", address.host()));
                    continue;
                }
            };
            records.sort();
            records.dedup();
            let several = larger_family(&records) > 1;
            if several && self.cluster_size.is_none() {
                return Err(PeersError::SeveralRecords { name: address.clone(), records });
            }
            let mut stands_for = if several { records } else { vec![address.clone()] };
            stands_for.retain(|record| !entries.addresses.contains(record));
            entries.masters += larger_family(&stands_for);
            entries.addresses.append(&mut stands_for);
        }
        entries.addresses.sort();
        if !missing.is_empty() {
            return Ok(Expansion::Incomplete(missing.join("; ")));
        }
        match self.cluster_size {
            Some(size) if size != entries.masters => Ok(Expansion::Incomplete(format!(
                "--cluster-size is {size} and the list has {} masters now ({})",
                entries.masters,
                list(&entries.addresses)
            ))),
            _ => Ok(Expansion::Entries(entries)),
        }
    }
}

/// Number of addresses in the larger address family. A name counts in both.
fn larger_family(addresses: &[HostPort]) -> usize {
    let of = |v4: bool| addresses.iter().filter(|at| at.ip().is_none_or(|ip| ip.is_ipv4() == v4)).count();
    of(true).max(of(false))
}

/// Joins items with commas.
pub(crate) fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(records: &'static [(&'static str, &'static [&'static str])]) -> Resolver {
        Arc::new(move |address| {
            Box::pin(async move {
                let (_, ips) = records
                    .iter()
                    .find(|(name, _)| *name == address.host())
                    .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name"))?;
                Ok(ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), address.port())).collect())
            })
        })
    }

    fn entries(expansion: &Expansion) -> Vec<String> {
        match expansion {
            Expansion::Entries(entries) => entries.addresses.iter().map(ToString::to_string).collect(),
            Expansion::Incomplete(why) => panic!("incomplete: {why}"),
        }
    }

    #[test]
    fn order_and_the_default_port_do_not_matter_and_twice_is_an_error() {
        let a = PeerList::parse(&["b,A", "c:50055"], None).unwrap();
        let b = PeerList::parse(&["c", "a:50055", "b"], None).unwrap();
        assert_eq!(a, b);
        let twice = PeerList::parse(&["a", "b", "a:50055"], None).unwrap_err();
        assert_eq!(twice.to_string(), "--peers names a:50055 twice: name each master once");
        assert_eq!(PeerList::parse(&[""], None), Err(PeersError::Empty));
    }

    #[tokio::test]
    async fn a_name_with_several_records_needs_the_size_of_the_cluster_and_all_of_them() {
        let three = resolver(&[("mc", &["10.0.0.2", "10.0.0.1", "10.0.0.3"])]);
        let two = resolver(&[("mc", &["10.0.0.2", "10.0.0.1"])]);
        let err = PeerList::parse(&["mc"], None).unwrap().expand(&three).await.unwrap_err();
        assert!(err.to_string().contains("mc:50055 has 3 records"), "{err}");

        let list = PeerList::parse(&["mc"], Some(3)).unwrap();
        let expansion = list.expand(&three).await.unwrap();
        assert_eq!(entries(&expansion), ["10.0.0.1:50055", "10.0.0.2:50055", "10.0.0.3:50055"]);
        let Expansion::Incomplete(why) = list.expand(&two).await.unwrap() else { panic!("two of three") };
        assert!(why.contains("--cluster-size is 3 and the list has 2"), "{why}");
    }

    #[tokio::test]
    async fn both_families_of_a_name_are_dialled_and_the_larger_one_is_counted() {
        let names =
            resolver(&[("mc", &["10.0.0.1", "::2", "::1", "10.0.0.2"]), ("more", &["10.0.0.2", "::3"])]);
        let list = PeerList::parse(&["mc", "more"], Some(3)).unwrap();
        let Expansion::Entries(entries) = list.expand(&names).await.unwrap() else { panic!("three masters") };
        assert_eq!((entries.addresses.len(), entries.masters), (5, 3), "{entries:?}");
        let [v4, other, v6] = ["10.0.0.1", "10.0.0.2", "::1"].map(|ip| HostPort::new(ip, 50055).unwrap());
        assert!(entries.may_be_one(&v4, &v6) && !entries.may_be_one(&v4, &other));
        // Two literal addresses are two masters, whatever their families.
        let literal = PeerList::parse(&["10.0.0.1", "[::1]"], None).unwrap().expand(&names).await.unwrap();
        let Expansion::Entries(literal) = literal else { panic!("two masters") };
        assert_eq!((literal.masters, literal.may_be_one(&v4, &v6)), (2, false));
    }

    #[tokio::test]
    async fn a_machine_with_both_address_families_is_one_and_an_unknown_name_is_waited_for() {
        let names = resolver(&[("a", &["10.0.0.1", "::1"]), ("b", &["10.0.0.2"])]);
        let list = PeerList::parse(&["a", "b"], None).unwrap();
        assert_eq!(entries(&list.expand(&names).await.unwrap()), ["a:50055", "b:50055"]);
        let list = PeerList::parse(&["a", "x"], None).unwrap();
        let expansion = list.expand(&names).await.unwrap();
        assert_eq!(expansion, Expansion::Incomplete("x does not resolve (no such name)".into()));
    }
}
