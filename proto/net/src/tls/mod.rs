//! TLS 1.3 on every port. Both ends show certificates of the same authority, in which a [`SpiffeId`] says who they are: neither
//! addresses nor host names matter.

mod accept;
mod error;
mod files;
mod find;
mod handshakes;
mod peer;
mod tolerated;
mod verify;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use http::HeaderValue;
use mc_types::{SpiffeId, TlsLevel};
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub(crate) use accept::{Accepted, HANDSHAKE};
pub use error::TlsError;
pub use files::CredentialPaths;
use files::Files;
use handshakes::Handshakes;
pub use peer::Peer;
pub(crate) use peer::validity_left;
use tolerated::Tolerated;
pub use verify::Server;
use verify::{Roots, VerifyServer};

/// Certificates of a process, and how far it insists on TLS. Connections take what is current when they are made.
pub struct Tls {
    paths: CredentialPaths,
    current: ArcSwap<Current>,
    level: AtomicU8,
    level_to_stores: AtomicU8,
    /// Time after which a connection is let go.
    connection_age: ArcSwap<Duration>,
    /// Whether the token is shown to masters, which then are called by TLS alone. Decided once, so that a token never meets a
    /// plain connection: neither one that is open, nor one that is made while the token waits to be sent.
    shows_token: OnceLock<bool>,
    looked: Mutex<Looked>,
    failed_reloads: AtomicU64,
    tolerated: Tolerated,
    handshakes: Handshakes,
}

/// Last look at the files.
struct Looked {
    at: Instant,
    /// Why the files could not be used.
    failure: Option<String>,
}

/// Certificates that are in use.
struct Current {
    files: Files,
    id: Option<SpiffeId>,
    expires: Option<SystemTime>,
    /// The value of the header that shows the token.
    bearer: Option<HeaderValue>,
    server: Arc<ServerConfig>,
    to_masters: Arc<ClientConfig>,
    to_stores: Arc<ClientConfig>,
    to_own_stores: Arc<ClientConfig>,
}

impl Tls {
    /// Time between two looks at whether the files have changed.
    pub const LOOK_EVERY: Duration = Duration::from_secs(5);
    /// Greatest age of a connection until [`Self::set_connection_age`].
    const CONNECTION_AGE: Duration = Duration::from_secs(12 * 3600);

