use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mc_console::{View, connect};
use mc_index::Settings;
use mc_types::ByteSize;
use tempfile::TempDir;

use super::ChildrenError;
use super::certificates::Certificates;
use super::ports::Ports;
use super::process::Process;

/// Security of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// No certificates: everything in the clear.
    #[default]
    Plain,
    /// TLS for all calls, and bytes of objects in the clear, with proofs of grants.
    Proofs,
    /// TLS for everything.
    Tls,
}

impl Security {
    /// Its name in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Proofs => "proofs",
            Self::Tls => "tls",
        }
    }

    /// TLS if `tls` is set.
    #[must_use]
    pub fn tls(tls: bool) -> Self {
        if tls { Self::Tls } else { Self::Plain }
    }
}

/// Number and sizes of the processes to start.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of masters; one master forms a cluster of its own.
    pub masters: usize,
    /// Number of stores.
    pub stores: usize,
    /// Memory that each store lends.
    pub segment: ByteSize,
    /// Parent of the directory for data and logs; `None` is the system's directory for temporary files.
    pub data_dir: Option<PathBuf>,
    /// Certificates of the processes, and what TLS is for.
    pub security: Security,
    /// Whether the memory of a store outlives its process, in /dev/shm.
    pub keeps_memory: bool,
}

impl Shape {
    /// Three masters and two stores that together hold `bytes` and a third more, so that puts are not refused for
    /// space.
    pub fn three_and_two(bytes: u64) -> Self {
        let each = (bytes + bytes / 3) / 2;
        let segment = ByteSize(each.next_multiple_of(64 << 20));
        Self {
            masters: 3,
            stores: 2,
            segment,
            data_dir: None,
            security: Security::Plain,
            keeps_memory: false,
        }
    }

    /// Three masters and two stores that evict when objects take more than `bytes`.
    pub fn three_and_two_full_of(bytes: u64) -> Self {
        Self { segment: ByteSize(segment_bytes(bytes.div_ceil(2))), ..Self::three_and_two(0) }
    }
}

/// Returns the bytes of a segment whose high watermark lies at `bytes`.
pub fn segment_bytes(bytes: u64) -> u64 {
    let high = Settings::default().eviction_high_watermark;
    high.whole(bytes).next_multiple_of(mc_types::ALLOCATION_ALIGN)
}

/// A master process with its addresses.
#[derive(Debug)]
pub struct Master {
    /// The process.
    pub process: Process,
    /// Address for clients and stores.
    pub client_address: String,
    /// Address of its metrics and pages.
    pub http_address: String,
}

/// A store process with its addresses.
#[derive(Debug)]
pub struct Store {
    /// The process.
    pub process: Process,
    /// Address of its memory.
    pub address: String,
    /// Address of its metrics and pages.
    pub http_address: String,
}

/// A running pool.
#[derive(Debug)]
pub struct Cluster {
    /// The masters, in the order of their start.
    pub masters: Vec<Master>,
    /// The stores, in the order of their start.
    pub stores: Vec<Store>,
    certificates: Certificates,
    /// Directory of data and logs. It is declared after the children, so it is dropped, and removed, after them. It is
    /// kept when something went wrong.
    dir: TempDir,
    /// Directory of the stores' memory.
    _memory: Option<TempDir>,
}

