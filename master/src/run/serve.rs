//! The ports of a master.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use mc_net::{Connection, Incoming, Listener};
use mc_process::HttpAccess;
use mc_proto::v1::master_server::MasterServer;
use mc_raft::RaftService;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::listeners::Listeners;
use super::tasks::Tasks;
use crate::access::{GuardedCalls, route_open_to};
use crate::api::{InFlight, KeptForStores, MasterService, ports};
use crate::config::MetadataAccess;
use crate::http::{self, MetricNames};
use crate::judged::JudgedBy;
use crate::mooncake;

/// Limit on the size of a request: 4,096 keys of 4 KiB and their framing.
const MAX_REQUEST_BYTES: usize = 24 << 20;

/// Limit on calls under way on one connection.
const MAX_STREAMS: u32 = 4096;

/// Longest life of an HTTP connection, whose request is answered within seconds: a peer that does not read holds memory of answers.
const HTTP_LIFETIME: Duration = Duration::from_secs(30);

/// Silence on a connection after which the peer is asked whether it lives. Ten thousand clients that watch are ten
/// thousand connections; asking each every second would cost a tenth of a core more than every five seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Number of servers of the client port, each with another greatest age of connections: connections that were made at one moment, when
/// a master begins to lead, don't end at one.
const AGES: u8 = 8;

/// Deals connections out to so many servers, in turn.
fn deal(
    mut incoming: Incoming,
    servers: u8,
) -> (impl Future<Output = ()>, Vec<ReceiverStream<io::Result<Connection>>>) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..servers).map(|_| mpsc::channel(1)).unzip();
    let dealing = async move {
        for server in senders.iter().cycle() {
            let Some(connection) = incoming.next().await else { return };
            if server.send(connection).await.is_err() {
                return;
            }
        }
    };
    (dealing, receivers.into_iter().map(ReceiverStream::new).collect())
}

impl Tasks {
    pub(super) fn serve(&self, listeners: Listeners, raft: RaftService) {
        let [calls, consensus] = self.api.shedder.probes();
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(calls));
        self.environment.raft.spawn(self.stop.clone().run_until_cancelled_owned(consensus));
        let Listeners { client, raft: raft_listener, http, metadata, .. } = listeners;
        let http_ports = 1 + usize::from(metadata.is_some());
        let (client, raft_listener) =
            (client.gated(ports::for_clients(http_ports)), raft_listener.gated(ports::for_masters()));
        let (stop, guard) = (self.stop.clone(), self.api.guard.clone());
        self.environment.raft.spawn(async move {
            if let Err(error) = raft.serve(raft_listener, guard, stop.cancelled_owned()).await {
                tracing::error!("serving the Raft port failed, and the port is closed: {error}");
            }
        });
        let (stop, api) = (self.stop.clone(), MasterService(self.api.clone()));
        let guarded = JudgedBy::new(GuardedCalls(self.api.guard.clone()));
        let in_flight = InFlight::new(self.metrics.calls.requests_refused.clone());
        let age = self.environment.network.tls().map(|tls| tls.connection_age());
        let (dealing, dealt) = deal(client.incoming, if age.is_some() { AGES } else { 1 });
        self.tracker.spawn(stop.clone().run_until_cancelled_owned(dealing));
        for (nth, incoming) in (0..).zip(dealt) {
            let mut server = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .max_concurrent_streams(MAX_STREAMS)
                // Callers that give up on calls not looked at yet must not end the connection that they share with
                // others. With the default of 20 such calls, they did so on an overloaded master.
                .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(Duration::from_secs(2)));
            if let Some(age) = age {
                let sooner = 0.25 * f64::from(nth) / f64::from(AGES);
                // Then it takes no more calls, and ends with those under way. Streams end by themselves.
                server = server.max_connection_age(age.mul_f64(1.0 - sooner));
            }
            let served = server
                // Outside of the places: a caller that is denied gets none that is kept for stores.
                .layer(guarded.clone())
                .layer(JudgedBy::new(KeptForStores))
                .layer(in_flight.clone())
                .add_service(MasterServer::new(api.clone()).max_decoding_message_size(MAX_REQUEST_BYTES))
                .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
            self.tracker.spawn(async move {
                if let Err(error) = served.await {
                    tracing::error!("serving the client port failed, and the port is closed: {error}");
                }
            });
        }
        let args = &self.config.args;
        let names = if args.mooncake_metrics { MetricNames::OwnAndMooncake } else { MetricNames::Own };
        self.serve_http(http, http::routes(self.api.clone(), self.metrics.clone(), names), "HTTP");
        let every = args.metrics_log.0;
        if !every.is_zero() {
            self.tracker.spawn(mooncake::log_summaries(self.api.clone(), every, self.stop.clone()));
        }
        if let Some(listener) = metadata {
            self.serve_http(listener, mooncake::metadata_port(self.api.clone()), "metadata");
        }
    }

    fn serve_http(&self, listener: Listener, routes: Router, name: &'static str) {
        let stop = self.stop.clone();
        let metadata_is_open = self.config.args.metadata == MetadataAccess::Open;
        let open_to = Arc::new(move |request: &Parts| route_open_to(request, metadata_is_open));
        let access = HttpAccess { guard: self.api.guard.clone(), open_to };
        self.tracker.spawn(async move {
            let served =
                mc_process::http::serve(listener, routes, access, HTTP_LIFETIME, stop.cancelled_owned());
            if let Err(error) = served.await {
                tracing::error!("serving the {name} port failed, and the port is closed: {error}");
            }
        });
    }
}
