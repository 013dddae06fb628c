//! The HTTP side of every process: health, metrics and status, and a client for tools and tests.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{self, HeaderValue, StatusCode, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Json, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use mc_net::{Connection, Greeting, Listener, Network, Room, Rules, TcpNetwork};

use crate::access::HttpAccess;
use crate::descriptors::descriptor_limit;

/// Time that open requests may take to end after the shutdown began.
const DRAIN: Duration = Duration::from_secs(1);
/// Time that a peer has to send the body of its request, as much as [`LARGEST_BODY`].
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Largest body in bytes.
const LARGEST_BODY: usize = 2 << 20;
/// Returns the most connections that HTTP gets of a process that may have `limit` descriptors: a sixteenth, within bounds.
pub fn most_connections(limit: usize) -> usize {
    (limit / 16).clamp(4, 2048)
}

type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;
type Status = Arc<dyn Fn() -> BoxFuture<'static, serde_json::Value> + Send + Sync>;

/// Returns the routes that every process has besides `/metrics`:
///
/// - `/livez`: 200 as long as the process answers at all; never depends on a quorum.
/// - `/readyz`: 200 when `ready` is `Ok`, else 503 with the reason as text.
/// - `/status`: the value that `status` returns, as JSON.
pub fn standard_routes<S, F>(
    ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    status: S,
) -> Router
where
    S: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = serde_json::Value> + Send + 'static,
{
    let ready: Ready = Arc::new(ready);
    let status: Status = Arc::new(move || Box::pin(status()));
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || {
                let ready = ready();
                async move {
                    match ready {
                        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
                    }
                }
            }),
        )
        .route(
            "/status",
            get(move || {
                let body = status();
                async move { Json(body.await) }
            }),
        )
}

/// Returns the answer of `/metrics`.
pub fn metrics_page(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Serves `router` on `listener` to callers that `access` admits, until `shutdown` ends, then for at most a second more. Open
/// requests get their answers within that time, and an idle connection can't hold up the process.
///
/// Each connection serves one request, and the number of connections is bounded ([`most_connections`]), so that idle
/// peers and scrapers keep no descriptors. A peer that takes an answer byte by byte is cut off at the end of `lifetime`.
pub async fn serve(
    listener: Listener,
    router: Router,
    access: HttpAccess,
    lifetime: Duration,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (begun, shutting_down) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        // Fails only if the server has already ended.
        let _ = begun.send(());
    };
    let listener = listener.gated(Rules {
        users: "HTTP",
        greeting: Greeting::Http1,
        room: Arc::new(|| Room { most: most_connections(descriptor_limit()), kept: 0 }),
        lifetime: Some(lifetime),
    });
    let router = router.layer(from_fn_with_state(access, answer_one));
    let router = router.into_make_service_with_connect_info::<HttpPeer>();
    let served = axum::serve(Accept(listener), router).with_graceful_shutdown(shutdown);
    tokio::select! {
        result = served => result,
        () = async {
            match shutting_down.await {
                Ok(()) => tokio::time::sleep(DRAIN).await,
                Err(_) => std::future::pending().await,
            }
        } => Ok(()),
    }
}

/// Answers one request, if its caller may make it, and makes the server close the connection after it. The request carries the
/// [`Principal`](mc_net::Principal) that makes it, and the [`ConnectInfo`](mc_net::ConnectInfo) of its connection.
async fn answer_one(State(access): State<HttpAccess>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let peer = parts.extensions.get::<ConnectInfo<HttpPeer>>().map(|peer| peer.0.0.clone());
    let mut response = match access.admit(peer.as_ref(), &parts) {
        Ok(principal) => {
            parts.extensions.insert(principal);
            peer.and_then(|peer| parts.extensions.insert(peer));
            answer(parts, body, next).await
        }
        Err(denied) => (StatusCode::FORBIDDEN, format!("{denied}\n")).into_response(),
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Answers a request, whose body is read in time or not at all.
async fn answer(parts: Parts, body: Body, next: Next) -> Response {
    match tokio::time::timeout(BODY_WITHIN, to_bytes(body, LARGEST_BODY)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, body.into())).await,
        Ok(Err(error)) => {
            (StatusCode::PAYLOAD_TOO_LARGE, format!("cannot read the body: {error}\n")).into_response()
        }
        Err(_) => (StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {BODY_WITHIN:?}\n"))
            .into_response(),
    }
}

/// Time limit of a [`request`].
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// Largest answer of a [`request`] in bytes.
const LARGEST_ANSWER: usize = 64 << 20;
/// Largest head of an answer in bytes.
const LARGEST_HEAD: usize = 16 << 10;

/// Why an [`exchange`] has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// There is no connection: the other process has nothing of the request.
    #[error("cannot connect to {address}: {source}")]
    Unsent {
        /// Address of the other process, host:port.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The other process may have acted on the request.
    #[error("{address} sent no complete HTTP answer: {source}")]
    Unanswered {
        /// Address of the other process, host:port.
        address: String,
        /// The system's error, or the defect of the answer.
        source: io::Error,
    },
}

impl From<ExchangeError> for io::Error {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Unsent { source, .. } | ExchangeError::Unanswered { source, .. } => source,
        }
    }
}