impl Cluster {
    /// Starts the processes, which then form a pool; [`Self::wait_ready`] waits for that. This program's further connections
    /// are those of an admin of this pool.
    pub fn start(shape: &Shape) -> Result<Self, ChildrenError> {
        let dir = directory(shape.data_dir.as_deref())?;
        let certificates = Certificates::new(&dir.path().join("tls"), shape.security != Security::Plain)?;
        connect::use_tls_dir(certificates.of("admin/bench")?);
        let mut ports = Ports::default();
        let mut address = || ports.next_address().ok_or(ChildrenError::NoPort);
        let mut plan = Vec::new();
        for _ in 0..shape.masters {
            plan.push((address()?, address()?, address()?));
        }
        let peers: Vec<_> = plan.iter().map(|(_, raft, _)| raft.clone()).collect();

        let mut masters = Vec::new();
        for (at, (client, raft, http)) in plan.into_iter().enumerate() {
            let name = format!("master {}", at + 1);
            let mut args: Vec<OsString> = vec!["master".into()];
            match peers.len() {
                1 => args.push("--single".into()),
                _ => args.extend(["--peers".into(), peers.join(",").into()]),
            }
            args.extend(["--listen".into(), client.clone().into(), "--raft-listen".into(), raft.into()]);
            args.extend(["--http-listen".into(), http.clone().into()]);
            args.extend(["--log-sync".into(), "fdatasync".into(), "--exit-on-stdin-eof".into()]);
            args.extend(["--data-dir".into(), dir.path().join(format!("master-{}", at + 1)).into()]);
            args.extend(["--tls-dir".into(), certificates.of(&format!("master/master-{}", at + 1))?.into()]);
            let log = dir.path().join(format!("master-{}.log", at + 1));
            let process = Process::start(name, args, log)?;
            masters.push(Master { process, client_address: client, http_address: http });
        }

        let clients: Vec<_> = masters.iter().map(|m| m.client_address.clone()).collect();
        let memory = shape.keeps_memory.then(|| directory(Some(Path::new("/dev/shm")))).transpose()?;
        let mut stores = Vec::new();
        for at in 1..=shape.stores {
            let (data, http) = (address()?, address()?);
            let mut args: Vec<OsString> = vec!["store".into()];
            args.extend(["--segment".into(), shape.segment.to_string().into()]);
            args.extend(["--masters".into(), clients.join(",").into(), "--exit-on-stdin-eof".into()]);
            args.extend([
                "--listen".into(),
                data.clone().into(),
                "--http-listen".into(),
                http.clone().into(),
            ]);
            args.extend(["--data-dir".into(), dir.path().join(format!("store-{at}")).into()]);
            args.extend(["--tls-dir".into(), certificates.of(&format!("store/store-{at}"))?.into()]);
            if shape.security == Security::Proofs {
                args.extend(["--data-encryption".into(), "off".into()]);
            }
            if let Some(memory) = &memory {
                args.extend(["--segment-dir".into(), memory.path().join(format!("store-{at}")).into()]);
            }
            let log = dir.path().join(format!("store-{at}.log"));
            let process = Process::start(format!("store {at}"), args, log)?;
            stores.push(Store { process, address: data, http_address: http });
        }
        Ok(Self { masters, stores, certificates, dir, _memory: memory })
    }

    /// Client addresses of all masters, in the form of `--masters`.
    pub fn addresses(&self) -> String {
        self.masters.iter().map(|m| m.client_address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Directory of data and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the folder with the certificates of a process of this program, such as `store/store`, in the form of `--tls-dir`.
    pub fn tls_dir(&self, identity: &str) -> Result<PathBuf, ChildrenError> {
        self.certificates.of(identity)
    }

    /// Keeps data and logs after the run, to find out what went wrong.
    pub fn keep_logs(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// Keeps the logs, and adds to `error` their directory and the children that are no longer running.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.keep_logs();
        let ended: Vec<_> = self
            .processes()
            .filter_map(|process| process.check_running().is_err().then(|| process.name().to_owned()))
            .collect();
        let ended =
            if ended.is_empty() { String::new() } else { format!("; not running: {}", ended.join(", ")) };
        let dir = self.dir().display();
        error.context(format!("the run failed (logs are kept in {dir}{ended})"))
    }

    /// Waits until one master leads, all masters answer, and every store is alive; returns that state.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<View, ChildrenError> {
        let outcome = self.until_ready(limit).await;
        if outcome.is_err() {
            self.keep_logs();
        }
        outcome
    }

    async fn until_ready(&mut self, limit: Duration) -> Result<View, ChildrenError> {
        let start = Instant::now();
        let admin = connect::admin(&self.addresses()).await?;
        loop {
            for process in self.processes() {
                process.check_running()?;
            }
            let view = View::of(&admin.status().await);
            let alive = view.stores.iter().filter(|s| s.is_alive()).count();
            let problem = view.problems.first().cloned().or_else(|| {
                (alive < self.stores.len())
                    .then(|| format!("{alive} of {} stores are alive", self.stores.len()))
            });
            let Some(waiting_for) = problem else { return Ok(view) };
            if start.elapsed() > limit {
                return Err(ChildrenError::NotReady {
                    limit,
                    waiting_for,
                    logs: self.dir().to_owned(),
                    tail: self.masters.first().map(|m| m.process.log_tail()).unwrap_or_default(),
                });
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Returns the child master with this client address.
    pub fn master_at(&mut self, address: &str) -> Result<&mut Master, ChildrenError> {
        self.masters
            .iter_mut()
            .find(|m| m.client_address == address)
            .ok_or_else(|| ChildrenError::NotOurs { address: address.to_owned() })
    }

    /// Iterates over all child processes: the masters, then the stores.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.masters.iter_mut().map(|m| &mut m.process).chain(self.stores.iter_mut().map(|s| &mut s.process))
    }
}

fn directory(parent: Option<&Path>) -> Result<TempDir, ChildrenError> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let made = fs::create_dir_all(&parent)
        .and_then(|()| tempfile::Builder::new().prefix("mcctl-").tempdir_in(&parent));
    made.map_err(|why| ChildrenError::Directory { path: parent, why })
}
