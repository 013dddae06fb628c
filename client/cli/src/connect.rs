//! How every command reaches the pool.

use std::time::Duration;

use anyhow::Result;
use mc_client::{Admin, Client, ConnectError};
use mc_types::ByteSize;

use crate::failure::NoLeader;
use crate::output;

/// A client without a local cache: what it reads was in the pool a moment ago, and what it put is.
pub(crate) async fn client(masters: &str) -> Result<Client, ConnectError> {
    Client::builder().masters(masters).local_cache(ByteSize(0)).connect().await
}

/// Like [`client`], once a leader answers. Says once that it waits.
pub(crate) async fn client_with_leader(masters: &str, patience: Duration) -> Result<Client> {
    let found = async {
        let client = client(masters).await?;
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

/// Questions about the masters, whether one leads or not.
pub(crate) async fn admin(masters: &str) -> Result<Admin, ConnectError> {
    // Status is asked of each master by itself: there is no leader to wait for.
    let client =
        Client::builder().masters(masters).local_cache(ByteSize(0)).leader_timeout(Duration::from_millis(1));
    Ok(client.connect().await?.admin())
}