/// Sends an HTTP request to one of our processes at `address` (`host:port`), on a new connection, which must be
/// established by `connect_by`. The URI of the request has a path only. The caller bounds the time of the answer, whose
/// body may have `largest` bytes.
pub async fn exchange(
    network: &dyn Network,
    address: &str,
    connect_by: Instant,
    largest: usize,
    request: http::Request<Bytes>,
) -> Result<http::Response<Bytes>, ExchangeError> {
    let stream = timeout_at(connect_by, network.connect(address)).await;
    let stream =
        stream.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")));
    let mut stream =
        stream.map_err(|source| ExchangeError::Unsent { address: address.to_owned(), source })?;
    let exchanged = async {
        stream.write_all(&written(address, &request)).await?;
        let mut answer = Vec::new();
        stream.take((largest + LARGEST_HEAD) as u64).read_to_end(&mut answer).await?;
        parsed(answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a whole HTTP answer"))
    };
    exchanged.await.map_err(|source| ExchangeError::Unanswered { address: address.to_owned(), source })
}

fn written(address: &str, request: &http::Request<Bytes>) -> Vec<u8> {
    let (method, uri, body) = (request.method(), request.uri(), request.body());
    let mut bytes = format!("{method} {uri} HTTP/1.1\r\nhost: {address}\r\n").into_bytes();
    for (name, value) in request.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Reads an answer as our servers write it: to the end of the connection, never in chunks. `None` if a part is missing.
fn parsed(answer: Vec<u8>) -> Option<http::Response<Bytes>> {
    let head_len = answer.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_len]).ok()?;
    let (status, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    let mut response = http::Response::builder().version(Version::HTTP_11).status(status.split(' ').nth(1)?);
    for line in headers.lines() {
        let (name, value) = line.split_once(':')?;
        response = response.header(name, value.trim());
    }
    let body = Bytes::from(answer).slice(head_len + 4..);
    let response = response.body(body).ok()?;
    let length = response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse();
    (length == Ok(response.body().len())).then_some(response)
}

/// Sends an HTTP request without a body to one of our processes at `address` (`host:port`), on a connection of its own.
/// Returns the status code and the body.
pub async fn request(method: &str, address: &str, path: &str) -> io::Result<(u16, String)> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let request = http::Request::builder().method(method).uri(path).body(Bytes::new()).map_err(invalid)?;
    let end = Instant::now() + REQUEST_WITHIN;
    let answer = timeout_at(end, exchange(&TcpNetwork, address, end, LARGEST_ANSWER, request)).await??;
    let body = String::from_utf8_lossy(answer.body()).into_owned();
    Ok((answer.status().as_u16(), body))
}

/// Adapts our listener to axum.
struct Accept(Listener);

/// The other end of an HTTP connection: an extension of its request.
#[derive(Clone, Debug)]
struct HttpPeer(mc_net::ConnectInfo);

impl Connected<IncomingStream<'_, Accept>> for HttpPeer {
    fn connect_info(stream: IncomingStream<'_, Accept>) -> Self {
        Self(stream.io().info())
    }
}

impl axum::serve::Listener for Accept {
    type Io = Connection;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Connection, Self::Addr) {
        loop {
            match self.0.incoming.next().await {
                Some(Ok(connection)) => return (connection, self.0.address),
                // The gate logs errors and passes none on.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.0.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_net::{Guard, TcpNetwork};

    #[test]
    fn http_gets_a_share_of_the_descriptors() {
        assert_eq!([32, 64, 256, 1_024, 20_000, 65_536].map(most_connections), [4, 4, 16, 64, 1_250, 2_048]);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_none() {
        let whole = b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nno\n";
        let answer = parsed(whole.to_vec()).unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::NOT_FOUND, &b"no\n"[..]));
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/plain");
        for cut in 0..whole.len() {
            assert!(parsed(whole[..cut].to_vec()).is_none(), "{cut}");
        }
    }

    #[tokio::test]
    async fn the_standard_routes_answer_and_the_server_ends_with_an_idle_connection_open() {
        let listener = TcpNetwork::shared().listen("127.0.0.1:0").await.unwrap();
        let address = listener.address;
        let routes =
            standard_routes(|| Err("no leader".into()), || async { serde_json::json!({"role": "leader"}) });
        let routes = routes.route("/metrics", get(async || metrics_page("mc_objects 1\n".into())));
        let (stop, stopped) = oneshot::channel::<()>();
        let access = HttpAccess::standard(Guard::open());
        let stopped = async { stopped.await.unwrap() };
        let server = tokio::spawn(serve(listener, routes, access, Duration::from_secs(60), stopped));

        let get = async |path| request("GET", &address.to_string(), path).await.unwrap();
        let answer = |code: u16, body: &str| (code, body.to_owned());
        assert_eq!(get("/livez").await, answer(200, "ok\n"));
        assert_eq!(get("/readyz").await, answer(503, "no leader\n"));
        assert_eq!(get("/metrics").await, answer(200, "mc_objects 1\n"));
        assert_eq!(get("/status").await, answer(200, r#"{"role":"leader"}"#));
        assert_eq!(get("/nothing").await.0, 404);

        let mut asked = mc_net::connect(address).await.unwrap();
        asked.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut said = String::new();
        asked.read_to_string(&mut said).await.unwrap();
        assert!(
            said.contains("connection: close") && said.ends_with("ok\n"),
            "closed after one request: {said}"
        );

        let mut idle = mc_net::connect(address).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(10), server).await.unwrap().unwrap().unwrap();
    }
}
