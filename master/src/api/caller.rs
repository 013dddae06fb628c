use std::net::IpAddr;

use mc_net::{ConnectInfo, Peer, Principal};
use mc_proto::v1::Caller;
use mc_types::{ClientId, ClusterId, NodeId};
use tonic::Extensions;

use crate::leader::{Holder, OutdatedCaller, Refusal, Services};

const CLIENT_ID_LEN: usize = 16;

/// Cluster and node that a call must mean to be answered here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
}

impl Addressee {
    /// Refuses a call that means another cluster or node, or that shares no protocol version with this master. A caller
    /// that does not know its cluster or node yet names none.
    pub(crate) fn check(&self, caller: Option<&Caller>) -> Result<(), Refusal> {
        let Some(caller) = caller else {
            return Err(Refusal::Invalid(
                "the request names no caller: every call but Hello carries one".into(),
            ));
        };
        versions_meet(caller.version_min, caller.version_max)?;
        if !caller.cluster_id.is_empty() && caller.cluster_id[..] != self.cluster.to_bytes() {
            return Err(Refusal::WrongCluster { ours: self.cluster, theirs: hex(&caller.cluster_id) });
        }
        if !caller.node_id.is_empty() && caller.node_id[..] != self.node.to_bytes() {
            return Err(Refusal::WrongNode { ours: self.node, theirs: hex(&caller.node_id) });
        }
        Ok(())
    }
}

/// Refuses a call that changes something but names no client.
pub(crate) fn names_client(caller: Option<&Caller>) -> Result<(), Refusal> {
    let len = caller.map_or(0, |caller| caller.client_id.len());
    match len == CLIENT_ID_LEN {
        true => Ok(()),
        false => Err(Refusal::Invalid(format!(
            "the caller's client id has {len} bytes: calls that change something carry one of {CLIENT_ID_LEN}"
        ))),
    }
}

/// Refuses a caller whose range of protocol versions does not overlap this master's.
pub(crate) fn versions_meet(min: u32, max: u32) -> Result<(), Refusal> {
    match mc_proto::common_version(mc_proto::VERSIONS, min..=max) {
        Some(_) => Ok(()),
        None => Err(Refusal::VersionSkew {
            ours: format!("{}..={}", mc_proto::VERSIONS.start(), mc_proto::VERSIONS.end()),
            theirs: format!("{min}..={max}"),
        }),
    }
}

/// Returns the address from which a call came, if the network knows it. An IPv4 address is one, whatever kind of socket took the
/// call.
pub(super) fn host_of(carried: &Extensions) -> Option<IpAddr> {
    carried.get::<ConnectInfo>().and_then(|info| Some(info.remote?.ip().to_canonical()))
}

/// Returns what a caller can do with grants. A call of unknown origin came over no TLS.
pub(super) fn holder_of(carried: &Extensions, caller: Option<&Caller>) -> Holder {
    let is_plain = carried.get::<ConnectInfo>().is_none_or(|info| info.peer == Peer::Plain);
    match caller {
        Some(caller) if caller.version_max < mc_proto::GRANT_PROOFS_SINCE => Holder::Older,
        _ if is_plain => Holder::Plain,
        _ => {
            let principal = carried.get::<Principal>();
            let shares_memory = principal.is_some_and(Principal::shares_memory);
            Holder::Secured { number: principal.and_then(Principal::number), shares_memory }
        }
    }
}

/// Lists a client that puts, or a store, at this master if it leads and their build is older: `mcctl upgrade` names it.
pub(super) fn note_if_outdated(services: &Services, caller: Option<&Caller>, host: Option<IpAddr>) {
    let newest = *mc_proto::VERSIONS.end();
    let Some(caller) = caller.filter(|caller| caller.version_max < newest) else { return };
    let Some(client) = ClientId::from_bytes(&caller.client_id) else { return };
    if let Some(leading) = services.coordinator.on_duty() {
        let (version_max, at) = (caller.version_max, leading.elapsed());
        leading.outdated.note(OutdatedCaller { client, host, version_max, at });
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Addressee = Addressee { cluster: ClusterId(1), node: NodeId(2) };

    fn caller(cluster: &[u8], node: &[u8]) -> Caller {
        Caller {
            cluster_id: cluster.to_vec().into(),
            node_id: node.to_vec().into(),
            version_min: 1,
            version_max: 1,
            ..Default::default()
        }
    }

    #[test]
    fn a_caller_may_name_nobody_or_us() {
        assert_eq!(US.check(Some(&caller(&[], &[]))), Ok(()));
        assert_eq!(US.check(Some(&caller(&ClusterId(1).to_bytes(), &NodeId(2).to_bytes()))), Ok(()));
    }

    #[test]
    fn another_cluster_another_node_and_another_version_are_refused() {
        let wrong = US.check(Some(&caller(&ClusterId(9).to_bytes(), &[])));
        assert!(matches!(wrong, Err(Refusal::WrongCluster { .. })));
        let wrong = US.check(Some(&caller(&[], &NodeId(9).to_bytes())));
        assert!(matches!(wrong, Err(Refusal::WrongNode { .. })));
        let old = Caller { version_min: 0, version_max: 0, ..caller(&[], &[]) };
        assert!(matches!(US.check(Some(&old)), Err(Refusal::VersionSkew { .. })));
        assert!(matches!(US.check(None), Err(Refusal::Invalid(_))));
    }

    #[test]
    fn a_change_names_its_client() {
        let named = Caller { client_id: vec![1; CLIENT_ID_LEN].into(), ..caller(&[], &[]) };
        assert_eq!(names_client(Some(&named)), Ok(()));
        let cut = Caller { client_id: vec![1; 3].into(), ..caller(&[], &[]) };
        for unnamed in [Some(&cut), Some(&caller(&[], &[])), None] {
            assert!(matches!(names_client(unnamed), Err(Refusal::Invalid(_))));
        }
    }

    #[test]
    fn keys_of_proofs_go_over_tls_to_callers_that_prove() {
        let holder = |peer: Option<Peer>, version_max| {
            let mut carried = Extensions::default();
            if let Some(peer) = peer {
                carried.insert(ConnectInfo { remote: None, place: None, peer });
            }
            holder_of(&carried, Some(&Caller { version_max, ..caller(&[], &[]) }))
        };
        let newest = *mc_proto::VERSIONS.end();
        assert_eq!(
            holder(Some(Peer::Anonymous), newest),
            Holder::Secured { number: None, shares_memory: false }
        );
        assert_eq!(holder(Some(Peer::Plain), newest), Holder::Plain);
        assert_eq!(holder(None, newest), Holder::Plain);
        assert_eq!(holder(Some(Peer::Anonymous), mc_proto::GRANT_PROOFS_SINCE - 1), Holder::Older);
        assert_eq!(holder(Some(Peer::Plain), 1), Holder::Older);
    }

    #[test]
    fn a_caller_over_ipv4_is_known_by_that_address_on_any_socket() {
        let host = |remote: Option<&str>| {
            let mut carried = Extensions::default();
            let remote = remote.map(|remote| remote.parse().unwrap());
            carried.insert(ConnectInfo { remote, place: None, peer: Peer::Plain });
            host_of(&carried).map(|host| host.to_string())
        };
        assert_eq!(host(Some("[::ffff:10.0.0.2]:7")).as_deref(), Some("10.0.0.2"));
        assert_eq!(host(Some("[fd00::2]:7")).as_deref(), Some("fd00::2"));
        assert_eq!(host(None), None);
    }
}
