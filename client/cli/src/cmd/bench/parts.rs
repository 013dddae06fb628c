//! Where the time of a put of one key goes: its two replicated commits and its round trips, each measured alone over
//! the same connection in the same run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use mc_base::net::{ChannelOptions, Network, TcpNetwork};
use mc_base::{ClientId, PutId};
use mc_proto::v1::master_client::MasterClient;
use mc_proto::v1::{
    BatchExistRequest, BatchPutRevokeRequest, BatchPutStartRequest, Caller, Code, PutStartItem,
};
use serde::Serialize;
use tonic::transport::Channel;

use super::machine::Machine;
use super::report::Latencies;
use crate::connect;

/// Calls of each kind; the first few warm the connection and do not count.
const CALLS: usize = 300;
const WARM: usize = 20;

/// Medians, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parts {
    /// The whole put, as the client saw it.
    pub(crate) put_us: f64,
    /// A round trip to the leader that commits nothing (exist of an absent key).
    pub(crate) rpc_us: f64,
    /// PutStart alone: a round trip and a commit.
    pub(crate) start_us: f64,
    /// PutRevoke alone, which ends a put as PutEnd does: a round trip and a commit.
    pub(crate) end_us: f64,
    /// Both commits without their round trips.
    pub(crate) commits_us: f64,
    /// The fdatasyncs in them: one a commit on the leader, with a follower's at the same time.
    pub(crate) fdatasyncs_us: f64,
    /// What is left of the put: the transfer to the store, its checksum, and the client.
    pub(crate) transfer_us: f64,
}

impl Parts {
    fn new(put: f64, rpc: f64, start: f64, end: f64, machine: Machine) -> Self {
        Self {
            put_us: put,
            rpc_us: rpc,
            start_us: start,
            end_us: end,
            commits_us: (start - rpc).max(0.0) + (end - rpc).max(0.0),
            fdatasyncs_us: 2.0 * machine.fdatasync_p50_us,
            transfer_us: (put - start - end).max(0.0),
        }
    }

    pub(crate) fn table(&self) -> String {
        format!(
            "a put of one key, p50: {:.0} us = start {:.0} + end {:.0} + transfer and client {:.0}\n  \
             measured alone: rpc {:.0} us, two commits {:.0} us (two fdatasyncs {:.0} us); \
             two rpcs with their commits + 500 us = {:.0} us\n",
            self.put_us,
            self.start_us,
            self.end_us,
            self.transfer_us,
            self.rpc_us,
            self.commits_us,
            self.fdatasyncs_us,
            self.start_us + self.end_us + 500.0,
        )
    }
}

/// Measures the parts of a put of `size` bytes that took `put_us`.
pub(crate) async fn measure(masters: &str, size: u64, put_us: f64, machine: Machine) -> Result<Parts> {
    let status = connect::admin(masters).await?.status().await;
    let leader = status.leader.context("no leader: the parts of a put can't be measured")?;
    let options = ChannelOptions { call_timeout: Some(Duration::from_secs(5)), ..ChannelOptions::default() };
    let channel = TcpNetwork.channel(&leader.address, options).context("the leader's address")?;
    let mut alone = Alone { master: MasterClient::new(channel), client: ClientId::random() };
    let (mut rpc, mut start, mut end) = (Latencies::new(), Latencies::new(), Latencies::new());
    for call in 0..CALLS {
        let put = PutId::random();
        let took = [alone.exist().await?, alone.start(put, size).await?, alone.end(put).await?];
        if call >= WARM {
            for (latencies, took) in [&mut rpc, &mut start, &mut end].into_iter().zip(took) {
                latencies.record(took);
            }
        }
    }
    let p50 = |latencies: &Latencies| latencies.quantile_us(0.5);
    Ok(Parts::new(put_us, p50(&rpc), p50(&start), p50(&end), machine))
}

/// The calls of a put, one at a time and without their client.
struct Alone {
    master: MasterClient<Channel>,
    client: ClientId,
}

impl Alone {
    async fn exist(&mut self) -> Result<Duration> {
        let request = BatchExistRequest {
            caller: Some(self.caller()),
            keys: vec![Bytes::from_static(b"bench/absent")],
            ..BatchExistRequest::default()
        };
        let start = Instant::now();
        self.master.batch_exist(request).await.context("exist of an absent key")?;
        Ok(start.elapsed())
    }

    async fn start(&mut self, put: PutId, size: u64) -> Result<Duration> {
        let item = PutStartItem {
            put_id: Bytes::copy_from_slice(&put.to_bytes()),
            key: format!("bench/{put}").into(),
            size,
            ..PutStartItem::default()
        };
        let request = BatchPutStartRequest {
            caller: Some(self.caller()),
            items: vec![item],
            ..BatchPutStartRequest::default()
        };
        let start = Instant::now();
        let reply = self.master.batch_put_start(request).await.context("start of a put")?.into_inner();
        let took = start.elapsed();
        match reply.results.first().map(|result| result.code) {
            Some(code) if code == Code::Ok as i32 => Ok(took),
            code => bail!("start of a put answered code {code:?}: its time says nothing"),
        }
    }

    async fn end(&mut self, put: PutId) -> Result<Duration> {
        let request = BatchPutRevokeRequest {
            caller: Some(self.caller()),
            put_ids: vec![Bytes::copy_from_slice(&put.to_bytes())],
            ..BatchPutRevokeRequest::default()
        };
        let start = Instant::now();
        self.master.batch_put_revoke(request).await.context("end of a put")?;
        Ok(start.elapsed())
    }

    fn caller(&self) -> Caller {
        let versions = mc_proto::VERSIONS;
        Caller {
            client_id: Bytes::copy_from_slice(&self.client.to_bytes()),
            version_min: *versions.start(),
            version_max: *versions.end(),
            ..Caller::default()
        }
    }
}
