use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mc_client::{Builder, Client, StoreId};
use mc_net::{Network, TcpNetwork};
use mc_proto::v1;
use tempfile::TempDir;

use mc_testkit::STORES_AT;

use crate::{Certificates, Faulty, Links, Ports, Process, by_hand, http_get, is_ready, until};

/// Lines of each process' output that a failed test shows.
const TAIL: usize = 60;
/// Identity of the tests of a pool with certificates.
const ADMIN: &str = "admin/test";

/// Settings of a cluster to start; made by [`Cluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterBuilder {
    masters: usize,
    stores: usize,
    segment: String,
    env: Vec<(String, String)>,
    master_args: Vec<String>,
    store_args: Vec<String>,
    loopback: IpAddr,
    faulty: bool,
    journals: bool,
    store_links: bool,
    tls: bool,
    keeps_memory: bool,
}

/// Masters and stores as child processes, with ports and directories that are reserved while this value lives.
///
/// If the test that owns it panics, the output of the processes is shown.
#[derive(Debug)]
pub struct Cluster {
    /// The masters.
    pub masters: Vec<Process>,
    /// The stores.
    pub stores: Vec<Process>,
    clients: Vec<String>,
    raft: Vec<String>,
    master_http: Vec<String>,
    store_data: Vec<String>,
    store_http: Vec<String>,
    faulty: Option<(Vec<Faulty>, Links)>,
    certificates: Option<Certificates>,
    network: Arc<dyn Network>,
    ports: Ports,
    // Last, so that the directories are removed after the processes have ended.
    dir: TempDir,
    memory: Option<TempDir>,
}

impl ClusterBuilder {
    /// Sets the number of masters; one is a cluster of one.
    pub fn masters(mut self, masters: usize) -> Self {
        self.masters = masters;
        self
    }

    /// Sets the number of stores.
    pub fn stores(mut self, stores: usize) -> Self {
        self.stores = stores;
        self
    }

    /// Sets the memory that each store lends.
    pub fn segment(mut self, size: &str) -> Self {
        size.clone_into(&mut self.segment);
        self
    }

