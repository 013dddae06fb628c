use mc_net::DenialReason;
use mc_process::metrics::Registry;
use mc_raft::RpcTimer;
use metrics::{Counter, Histogram};

use super::labels::{LedBy, RPCS, Rpc};

/// Metrics of the client API's calls.
pub(crate) struct CallMetrics {
    rpc_seconds: Vec<Histogram>,
    led_by_lease: Counter,
    led_by_quorum: Counter,
    pub(crate) proposals_refused: Counter,
    pub(crate) requests_refused: Counter,
    pub(crate) mismatches_reported: Counter,
    /// Shed calls of hello, watch and mount_store, in the order of `SheddableCall`.
    pub(crate) shed: [Counter; 3],
    denied: [Counter; DenialReason::ALL.len()],
    pub(crate) audit_lost: Counter,
}

impl CallMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let rpc_seconds = RPCS
            .iter()
            .map(|(_, name)| r.histogram("mc_master_rpc_seconds", "Time to answer a call", &[("rpc", name)]))
            .collect();
        let led_by = |by| {
            let help = "Checks before an answer that this master still leads, by lease or by quorum";
            r.counter("mc_master_leader_checks_total", help, &[("by", by)])
        };
        Self {
            rpc_seconds,
            led_by_lease: led_by("lease"),
            led_by_quorum: led_by("quorum"),
            proposals_refused: r.counter(
                "mc_master_proposals_refused_total",
                "Calls refused because too many proposals were in flight",
                &[],
            ),
            requests_refused: r.counter(
                "mc_master_requests_refused_total",
                "Calls refused because the requests and replies under way had too many bytes",
                &[],
            ),
            mismatches_reported: r.counter(
                "mc_master_mismatches_reported_total",
                "Reads whose bytes did not match their object's checksum, as clients told this leader",
                &[],
            ),
            shed: ["hello", "watch", "mount_store"].map(|rpc| {
                let help =
                    "Calls refused because this master was short of CPU time, to spare heartbeats and Raft";
                r.counter("mc_master_calls_shed_total", help, &[("rpc", rpc)])
            }),
            denied: DenialReason::ALL.map(|(_, reason)| {
                let help = "Calls denied on the client, Raft and HTTP ports because of the caller's identity, or for lack of \
                            one";
                r.counter("mc_master_calls_denied_total", help, &[("reason", reason)])
            }),
            audit_lost: r.counter(
                "mc_master_audit_lost_total",
                "Lines of the audit logs that were not written: the disk failed or was too slow, or too many callers were refused",
                &[],
            ),
        }
    }

    /// Times a call until the result is dropped.
    pub(crate) fn rpc(&self, rpc: Rpc) -> RpcTimer<'_> {
        RpcTimer::start(&self.rpc_seconds[rpc as usize])
    }

    /// Counts a call that was denied.
    pub(crate) fn denied(&self, reason: DenialReason) {
        self.denied[reason as usize].increment(1);
    }

    /// Counts a check that this master leads, made before an answer.
    pub(crate) fn led(&self, by: LedBy) {
        match by {
            LedBy::Lease => self.led_by_lease.increment(1),
            LedBy::Quorum => self.led_by_quorum.increment(1),
        }
    }
}