    /// Reads the credentials in a folder, as [`Self::of_files`] does.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn load(dir: &Path) -> Result<Arc<Self>, TlsError> {
        Self::of_files(CredentialPaths::in_dir(dir))
    }

    /// Reads the authorities that are trusted, this process' own certificate and its key, and its token. A process with neither
    /// can connect and is anonymous. TLS is required until [`Self::set_level`].
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn of_files(paths: CredentialPaths) -> Result<Arc<Self>, TlsError> {
        let current = ArcSwap::from_pointee(Current::of(Files::read(&paths)?, &paths)?);
        let [level, level_to_stores] = [(); 2].map(|()| AtomicU8::new(TlsLevel::Require as u8));
        let (failed_reloads, tolerated) = (AtomicU64::new(0), Tolerated::default());
        let looked = Mutex::new(Looked { at: Instant::now(), failure: None });
        let shows_token = OnceLock::new();
        Ok(Arc::new(Self {
            paths,
            current,
            level,
            level_to_stores,
            connection_age: ArcSwap::from_pointee(Self::CONNECTION_AGE),
            shows_token,
            looked,
            failed_reloads,
            tolerated,
            handshakes: Handshakes::default(),
        }))
    }

    /// Loads the credentials in the folder `named`, else those that the environment names, else those in
    /// `mc-data/tls` if it has some; `None` where there are none, or the folder is called `none`.
    ///
    /// # Errors
    /// [`TlsError`], also when a folder that was named has no certificates.
    pub fn find(named: Option<&Path>) -> Result<Option<Arc<Self>>, TlsError> {
        find::paths(named, |name| std::env::var_os(name))?.map(Self::of_files).transpose()
    }

    /// Loads credentials as [`Self::find`] does, but for the token, which is in this file.
    ///
    /// # Errors
    /// [`TlsError`], also when the file is not there, or no authority is found by which masters are known.
    pub fn find_with_token(named: Option<&Path>, token: &Path) -> Result<Arc<Self>, TlsError> {
        let paths = find::paths(named, |name| std::env::var_os(name))?.ok_or(TlsError::NoAuthority)?;
        Self::of_files(CredentialPaths { token: token.to_owned(), needs_token: true, ..paths })
    }

    /// Reads the files again, and uses them from now on if they have changed and are in order; returns whether they had
    /// changed. Connections that are open keep what they have.
    ///
    /// # Errors
    /// [`TlsError`]: the certificates before stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let reloaded = self.reload_files();
        if reloaded.is_err() {
            self.failed_reloads.fetch_add(1, Ordering::Relaxed);
        }
        reloaded
    }

    fn reload_files(&self) -> Result<bool, TlsError> {
        let files = Files::read(&self.paths)?;
        if files == self.current.load().files {
            return Ok(false);
        }
        let (before, next) = (self.current.load_full(), Current::of(files, &self.paths)?);
        let changed = || TlsError::OtherIdentity {
            dir: self.dir().to_owned(),
            before: before.id.clone().map_or_else(|| "none".to_owned(), |id| id.to_string()),
            next: next.id.clone().map_or_else(|| "none".to_owned(), |id| id.to_string()),
        };
        // A process that has become another one, or nobody while its files are replaced, would be a stranger to all others.
        let same = |before: &SpiffeId, next: &SpiffeId| {
            before.trust() == next.trust() && before.role() == next.role()
        };
        let is_lost =
            before.id.as_ref().is_some_and(|id| !next.id.as_ref().is_some_and(|next| same(id, next)));
        if is_lost {
            return Err(changed());
        }
        self.current.store(Arc::new(next));
        Ok(true)
    }

    /// Reads the files again if they have changed, and logs what came of it: a failure once, until it is another one.
    pub fn look(&self) {
        let dir = self.dir().display();
        let failure = match self.reload() {
            Ok(true) => {
                let id = self.id().map(|id| id.to_string());
                tracing::info!(id, %dir, "new certificates are used for connections from now on");
                None
            }
            Ok(false) => None,
            Err(error) => Some(error.to_string()),
        };
        let mut looked = self.looked.lock();
        if let Some(why) = &failure
            && looked.failure != failure
        {
            tracing::error!(%dir, "the new certificates can't be used, and those before stay in use: {why}");
        }
        *looked = Looked { at: Instant::now(), failure };
    }

    /// [`Self::look`], if the last one is a while ago. Processes that only connect look when they do.
    fn look_if_due(&self) {
        if self.looked.lock().at.elapsed() > Self::LOOK_EVERY {
            self.look();
        }
    }

    /// Folder of the certificates.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.paths.dir()
    }

    /// Header that shows this process' token to a master; `None` without a token, and where [`Self::set_level`] came first.
    #[must_use]
    pub fn bearer(&self) -> Option<HeaderValue> {
        let bearer = self.current.load().bearer.clone()?;
        self.shows_token.get_or_init(|| true).then_some(bearer)
    }

    /// Identity in this process' own certificate; `None` without one.
    #[must_use]
    pub fn id(&self) -> Option<SpiffeId> {
        self.current.load().id.clone()
    }

    /// Calls `read` with the identity that [`Self::id`] returns, and copies nothing.
    pub(crate) fn with_id<R>(&self, read: impl FnOnce(Option<&SpiffeId>) -> R) -> R {
        read(self.current.load().id.as_ref())
    }

    /// Last second at which this process' own certificate is valid; `None` without one.
    #[must_use]
    pub fn expires(&self) -> Option<SystemTime> {
        self.current.load().expires
    }

    /// Number of reloads that failed: the files are there and can't be used.
    #[must_use]
    pub fn failed_reloads(&self) -> u64 {
        self.failed_reloads.load(Ordering::Relaxed)
    }

    /// Number of calls and connections of peers without an identity that were let in, and that the level `require` would refuse.
    #[must_use]
    pub fn tolerated(&self) -> u64 {
        self.tolerated.count()
    }

    /// Hosts of those that were let in within the last minute, the latest first.
    #[must_use]
    pub fn tolerated_lately(&self) -> Vec<IpAddr> {
        self.tolerated.lately()
    }

    /// Counts a peer without an identity that was let in.
    pub fn tolerate(&self, host: Option<IpAddr>) {
        self.tolerated.note(host);
    }

    /// How far this process insists on TLS.
    #[must_use]
    pub fn level(&self) -> TlsLevel {
        TlsLevel::ALL[usize::from(self.level.load(Ordering::Relaxed))]
    }

    /// Sets how far it insists, for connections to come. A process that has shown its token keeps to `require`, and one that
    /// was set to a lower level shows none.
    pub fn set_level(&self, level: TlsLevel) {
        if level == TlsLevel::Require || !self.shows_token.get_or_init(|| false) {
            self.level.store(level as u8, Ordering::Relaxed);
        }
    }

    /// How far it insists on TLS when it connects to a store, whose cluster may not have come that far.
    #[must_use]
    pub fn level_to_stores(&self) -> TlsLevel {
        TlsLevel::ALL[usize::from(self.level_to_stores.load(Ordering::Relaxed))]
    }

    /// Sets how far it insists on TLS when it connects to stores.
    pub fn set_level_to_stores(&self, level: TlsLevel) {
        self.level_to_stores.store(level as u8, Ordering::Relaxed);
    }

    /// Time after which connections to come are let go.
    #[must_use]
    pub fn connection_age(&self) -> Duration {
        **self.connection_age.load()
    }

    /// [`Self::connection_age`], or up to a quarter less: connections that were made at one moment don't end at one.
    #[must_use]
    pub fn random_connection_age(&self) -> Duration {
        self.connection_age().mul_f64(rand::random_range(0.75..=1.0))
    }

    /// Sets the time after which connections to come are let go.
    pub fn set_connection_age(&self, age: Duration) {
        self.connection_age.store(Arc::new(age));
    }

    /// Computes the handshakes with masters, and those of accepted connections, on the threads of `runtime`, which needs no drivers
    /// and has as many threads as handshakes may take cores. Else they are computed on the threads that use the connections.
    /// Only the first call counts.
    pub fn shake_hands_on(&self, runtime: Handle) {
        self.handshakes.set(runtime);
    }

    /// Secures a connection to a process, which must have a certificate of the kind that `server` says.
    ///
    /// # Errors
    /// The system's error, or one of kind `InvalidData` that says what is wrong with its certificate.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        server: Server,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        self.look_if_due();
        let connector = TlsConnector::from(self.current.load().client(server));
        self.handshakes.run(async move { connector.connect(no_name(), stream).await }).await?
    }

    /// Secures a connection that was accepted.
    ///
    /// # Errors
    /// The system's error, or one of kind `InvalidData` that says what is wrong with the peer's certificate.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        let config = self.server();
        let (stream, session) = self.shake_hands(stream).await?;
        // The session that the acceptor begins gives way to the one whose handshake is done.
        TlsAcceptor::from(config).accept_with(stream, |begun| *begun = session).await
    }

    /// Does the handshake of a connection that was accepted.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub(crate) async fn shake_hands(&self, stream: TcpStream) -> io::Result<(TcpStream, ServerConnection)> {
        let session = ServerConnection::new(self.server()).map_err(io::Error::other)?;
        self.handshakes.accept(stream, session).await
    }

    /// Begins a connection to a store, for callers that move its bytes themselves.
    pub(crate) fn client_session(&self, server: Server) -> io::Result<ClientConnection> {
        self.look_if_due();
        ClientConnection::new(self.current.load().client(server), no_name()).map_err(io::Error::other)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.current.load().server.clone()
    }
}

