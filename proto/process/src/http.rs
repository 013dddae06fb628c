//! The HTTP side of every process: health, metrics and status, and a client for tools and tests.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Json, Response};
use axum::routing::get;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use mc_net::{Connection, Greeting, Listener, Room, Rules};

use crate::descriptors::descriptor_limit;

/// Time that open requests may take to end after the shutdown began.
const DRAIN: Duration = Duration::from_secs(1);
/// Time that a peer has to send the body of its request, as much as [`LARGEST_BODY`].
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Largest body in bytes.
const LARGEST_BODY: usize = 2 << 20;
/// Longest life of a connection, which serves one request: a peer that takes the answer byte by byte holds a descriptor.
/// The longest request mounts a segment, and a terabyte takes minutes to allocate.
const LIFETIME: Duration = Duration::from_secs(600);

/// Returns the most connections that HTTP gets of a process that may have `limit` descriptors: a sixteenth, within bounds.
#[must_use]
pub fn most_connections(limit: usize) -> usize {
    (limit / 16).clamp(4, 2048)
}

type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;
type Metrics = Arc<dyn Fn() -> String + Send + Sync>;
type Status = Arc<dyn Fn() -> BoxFuture<'static, serde_json::Value> + Send + Sync>;

/// Returns the routes that every process has:
///
/// - `/livez`: 200 as long as the process answers at all; never depends on a quorum.
/// - `/readyz`: 200 when `ready` is `Ok`, else 503 with the reason as text.
/// - `/metrics`: the text that `metrics` renders.
/// - `/status`: the value that `status` returns, as JSON.
pub fn standard_routes<S, F>(
    ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    metrics: impl Fn() -> String + Send + Sync + 'static,
    status: S,
) -> Router
where
    S: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = serde_json::Value> + Send + 'static,
{
    let ready: Ready = Arc::new(ready);
    let metrics: Metrics = Arc::new(metrics);
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
            "/metrics",
            get(move || {
                let text = metrics();
                async move {
                    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
                        .into_response()
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

/// Serves `router` on `listener` until `shutdown` ends, then for at most a second more. Open requests get their answers
/// within that time, and an idle connection can't hold up the process.
///
/// Each connection serves one request, and the number of connections is bounded ([`most_connections`]), so that idle
/// peers and scrapers keep no descriptors.
///
/// # Errors
/// The error of the listener.
pub async fn serve(
    listener: Listener,
    router: Router,
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
        lifetime: Some(LIFETIME),
    });
    let router = router.layer(from_fn(answer_one));
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

/// Answers one request, whose body is read in time or not at all, and makes the server close the connection after it.
async fn answer_one(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match tokio::time::timeout(BODY_WITHIN, to_bytes(body, LARGEST_BODY)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, body.into())).await,
        Ok(Err(error)) => {
            (StatusCode::PAYLOAD_TOO_LARGE, format!("cannot read the body: {error}\n")).into_response()
        }
        Err(_) => (StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {BODY_WITHIN:?}\n"))
            .into_response(),
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Time limit of a [`request`].
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// Sends an HTTP request without a body to one of our processes at `address` (`host:port`), on a connection of its own.
/// Returns the status code and the body.
///
/// # Errors
/// When no HTTP answer comes within two seconds.
pub async fn request(method: &str, address: &str, path: &str) -> io::Result<(u16, String)> {
    let exchange = async {
        let mut stream = mc_net::connect(address).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n");
        stream.write_all(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {answer}"));
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
        let body = answer.split_once("\r\n\r\n").ok_or_else(bad)?.1;
        Ok((code, body.to_owned()))
    };
    tokio::time::timeout(REQUEST_WITHIN, exchange).await?
}

/// Adapts our listener to axum.
struct Accept(Listener);

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
    use mc_net::TcpNetwork;

    #[test]
    fn http_gets_a_share_of_the_descriptors() {
        assert_eq!([32, 64, 256, 1_024, 20_000, 65_536].map(most_connections), [4, 4, 16, 64, 1_250, 2_048]);
    }

    #[tokio::test]
    async fn the_standard_routes_answer_and_the_server_ends_with_an_idle_connection_open() {
        let listener = TcpNetwork::shared().listen("127.0.0.1:0").await.unwrap();
        let address = listener.address;
        let routes = standard_routes(
            || Err("no leader".into()),
            || "mc_objects 1\n".into(),
            || async { serde_json::json!({"role": "leader"}) },
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, routes, async { stopped.await.unwrap() }));

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
