use mc_net::{Listener, Network};

use super::error::StartError;
use crate::config::MasterArgs;
use crate::formation::BoundAddresses;

pub(crate) struct Listeners {
    pub(crate) client: Listener,
    pub(crate) raft: Listener,
    pub(crate) http: Listener,
    /// For `/metadata` alone, if it is wanted.
    pub(crate) metadata: Option<Listener>,
    pub(super) bound: BoundAddresses,
}

impl Listeners {
    pub(super) async fn bind(
        args: &MasterArgs,
        network: &dyn Network,
        metadata: Option<Listener>,
    ) -> Result<Self, StartError> {
        let client = listen(network, "listen", &args.listen).await?;
        let raft = listen(network, "raft-listen", &args.raft_listen).await?;
        let http = listen(network, "http-listen", &args.http_listen).await?;
        let bound = BoundAddresses { raft: raft.address, client: client.address, http: http.address };
        Ok(Self { client, raft, http, metadata, bound })
    }
}

pub(super) async fn listen(
    network: &dyn Network,
    flag: &'static str,
    address: &str,
) -> Result<Listener, StartError> {
    let listener = network.listen(address).await;
    listener.map_err(|source| StartError::Listen { flag, address: address.to_owned(), source })
}
