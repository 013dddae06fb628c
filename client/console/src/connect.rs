//! Connections of the commands to the pool.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use mc_client::{Admin, Builder, Client, ConnectError};
use mc_types::ByteSize;
use parking_lot::Mutex;

use crate::failure::NoLeader;
use crate::flags::Global;
use crate::output;

/// Folder with the certificates of this program's connections.
static TLS_DIR: Mutex<Option<PathBuf>> = Mutex::new(None);
/// File with the token of this program's connections.
static TOKEN_FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Uses the certificates and the token that the command line names for this program's connections from now on.
pub fn use_credentials(global: &Global) {
    if let Some(dir) = &global.tls_dir {
        use_tls_dir(dir);
    }
    TOKEN_FILE.lock().clone_from(&global.token_file);
}

/// Sets the folder with the certificates of this program's connections to masters and stores from now on. Without one the
/// library looks for them.
pub fn use_tls_dir(dir: impl Into<PathBuf>) {
    *TLS_DIR.lock() = Some(dir.into());
}

/// Returns settings of a client with this program's certificates and token.
pub fn client_builder(masters: &str) -> Builder {
    let mut builder = Client::builder().masters(masters);
    if let Some(dir) = TLS_DIR.lock().clone() {
        builder = builder.tls_dir(dir);
    }
    if let Some(file) = TOKEN_FILE.lock().clone() {
        builder = builder.token_file(file);
    }
    builder
}

/// Connects a client of the command line's masters and tenant, and waits for a leader.
pub async fn client_of(global: &Global) -> Result<Client> {
    let masters = global.masters();
    let builder = builder(&masters, global).tenant(global.tenant());
    wait_for_leader(builder, &masters, global.timeout.0).await
}

/// Connects a client of the default tenant to masters that are not those of the command line, and waits for a leader.
pub async fn client_at(masters: &str, global: &Global) -> Result<Client> {
    wait_for_leader(builder(masters, global), masters, global.timeout.0).await
}

/// Connects a client of the default tenant and waits up to `patience` for a leader.
pub async fn client_with_leader(masters: &str, patience: Duration) -> Result<Client> {
    let builder = client_builder(masters).local_cache(ByteSize(0));
    wait_for_leader(builder, masters, patience).await
}

/// Settings of a client without a local cache, so that it reads only from the pool.
fn builder(masters: &str, global: &Global) -> Builder {
    client_builder(masters)
        .local_cache(ByteSize(0))
        .shared_memory(global.shm)
        .transports(global.transport)
        .rdma_devices(global.rdma_devices.clone())
        .rdma_options(global.rdma_options.clone())
}

/// Connects, and waits up to `patience` for a leader. Notes once that it waits.
async fn wait_for_leader(builder: Builder, masters: &str, patience: Duration) -> Result<Client> {
    let found = async {
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
pub async fn admin(masters: &str) -> Result<Admin, ConnectError> {
    // Each master is asked for its own status, so there is no leader to wait for.
    let client = client_builder(masters).local_cache(ByteSize(0)).leader_timeout(Duration::from_millis(1));
    Ok(client.connect().await?.admin())
}