    /// Sets a variable in every process.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds flags to every master.
    pub fn master_args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.master_args.extend(args.map(str::to_owned));
        self
    }

    /// Adds flags to every store.
    pub fn store_args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.store_args.extend(args.map(str::to_owned));
        self
    }

    /// Puts all processes on this loopback address. It does not combine with [`Self::faulty`], whose links are on
    /// 127.0.0.1.
    pub fn loopback(mut self, ip: IpAddr) -> Self {
        self.loopback = ip;
        self
    }

    /// Lets the test control the masters' disks and clocks, and the links between masters and from clients to masters:
    /// see [`Cluster::faulty`] and [`Cluster::links`].
    pub fn faulty(mut self) -> Self {
        self.faulty = true;
        self
    }

    /// Does the same as [`Self::faulty`], and adds the links between stores and masters and between clients and stores.
    pub fn store_links(mut self) -> Self {
        self.store_links = true;
        self.faulty()
    }

    /// Does the same as [`Self::faulty`], and makes each master keep a journal of its files: see [`Cluster::journal`].
    pub fn journals(mut self) -> Self {
        self.journals = true;
        self.faulty()
    }

    /// Gives each process certificates, so that TLS is required: see [`Cluster::certificates`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Lets the memory of each store outlive its process.
    pub fn keeps_memory(mut self) -> Self {
        self.keeps_memory = true;
        self
    }

    /// Reserves ports and directories without starting any process.
    pub fn prepare(self) -> Cluster {
        let dir = tempfile::Builder::new().prefix("mc-test-").tempdir().expect("a temporary directory");
        let mut ports = Ports::on(self.loopback);
        let mut addresses = |n| (0..n).map(|_| ports.address()).collect::<Vec<String>>();
        let (clients, raft) = (addresses(self.masters), addresses(self.masters));
        let (master_http, store_data) = (addresses(self.masters), addresses(self.stores));
        let store_http = addresses(self.stores);
        let certificates = self.tls.then(|| Certificates::new(dir.path().join("tls")));
        let network = certificates.as_ref().map_or_else(TcpNetwork::shared, |some| some.network(ADMIN));
        let process = |role: &str, n: usize, flags: &[(&str, &str)], more: &[String]| {
            let name = format!("{role} {}", n + 1);
            let file = name.replace(' ', "-");
            let data_dir = dir.path().join(&file);
            let mut args: Vec<OsString> = vec![role.into(), "--exit-on-stdin-eof".into()];
            args.extend(["--data-dir".into(), data_dir.into()]);
            args.extend(flags.iter().flat_map(|(name, value)| [OsString::from(name), value.into()]));
            if let Some(certificates) = &certificates {
                args.extend(["--tls-dir".into(), certificates.of(&format!("{role}/{file}")).into()]);
            }
            args.extend(more.iter().map(OsString::from));
            Process::new(name, args, self.env.clone(), dir.path().join(format!("{file}.log")))
        };
        let peers = raft.join(",");
        let masters = (0..self.masters).map(|n| {
            let mut flags = vec![
                ("--listen", &*clients[n]),
                ("--raft-listen", &raft[n]),
                ("--http-listen", &master_http[n]),
            ];
            let mut more = self.master_args.clone();
            match self.masters {
                1 => more.push("--single".to_owned()),
                _ => flags.push(("--peers", &peers)),
            }
            process("master", n, &flags, &more)
        });
        let list = clients.join(",");
        let memory = self.keeps_memory.then(|| {
            let prefix = tempfile::Builder::new().prefix("mc-test-").tempdir_in("/dev/shm");
            prefix.expect("a temporary directory in memory")
        });
        let stores = (0..self.stores).map(|n| {
            let flags = [
                ("--listen", &*store_data[n]),
                ("--http-listen", &store_http[n]),
                ("--masters", &list),
                ("--segment", &self.segment),
            ];
            let mut more = self.store_args.clone();
            if let Some(memory) = &memory {
                let dir = memory.path().join(format!("store-{}", n + 1));
                more.extend(["--segment-dir".to_owned(), dir.display().to_string()]);
            }
            process("store", n, &flags, &more)
        });
        let mut masters: Vec<Process> = masters.collect();
        let mut stores: Vec<Process> = stores.collect();
        let faulty = self.faulty.then(|| {
            let stores_behind_proxies: &[String] = if self.store_links { &store_data } else { &[] };
            let links = Links::new(&raft, &clients, stores_behind_proxies);
            if self.store_links {
                for (n, store) in stores.iter_mut().enumerate() {
                    let faulty = Faulty::new(&dir.path().join(format!("store-{}.faults", n + 1)));
                    faulty.routes(&links.store_routes(&clients));
                    store.add_env(faulty.env());
                    store.add_args(["--advertise", &STORES_AT.to_string()]);
                }
            }
            let faulty = masters.iter_mut().enumerate().map(|(n, master)| {
                let faulty = Faulty::new(&dir.path().join(format!("master-{}.faults", n + 1)));
                faulty.routes(&links.routes(n, &raft));
                if self.journals {
                    master.add_env(faulty.journal_env(&dir.path().join(format!("master-{}.journal", n + 1))));
                } else {
                    master.add_env(faulty.env());
                }
                faulty
            });
            (faulty.collect(), links)
        });
        Cluster {
            masters,
            stores,
            clients,
            raft,
            master_http,
            store_data,
            store_http,
            faulty,
            certificates,
            network,
            ports,
            dir,
            memory,
        }
    }

    /// Starts everything and waits until a master leads and every store is mounted.
    pub async fn start(self) -> Cluster {
        let mut cluster = self.prepare();
        cluster.masters.iter_mut().chain(&mut cluster.stores).for_each(Process::start);
        cluster.ready().await;
        cluster
    }
}

