//! Formation, from the pure decision to masters that meet over loopback.

mod crashes;
mod deciding;
mod following;
mod forming;
mod network;
mod schedule;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mc_durable::DirectoryLock;
use mc_log::MasterNode;
use mc_net::Network as _;
use mc_raft::AddressBook;
use mc_types::{ClusterId, NodeId};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::config::PeerList;
use crate::data_dir::{Belonging, IdentityFile};
use network::{Names, Served, TestNetwork};

const LONG: Duration = Duration::from_secs(20);
/// Time for a round of meetings, after which something counts as not happening.
const SHORT: Duration = Duration::from_millis(500);

/// One master's data directory and the name under which it is reached. It outlives the process.
struct Machine {
    name: &'static str,
    dir: TempDir,
}

impl Machine {
    fn new(name: &'static str) -> Self {
        Self { name, dir: tempfile::tempdir().unwrap() }
    }

    fn identity(&self) -> IdentityFile {
        identity_in(self.dir.path())
    }

    fn belong(&self, cluster: u128, founder: Option<NodeId>) {
        self.identity().belong(Belonging { cluster: ClusterId(cluster), founder }).unwrap();
    }

    /// Loses the disk.
    fn wipe(&mut self) {
        self.dir = tempfile::tempdir().unwrap();
    }

    /// Runs a master here. The note of `record_formed` stands for its Raft log.
    async fn start(&self, names: &Names, peers: &str) -> Process {
        self.start_with(names, Plan::Peers(PeerList::parse(&[peers], None).unwrap()), None).await
    }

    async fn start_with(&self, names: &Names, plan: Plan, advertise: Option<&str>) -> Process {
        let identity = self.identity();
        let has_state = identity.formed();
        Process::start(self.name, identity, has_state, names, plan, advertise).await
    }
}

fn identity_in(dir: &Path) -> IdentityFile {
    IdentityFile::open(&DirectoryLock::acquire(dir).unwrap()).unwrap()
}

/// A running master: its Raft address is served, and it forms.
struct Process {
    name: &'static str,
    service: Arc<FormationService>,
    formation: Arc<Formation>,
    forming: Option<JoinHandle<Result<Formed, FormationError>>>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    names: Names,
}

impl Process {
    async fn start(
        name: &'static str,
        identity: IdentityFile,
        has_state: bool,
        names: &Names,
        plan: Plan,
        advertise: Option<&str>,
    ) -> Self {
        let network = Arc::new(TestNetwork(names.clone()));
        let listener = network.listen("127.0.0.1:0").await.unwrap();
        let port = |port| SocketAddr::new([0, 0, 0, 0].into(), port);
        let config = FormationConfig {
            plan,
            advertise: Advertise {
                host: advertise.map(str::to_owned),
                bound: BoundAddresses { raft: port(50055), client: port(50051), http: port(9003) },
            },
            network: network.clone(),
            resolver: names.resolver(),
        };
        let formation = Arc::new(Formation::new(identity, has_state, config));
        let service = formation.service();
        names.set(name, listener.address);
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(network::serve(listener, Served(formation.service()), stopped));
        let forming = tokio::spawn({
            let formation = Arc::clone(&formation);
            let names = names.clone();
            async move {
                let formed = formation.run().await?;
                // As a real master does: Raft writes, and the leader calls the members.
                match &formed {
                    Formed::Founder { cluster, members } => {
                        formation.service().record_formed().await.unwrap();
                        let me = formation.service().node();
                        for (node, addresses) in members.iter().filter(|(node, _)| **node != me) {
                            network::call_until_admitted(&names, &addresses.raft, *cluster, *node).await;
                        }
                    }
                    Formed::Member(_) => formation.service().record_formed().await.unwrap(),
                    Formed::Newcomer(_) | Formed::Restarted(_) => {}
                }
                Ok(formed)
            }
        });
        Self {
            name,
            service,
            formation,
            forming: Some(forming),
            stop: Some(stop),
            server,
            names: names.clone(),
        }
    }

    async fn formed(&mut self) -> Result<Formed, FormationError> {
        let forming = self.forming.take().unwrap();
        let name = self.name;
        match tokio::time::timeout(LONG, forming).await {
            Ok(formed) => formed.unwrap(),
            Err(_) => panic!("{name} still waits: {:?}", self.service.waiting()),
        }
    }

    /// Waits until this node's reasons for waiting contain `text`.
    async fn waits(&mut self, text: &str) {
        let said = async {
            while !self.service.waiting().is_some_and(|said| said.contains(text)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(LONG, said).await.is_err() {
            panic!("{} does not wait for `{text}`, but: {:?}", self.name, self.service.waiting());
        }
        assert!(!self.forming.as_ref().unwrap().is_finished(), "{} does not wait any more", self.name);
    }

    /// Ends the process: it stops answering, and its directory is free.
    async fn kill(mut self) {
        self.names.remove(self.name);
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.server).await.unwrap();
        if let Some(forming) = self.forming.take() {
            forming.abort();
            let _ = forming.await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.server.abort();
        if let Some(forming) = &self.forming {
            forming.abort();
        }
    }
}

/// Three masters that have formed, and the cluster's id.
async fn three_formed(names: &Names) -> ([Machine; 3], [Process; 3], ClusterId) {
    let machines = ["a", "b", "c"].map(Machine::new);
    let mut processes = [
        machines[0].start(names, "a,b,c").await,
        machines[1].start(names, "a,b,c").await,
        machines[2].start(names, "a,b,c").await,
    ];
    let mut ids = Vec::new();
    for process in &mut processes {
        ids.push(process.formed().await.unwrap().cluster());
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "one cluster: {ids:?}");
    (machines, processes, ids[0])
}