impl Current {
    fn of(files: Files, paths: &CredentialPaths) -> Result<Self, TlsError> {
        let dir = paths.dir();
        let provider = Arc::new(provider());
        let id = files.id(paths)?;
        let roots = Roots::of(&files, paths, &provider)?;
        let invalid = |source| TlsError::Pair { dir: dir.to_owned(), source };
        let bearer = files.token(paths)?.map(|token| {
            let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.secret()));
            if let Ok(bearer) = &mut bearer {
                bearer.set_sensitive(true);
            }
            bearer.expect("a token of hexadecimal digits")
        });
        let pair = files.pair(paths)?;
        let expires = pair.as_ref().and_then(|(chain, _)| peer::not_after(&chain[0]));
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(invalid)?
            .with_client_cert_verifier(roots.clients(dir, id.as_ref().map(|id| id.trust()))?);
        let mut server = match &pair {
            Some((chain, key)) => server.with_single_cert(chain.clone(), key.clone_key()).map_err(invalid)?,
            // Every handshake with it fails.
            None => server.with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new())),
        };
        // Each connection proves its certificate, so there is nothing to judge again.
        server.send_tls13_tickets = 0;
        let client = |server| {
            let trust = id.as_ref().map(|id| id.trust().to_owned());
            let verifier = VerifyServer { roots: roots.clone(), server, trust };
            let client = ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(invalid)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier));
            let mut client = match &pair {
                Some((chain, key)) => {
                    client.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(invalid)?
                }
                None => client.with_no_client_auth(),
            };
            client.enable_sni = false;
            client.resumption = rustls::client::Resumption::disabled();
            Ok(Arc::new(client))
        };
        Ok(Self {
            server: Arc::new(server),
            to_masters: client(Server::Master)?,
            to_stores: client(Server::Store)?,
            to_own_stores: client(Server::OwnStore)?,
            files,
            id,
            expires,
            bearer,
        })
    }

    fn client(&self, server: Server) -> Arc<ClientConfig> {
        match server {
            Server::Master => &self.to_masters,
            Server::Store => &self.to_stores,
            Server::OwnStore => &self.to_own_stores,
        }
        .clone()
    }
}

/// Returns the cryptography. AES with 128 bits comes first: it encrypts faster than with 256, and goes with SHA-256, for which
/// processors have instructions.
fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// TLS has failed on a connection whose bytes its user moves.
#[derive(Debug, thiserror::Error)]
#[error("TLS has failed: {0}")]
pub(crate) struct TlsFailed(pub(crate) rustls::Error);

/// Whether a handshake failed because the other end speaks something else. A refused certificate does not count: a fallback would
/// send secrets in the clear.
pub(crate) fn speaks_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref();
    let by_rustls = inner.and_then(|error| error.downcast_ref::<rustls::Error>());
    let by_us = inner.and_then(|error| error.downcast_ref::<TlsFailed>()).map(|error| &error.0);
    match (by_rustls.or(by_us), error.kind()) {
        (Some(error), _) => matches!(error, rustls::Error::InvalidMessage(_)),
        (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            true
        }
        (None, _) => false,
    }
}

/// The name of the server that the handshake is for. It is neither sent nor compared.
fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("dir", &self.dir()).field("level", &self.level()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
