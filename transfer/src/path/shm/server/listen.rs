//! The store's end of shared memory: gives the descriptors of its segments to processes of this host.

use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::requests::ShmServer;
use super::sharing::{close, share};
use crate::control::server::{ACCEPT_PAUSE, ServedMemory};
use crate::path::shm::ShmAccess;

/// Maximum number of processes that have the descriptors at the same time; the others use TCP. A store can spare this
/// many descriptors beside those of data connections.
const MOST: usize = 128;
/// Maximum number of processes that are refused at the same time.
const REFUSED_AT_ONCE: usize = 16;
/// Maximum number of connections beyond these that are closed at the same time.
const CLOSED_AT_ONCE: usize = 16;

/// Gives the descriptors of the segments to processes that connect and may have them, until `shutdown`.
///
/// A connection lasts as long as its client may keep them: it is closed when a segment comes or goes, and at the end.
pub(crate) async fn listen<S>(
    server: Arc<S>,
    listener: UnixListener,
    access: ShmAccess,
    shutdown: CancellationToken,
) where
    S: AsRef<ServedMemory> + AsRef<ShmServer> + Send + Sync + 'static,
{
    let connections = TaskTracker::new();
    let (places, refusals) = (Arc::new(Semaphore::new(MOST)), Arc::new(Semaphore::new(REFUSED_AT_ONCE)));
    let closers = Arc::new(Semaphore::new(CLOSED_AT_ONCE));
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept local connections, trying again");
                shutdown.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
                continue;
            }
        };
        // Before it takes a place: processes that may not share memory must not keep out those that may.
        let admitted = stream.peer_cred().map_err(|error| error.to_string());
        let shm: &ShmServer = (*server).as_ref();
        let admitted =
            admitted.and_then(|theirs| access.admits(theirs.uid())).and_then(|()| shm.offers(access));
        let places = if admitted.is_ok() { &places } else { &refusals };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::debug!(most = MOST, "too many clients share memory: this one uses TCP");
            let Some(Ok(turn)) = shutdown.run_until_cancelled(closers.clone().acquire_owned()).await else {
                break;
            };
            close((stream, Vec::new()), turn);
            continue;
        };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        connections.spawn(async move {
            let mut files = Vec::new();
            let share = share((*server).as_ref(), (*server).as_ref(), &stream, admitted, &mut files);
            if let Some(Err(error)) = shutdown.run_until_cancelled(share).await {
                tracing::debug!(%error, "a client does not share memory any more");
            }
            close((stream, files), place);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
