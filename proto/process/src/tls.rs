use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_net::{Network, Tls, TlsError, TlsNetwork};
use mc_types::{ParseSpanError, Span, TlsLevel};
use metrics::{Counter, Gauge};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::metrics::Registry;

/// Niceness of the threads that compute handshakes, above that of the process: a busy one gets a third of what another busy thread
/// gets.
const HANDSHAKE_NICENESS: i32 = 5;

/// The flags of TLS, to flatten into a process' flags.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsOptions {
    /// Folder with this process' certificate (tls.crt, tls.key) and the authorities that it trusts (ca.crt); changed files are
    /// read within seconds, and on SIGHUP; `none` for plain connections [default: mc-data/tls if it has a ca.crt]
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// How far this process insists on TLS if it has certificates: allow (accept both, connect plain), prefer (accept both, connect
    /// by TLS where the other end has it), require [default: as far as the cluster (`mcctl security tls`); require while that is
    /// not known]
    #[arg(long, value_name = "LEVEL")]
    tls: Option<TlsLevel>,
    /// Time after which a process with certificates takes no more calls on a connection, so that its peer proves again who it is; a
    /// quarter less for some, so that they don't all come back at once. At least 1s. Calls under way end first
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = connection_age)]
    connection_age: Span,
    /// Say nothing about connections that are not encrypted
    #[arg(long)]
    pub insecure: bool,
}

fn connection_age(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: ParseSpanError| error.to_string())?;
    if span.0 >= Duration::from_secs(1) { Ok(span) } else { Err("a connection lasts 1s at least".to_owned()) }
}

impl TlsOptions {
    /// Returns the network of the process, by TLS if there are certificates.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn network(&self) -> Result<Arc<dyn Network>, TlsError> {
        let tls = Tls::find(self.tls_dir.as_deref())?;
        if let Some(tls) = &tls {
            tls.set_level(self.fixed_level().unwrap_or(TlsLevel::Require));
            tls.set_connection_age(self.connection_age.0);
        }
        Ok(TlsNetwork::shared(tls))
    }

    /// Returns how far the process insists on TLS whatever its cluster does; `None` if it follows the cluster.
    #[must_use]
    pub fn fixed_level(&self) -> Option<TlsLevel> {
        self.tls
    }

    /// Says at start who this process is, or that others can read along on the ports that it opens beyond loopback.
    pub fn say(&self, network: &dyn Network, beyond_loopback: bool) {
        match network.tls() {
            Some(tls) => {
                let id = tls.id().map(|id| id.to_string());
                tracing::info!(id, level = %tls.level(), dir = %tls.dir().display(), "connections use TLS");
            }
            None if beyond_loopback && !self.insecure => tracing::warn!(
                "connections are not encrypted and callers are not checked: keep these ports in a trusted network, or make \
                 certificates with `mcctl cert` (--insecure silences this line)"
            ),
            None => {}
        }
    }
}

/// Lets handshakes be computed on threads of their own, a quarter of the cores, behind all other work where there are too few cores
/// for all. The threads end with the process.
///
/// # Errors
/// When the system gives no threads.
pub fn shake_hands_apart(network: &Arc<dyn Network>) -> io::Result<()> {
    let Some(tls) = network.tls() else { return Ok(()) };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let give_way = || {
        // On Linux it is that of the calling thread. Without a lower priority handshakes only take more from the others.
        let _ = rustix::process::nice(HANDSHAKE_NICENESS);
    };
    let threads = Builder::new_multi_thread()
        .worker_threads((cores / 4).max(1))
        .thread_name("mc-tls")
        .on_thread_start(give_way)
        .build()?;
    tls.shake_hands_on(threads.handle().clone());
    // Its drop would end the threads, and panics in asynchronous code.
    std::mem::forget(threads);
    Ok(())
}

/// Keeps the certificates of `network` current: looks at the files every few seconds, and on SIGHUP.
pub async fn keep_certificates(network: Arc<dyn Network>) {
    // Without the signal, files are still looked at. It ends no process, whether there are certificates or not.
    let mut hangups = signal(SignalKind::hangup()).ok();
    loop {
        let hangup = async {
            match &mut hangups {
                Some(hangups) => hangups.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(Tls::LOOK_EVERY) => {}
            _ = hangup => {}
        }
        if let Some(tls) = network.tls() {
            tls.look();
        }
    }
}

/// Metrics of a process' certificates.
#[derive(Debug)]
pub struct TlsMetrics {
    level: Gauge,
    expires: Gauge,
    failed_reloads: Counter,
    tolerated: Counter,
}

impl TlsMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Self {
        Self {
            level: registry.gauge(
                "mc_tls_level",
                "How far this process insists on TLS: 0 without certificates, 1 allow, 2 prefer, 3 require",
                &[],
            ),
            expires: registry.gauge(
                "mc_tls_certificate_expiry_timestamp_seconds",
                "Time at which this process' certificate expires, in seconds since 1970; 0 without one",
                &[],
            ),
            failed_reloads: registry.counter(
                "mc_tls_failed_reloads_total",
                "Looks at changed certificates that could not be used; those before stay in use",
                &[],
            ),
            tolerated: registry.counter(
                "mc_tls_tolerated_peers_total",
                "Calls and data connections of peers without an identity that were let in, and that --tls require would refuse",
                &[],
            ),
        }
    }

    /// Shows the present values.
    pub fn show(&self, tls: Option<&Tls>) {
        let Some(tls) = tls else { return };
        self.level.set(f64::from(tls.level().number()));
        let expires = tls.expires().and_then(|expires| expires.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.expires.set(expires.unwrap_or_default().as_secs_f64());
        self.failed_reloads.absolute(tls.failed_reloads());
        self.tolerated.absolute(tls.tolerated());
    }
}
