//! The ports of a master.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use mc_net::Listener;
use mc_process::HttpAccess;
use mc_proto::v1::master_server::MasterServer;
use mc_raft::RaftService;

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
        let guarded = GuardedCalls(self.api.guard.clone());
        let in_flight = InFlight::new(self.metrics.calls.requests_refused.clone());
        self.tracker.spawn(async move {
            let served = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .max_concurrent_streams(MAX_STREAMS)
                // Callers that give up on calls not looked at yet must not end the connection that they share with
                // others. With the default of 20 such calls, they did so on an overloaded master.
                .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(Duration::from_secs(2)))
                // Outside of the places: a caller that is denied gets none that is kept for stores.
                .layer(JudgedBy(guarded))
                .layer(JudgedBy(KeptForStores))
                .layer(in_flight)
                .add_service(MasterServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES))
                .serve_with_incoming_shutdown(client.incoming, stop.cancelled_owned())
                .await;
            if let Err(error) = served {
                tracing::error!("serving the client port failed, and the port is closed: {error}");
            }
        });
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