impl Cluster {
    /// Returns the settings of three masters and one store that lends 256 MiB.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            masters: 3,
            stores: 1,
            segment: "256mb".to_owned(),
            env: Vec::new(),
            master_args: Vec::new(),
            store_args: Vec::new(),
            loopback: Ipv4Addr::LOCALHOST.into(),
            faulty: false,
            journals: false,
            store_links: false,
            tls: false,
            keeps_memory: false,
        }
    }

    /// Returns the directory in which the processes keep their data and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the directory in which a store keeps its memory.
    ///
    /// # Panics
    /// If it keeps none.
    pub fn memory_dir(&self, store: usize) -> PathBuf {
        let memory = self.memory.as_ref().expect("a cluster that keeps memory");
        memory.path().join(format!("store-{}", store + 1))
    }

    /// Returns the data directory of one master.
    pub fn master_dir(&self, master: usize) -> PathBuf {
        self.dir.path().join(self.masters[master].name().replace(' ', "-"))
    }

    /// Returns the journal of one master's files, for [`crate::Power`], in a cluster built with
    /// [`ClusterBuilder::journals`].
    pub fn journal(&self, master: usize) -> PathBuf {
        self.dir.path().join(format!("{}.journal", self.masters[master].name().replace(' ', "-")))
    }

    /// Returns the client address of one master.
    pub fn master_address(&self, master: usize) -> &str {
        &self.clients[master]
    }

    /// Returns the client addresses of all masters, in the form that `--masters` takes.
    pub fn addresses(&self) -> String {
        self.clients.join(",")
    }

    /// Gives stopped masters new addresses for their next start, and lists of peers that contain these. All other
    /// processes keep the lists that they were started with.
    pub fn relocate(&mut self, masters: &[usize]) {
        for &n in masters {
            for addresses in [&mut self.clients, &mut self.raft, &mut self.master_http] {
                addresses[n] = self.ports.address();
            }
        }
        let peers = self.raft.join(",");
        for &n in masters {
            let flags = [
                ("--listen", &self.clients[n]),
                ("--raft-listen", &self.raft[n]),
                ("--http-listen", &self.master_http[n]),
                ("--peers", &peers),
            ];
            for (flag, value) in flags {
                self.masters[n].set_arg(flag, value);
            }
        }
    }

    /// Returns the Raft address of one master, in the form that `--peers` takes.
    pub fn master_raft(&self, master: usize) -> &str {
        &self.raft[master]
    }

    /// Returns the HTTP address of one master.
    pub fn master_http(&self, master: usize) -> &str {
        &self.master_http[master]
    }

    /// Returns the data address of one store.
    pub fn store_address(&self, store: usize) -> &str {
        &self.store_data[store]
    }

    /// Returns the HTTP address of one store.
    pub fn store_http(&self, store: usize) -> &str {
        &self.store_http[store]
    }

    /// Returns the control of one master's disk and clocks.
    ///
    /// # Panics
    /// When the cluster was not built with [`ClusterBuilder::faulty`].
    pub fn faulty(&self, master: usize) -> &Faulty {
        &self.faulty.as_ref().expect("a cluster built to be faulty").0[master]
    }

    /// Returns the control of the links between masters, and from clients to masters.
    ///
    /// # Panics
    /// When the cluster was not built with [`ClusterBuilder::faulty`].
    pub fn links(&self) -> &Links {
        &self.faulty.as_ref().expect("a cluster built to be faulty").1
    }

    /// Returns the settings of a client that caches nothing, so that all it reads comes from the pool.
    pub fn client_builder(&self) -> Builder {
        // Most tests are about what the network does to bytes, so none goes past it.
        let builder = Client::builder()
            .masters(self.addresses())
            .local_cache(mc_client::ByteSize(0))
            .shared_memory(mc_client::ShmAccess::Off);
        builder.network(match &self.faulty {
            Some((_, links)) => links.network(self.network.clone()),
            None => self.network.clone(),
        })
    }

    /// The network of the tests themselves, past all links.
    pub fn network(&self) -> &Arc<dyn Network> {
        &self.network
    }

    /// Returns the certificates of a pool that was built with [`ClusterBuilder::tls`]. Its tests are an admin unless they say
    /// otherwise.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Connects a client that caches nothing.
    pub async fn client(&self) -> Client {
        let client = self.client_builder().connect().await.expect("settings of a client");
        assert!(client.connected(Duration::from_secs(60)).await, "a client found no leader in a minute");
        client
    }

    /// Asks one master for its status; returns `None` if it does not answer within half a second.
    pub async fn status(&self, master: usize) -> Option<v1::StatusReply> {
        let mut client = by_hand::master_over(self.network.as_ref(), &self.clients[master]);
        let asked = client.status(v1::StatusRequest { caller: Some(by_hand::caller()) });
        Some(tokio::time::timeout(Duration::from_millis(500), asked).await.ok()?.ok()?.into_inner())
    }

    /// Returns one value of a master's metrics, named with its labels if it has any; `None` if the master does not
    /// answer or has no such metric.
    pub async fn metric(&self, master: usize, name: &str) -> Option<f64> {
        let (_, metrics) = http_get(&self.master_http[master], "/metrics").await.ok()?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.parse().ok()
    }

    /// Returns the sum of a metric of a master over its labels; 0 if the master does not answer or has no such metric.
    pub async fn metric_sum(&self, master: usize, name: &str) -> f64 {
        self.metric_sums(master, [name]).await[0]
    }

    /// [`Self::metric_sum`] of metrics that were read in one answer, so that they are of one moment.
    pub async fn metric_sums<const N: usize>(&self, master: usize, names: [&str; N]) -> [f64; N] {
        let Ok((_, metrics)) = http_get(&self.master_http[master], "/metrics").await else { return [0.0; N] };
        names.map(|name| sum_of(&metrics, name))
    }

    /// [`Self::metric_sum`] of a store.
    pub async fn store_metric_sum(&self, store: usize, name: &str) -> f64 {
        let answer = http_get(&self.store_http[store], "/metrics").await;
        answer.map_or(0.0, |(_, metrics)| sum_of(&metrics, name))
    }

    /// Waits until a master outside of any cluster reports, at `/readyz` and in its log, what it waits for. `says`
    /// judges that text.
    pub async fn master_waits(&self, master: usize, what: &str, says: impl Fn(&str) -> bool) {
        let process = &self.masters[master];
        until(format!("{} waits: {what}", process.name()), async || {
            let logged = process.output().lines().any(|line| line.contains("waiting: ") && says(line));
            let answer = http_get(&self.master_http[master], "/readyz").await;
            logged && answer.is_ok_and(|(code, why)| code == 503 && says(&why))
        })
        .await;
    }

    /// Removes the data of a stopped master, so that its next start is that of a new master.
    pub fn wipe_master(&mut self, master: usize) {
        let process = &mut self.masters[master];
        assert!(!process.is_running(), "{} runs on the disk that is taken", process.name());
        let data = self.master_dir(master);
        std::fs::remove_dir_all(&data)
            .unwrap_or_else(|err| panic!("cannot remove {}: {err}", data.display()));
    }

    /// Returns the master that leads; of several that say so, the one with the highest term.
    pub async fn find_leader(&self) -> Option<usize> {
        let answers = futures::future::join_all((0..self.masters.len()).map(|n| self.status(n))).await;
        let leading = answers.into_iter().enumerate().filter_map(|(n, status)| Some((n, status?)));
        let leading = leading.filter(|(_, status)| status.role == "leader");
        leading.max_by_key(|(_, status)| status.term).map(|(n, _)| n)
    }

    /// Waits until a master leads, and returns it.
    pub async fn leader(&self) -> usize {
        let mut found = None;
        until("a master leads", async || {
            found = self.find_leader().await;
            found.is_some()
        })
        .await;
        found.expect("it was found")
    }

    /// Returns a master that does not lead.
    pub async fn follower(&self) -> usize {
        (self.leader().await + 1) % self.masters.len()
    }

    /// Waits until a master leads and every running process says that it is ready.
    pub async fn ready(&mut self) {
        until("a master leads", async || {
            for process in self.masters.iter_mut().chain(&mut self.stores) {
                process.assert_not_ended();
            }
            self.find_leader().await.is_some()
        })
        .await;
        let running = |processes: &mut [Process]| {
            (0..processes.len()).filter(|n| processes[*n].is_running()).collect::<Vec<_>>()
        };
        let masters = running(&mut self.masters).into_iter().map(|n| self.master_http[n].clone());
        let mut ask: Vec<String> = masters.collect();
        ask.extend(running(&mut self.stores).into_iter().map(|n| self.store_http[n].clone()));
        for address in ask {
            until(format!("{address} is ready"), async || is_ready(&address).await).await;
        }
        if self.certificates.is_some() {
            // Access settings and audit logs need it.
            until("the cluster version is logged", async || {
                let leader = self.find_leader().await;
                let Some(leader) = leader else { return false };
                self.status(leader).await.is_some_and(|status| status.cluster_version > 0)
            })
            .await;
        }
    }

    /// Returns the id of a store, as it has said at its last start.
    pub fn store_id(&self, store: usize) -> StoreId {
        let said = self.stores[store].output();
        let (_, id) = said.rsplit_once("starting store=").expect("it says its id");
        id.split_whitespace().next().expect("an id").parse().expect("in hexadecimal")
    }

    /// Returns a store's answer at `/status`.
    pub async fn store_status(&self, store: usize) -> serde_json::Value {
        let (_, body) = http_get(&self.store_http[store], "/status").await.expect("the store answers");
        serde_json::from_str(&body).expect("status is JSON")
    }
}

/// Sums a metric over its labels.
fn sum_of(metrics: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit_once(' ')?.1.parse::<f64>().ok())?
    };
    metrics.lines().filter_map(value).sum()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for process in self.masters.iter().chain(&self.stores) {
            let output = process.output();
            let lines: Vec<&str> = output.lines().collect();
            let tail = &lines[lines.len().saturating_sub(TAIL)..];
            eprintln!("---- {} ----\n{}", process.name(), tail.join("\n"));
        }
        // Keep the rest for a person who wants to see it.
        if std::env::var_os("MC_KEEP").is_some() {
            self.dir.disable_cleanup(true);
            eprintln!("kept in {}", self.dir.path().display());
        }
    }
}
