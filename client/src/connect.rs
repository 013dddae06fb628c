//! Connects a client: makes its parts, starts its tasks, and waits until the leader is found.

use std::sync::Arc;

use mc_net::Tls;
use mc_transfer::{
    HostMemory, NoRdma, Rdma, ShmAccess, ShmTransport, StagedTransport, Sums, TcpOptions, TcpTransport,
    Transport, Transports,
};
use mc_types::{Access, MAX_TENANT_LEN};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::avoid::AvoidList;
use crate::background::Background;
use crate::call::LeaderClient;
use crate::config::Config;
use crate::core::{ApplyChanges, Core, Lanes};
use crate::local::Local;
use crate::masters::{MasterList, Masters, discover};
use crate::metrics::Counters;
use crate::mode::{ClientMode, ModeSwitch};
use crate::put::publish;
use crate::{Client, ConnectError};

/// Connects a client whose background work runs on `background`, in whose context this is called.
pub(crate) async fn connect(config: Config, background: Background) -> Result<Client, ConnectError> {
    let list = MasterList::parse(&config.masters)?;
    let network = config.network()?;
    let len = config.tenant.len();
    if len > MAX_TENANT_LEN {
        return Err(ConnectError::Tenant { len, max: MAX_TENANT_LEN });
    }
    let counters = Arc::new(Counters::new());
    let (transport, rdma) = match &config.transport {
        Some(own) => (own.clone(), Err(NoRdma::new("this client has a transport of its own"))),
        None => {
            let memory = config.host_memory.clone().unwrap_or_default();
            let rdma = memory.rdma(config.transports, &config.rdma_devices, &config.rdma_options)?;
            (transport(&config, network.tls(), &memory, &rdma, &counters), rdma)
        }
    };
    let listed = list.resolve().await;
    let (local, avoid) = (Arc::new(Local::new(&config)), Arc::new(AvoidList::new()));
    let mode = Arc::new(ModeSwitch::new(config.leader_timeout, counters.clone()));
    let follow = ApplyChanges {
        local: local.clone(),
        avoid: avoid.clone(),
        counters: counters.clone(),
        mode: mode.clone(),
    };
    let runtime = background.handle().clone();
    let masters =
        Masters::new(&config, network, list, listed, counters.clone(), Box::new(follow), runtime.clone());
    let masters = Arc::new(masters);
    tracing::info!("{}", local.cache);
    let mut state = masters.state.subscribe();
    let dropped = CancellationToken::new();
    let closed = dropped.child_token();
    let life = dropped.clone().drop_guard();
    let work = search(masters.clone(), mode.clone(), closed.clone());
    let kept = background.clone();
    background.handle().spawn(async move {
        work.await;
        drop(kept);
    });

    // Wait until every listed master has answered or failed: the list may name two clusters, or only skewed
    // masters.
    let settled = async {
        let mut decided = mode.subscribe();
        let _ = state.wait_for(|state| state.all_tried).await;
        decided.wait_for(|mode| !matches!(mode, ClientMode::Searching)).await.map(|mode| mode.clone())
    };
    let settled = timeout(config.leader_timeout + config.connect_timeout, settled).await;
    if let Ok(Ok(ClientMode::Refused(refusal))) = settled {
        return Err(refusal.connect_error());
    }
    if let Some(conflict) = masters.conflict() {
        return Err(conflict.connect_error());
    }
    let revokes = Arc::default();
    // The state now: the wait ends without one if a master of the list is silent, also with a leader.
    if config.require_leader && !matches!(mode.get(), ClientMode::Leader(_)) {
        let within = config.leader_timeout + config.connect_timeout;
        let why = masters.failure().unwrap_or_else(|| "no master knows one".to_owned());
        return Err(ConnectError::NoLeader { within, why });
    }
    let leader = Arc::new(LeaderClient { masters, mode, counters: counters.clone(), runtime });
    let core = Core {
        lanes: Arc::new(Lanes::new(&leader, &revokes)),
        revokes,
        leader,
        local,
        avoid,
        counters,
        transport: StagedTransport::new(transport),
        tenant: config.tenant,
        checksum: config.checksum,
        call_timeout: config.call_timeout,
        get_timeout: config.get_timeout,
        fail_local_misses: config.fail_local_misses,
        fail_unfinished_gets: config.fail_unfinished_gets,
    };
    let (revoking, kept) = (core.clone().revoke_abandoned(closed.clone(), dropped), background.clone());
    background.handle().spawn(async move {
        revoking.await;
        drop(kept);
    });
    if config.publish_local {
        background.handle().spawn(publish(core.clone(), closed.clone()));
    }
    Ok(Client::new(core, background, rdma, closed, life))
}

/// Looks for the leader until `closed`, then closes the client. It is closed as well if this future is dropped, because its
/// runtime has ended: a client that looks for no leader must not wait for one.
async fn search(masters: Arc<Masters>, mode: Arc<ModeSwitch>, closed: CancellationToken) {
    let closing = CloseOnDrop(mode);
    closed.run_until_cancelled_owned(async { tokio::join!(discover(&masters), closing.0.run()) }).await;
}

/// Closes the client when it is dropped.
struct CloseOnDrop(Arc<ModeSwitch>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Returns a transport of the chosen kinds. It counts the bytes that don't go over TCP.
fn transport(
    config: &Config,
    tls: Option<&Arc<Tls>>,
    memory: &HostMemory,
    rdma: &Result<Arc<Rdma>, NoRdma>,
    counters: &Arc<Counters>,
) -> Arc<dyn Transport> {
    let sums = if config.checksum { Sums::All } else { Sums::Writes };
    let options = TcpOptions { sums, tls: tls.cloned(), ..TcpOptions::default() };
    let counted = counters.clone();
    let on_shared = Box::new(move |access, bytes| match access {
        Access::Read => counted.shm_bytes_read.add(bytes),
        Access::Write => counted.shm_bytes_written.add(bytes),
    });
    let counted = counters.clone();
    let on_moved = Box::new(move |access, bytes| match access {
        Access::Read => counted.rdma_bytes_read.add(bytes),
        Access::Write => counted.rdma_bytes_written.add(bytes),
    });
    let tcp = match rdma {
        Ok(rdma) => {
            let only = config.transports == Transports::Rdma;
            TcpTransport::with_rdma(options, memory, rdma.clone(), only, on_moved)
        }
        Err(why) => {
            tracing::debug!("no RDMA: {why}");
            TcpTransport::without_rdma(options, memory, why.to_string())
        }
    };
    let shm = if config.transports.shm() { config.shm } else { ShmAccess::Off };
    let transport = ShmTransport::new(tcp, shm, on_shared);
    Arc::new(match config.embedded.clone() {
        Some((store, memory)) => transport.with_own_store(store, memory),
        None => transport,
    })
}
