//! Connections of the commands to the pool.

use std::time::Duration;

use anyhow::Result;
use mc_client::{Admin, Client, ConnectError};
use mc_types::ByteSize;

use crate::args::Global;
use crate::failure::NoLeader;
use crate::output;

/// Connects a client of the command line's masters and tenant, and waits for a leader.
pub(crate) async fn client_of(global: &Global) -> Result<Client> {
    tenant_with_leader(&global.masters(), global.tenant(), global.timeout.0).await
}

/// Connects a client of the default tenant and waits up to `patience` for a leader.
pub(crate) async fn client_with_leader(masters: &str, patience: Duration) -> Result<Client> {
    tenant_with_leader(masters, String::new(), patience).await
}

/// Connects without a local cache, so that the client reads only from the pool, and waits up to `patience` for a leader.
/// Notes once that it waits.
async fn tenant_with_leader(masters: &str, tenant: String, patience: Duration) -> Result<Client> {
    let found = async {
        let builder = Client::builder().masters(masters).tenant(tenant).local_cache(ByteSize(0));
        let client = builder.connect().await?;
        if !client.connected(Duration::ZERO).await {
            output::note(&format!("waiting up to {patience:?} for a leader at {masters} (--timeout)"));
            client.connected(Duration::MAX).await;
        }
        anyhow::Ok(client)
    };
    match tokio::time::timeout(patience, found).await {
        Ok(found) => found,
        Err(_) => Err(NoLeader(format!(
            "no leader answered at {masters} within {patience:?}: check that a majority of the masters runs and that \
             --masters or MC_MASTERS names them; `mcctl status` shows who answers"
        ))
        .into()),
    }
}

/// Connects an [`Admin`], which works with or without a leader.
pub(crate) async fn admin(masters: &str) -> Result<Admin, ConnectError> {
    // Each master is asked for its own status, so there is no leader to wait for.
    let client =
        Client::builder().masters(masters).local_cache(ByteSize(0)).leader_timeout(Duration::from_millis(1));
    Ok(client.connect().await?.admin())
}
