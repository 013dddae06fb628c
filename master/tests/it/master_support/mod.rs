//! A master in this process, a store that only exists in its index, and a caller that speaks gRPC.

#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::CommandFactory as _;
use mc_durable::FreeSpace;
use mc_log::OnSled;
use mc_master::MasterArgs;
use mc_master::{Environment, Master};
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_process::config;
use mc_proto::{
    detail_of,
    v1::{self, master_client::MasterClient},
};
use mc_testkit::eventually;
use mc_types::{Clock, Code, Grant, GrantKey};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tonic::transport::Channel;

const STORE: [u8; 8] = [7; 8];
const EPOCH: [u8; 8] = [9; 8];
const GRANT_KEY: GrantKey = GrantKey([1; 32]);

/// A cluster of one.
pub struct Single {
    master: Master,
    heartbeats: Option<AbortHandle>,
    dir: TempDir,
}

impl Single {
    /// A master that leads and has a store mounted.
    pub async fn start(flags: &[&str], free_space: Arc<dyn FreeSpace>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut args = vec!["mc-master", "--single", "--data-dir", dir.path().to_str().unwrap()];
        for flag in ["--listen", "--raft-listen", "--http-listen"] {
            args.extend([flag, "127.0.0.1:0"]);
        }
        let args = args.iter().chain(flags).map(OsString::from);
        let config = config::load::<MasterArgs>(MasterArgs::command(), args, |_| None).unwrap();
        let environment = Environment {
            clock: Clock::monotonic(),
            network: TcpNetwork::shared(),
            log: Arc::new(OnSled::default()),
            raft: Handle::current(),
            free_space,
        };
        let master = Master::start(&config, environment).await.unwrap();
        let mut this = Self { master, heartbeats: None, dir };
        this.lend().await;
        this
    }

    pub fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The master's id, as it is printed.
    pub async fn node(&self) -> String {
        let status: serde_json::Value = serde_json::from_str(&self.http("/status").await.1).unwrap();
        status["id"].as_str().unwrap().to_owned()
    }

    pub async fn client(&self) -> Caller {
        let address = self.master.addresses().client.to_string();
        let channel = TcpNetwork.channel(&address, ChannelOptions::default()).unwrap();
        Caller { master: MasterClient::new(channel), receipts: HashMap::new() }
    }

    /// GET `path`: the code and the body.
    pub async fn http(&self, path: &str) -> (u16, String) {
        let address = self.master.addresses().http.to_string();
        mc_process::http::request("GET", &address, path).await.unwrap()
    }

    pub async fn stop(self) {
        self.heartbeats.inspect(AbortHandle::abort);
        self.master.stop().await;
    }

    /// Mounts a store that nobody could reach, and keeps it alive.
    async fn lend(&mut self) {
        let mut client = self.client().await.master;
        let mount = v1::MountStoreRequest {
            caller: caller(),
            store_id: Bytes::copy_from_slice(&STORE),
            epoch: Bytes::copy_from_slice(&EPOCH),
            name: "store".into(),
            grant_key: GRANT_KEY.0.to_vec().into(),
            endpoints: vec![v1::Endpoint {
                transport: "tcp".into(),
                address: "127.0.0.1:1".into(),
                ..Default::default()
            }],
            segment_bytes: vec![64 << 20],
            ..Default::default()
        };
        eventually("a mount", async || client.mount_store(mount.clone()).await.ok()).await;
        let mut answers = client.heartbeat(beats()).await.unwrap().into_inner();
        let task = tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
        self.heartbeats = Some(task.abort_handle());
    }
}

fn beats() -> impl futures::Stream<Item = v1::StoreHeartbeat> + Send {
    let every = tokio::time::interval(Duration::from_millis(100));
    futures::stream::unfold((every, 0), |(mut every, sequence)| async move {
        every.tick().await;
        let beat = v1::StoreHeartbeat {
            caller: caller(),
            store_id: Bytes::copy_from_slice(&STORE),
            epoch: Bytes::copy_from_slice(&EPOCH),
            sequence,
            transports: Vec::new(),
            tls: None,
        };
        Some((beat, (every, sequence + 1)))
    })
}

pub fn caller() -> Option<v1::Caller> {
    let (version_min, version_max) = (*mc_proto::VERSIONS.start(), *mc_proto::VERSIONS.end());
    Some(v1::Caller { client_id: vec![1; 16].into(), version_min, version_max, ..Default::default() })
}

/// One item a call; answers its code. Puts are ended as if they were written.
pub struct Caller {
    master: MasterClient<Channel>,
    /// Receipt of each put that has started.
    receipts: HashMap<u128, Bytes>,
}

impl Caller {
    /// `Err` with the refusal of the whole call.
    pub async fn put_start(&mut self, put: u128, key: &str) -> Result<Code, (Code, String)> {
        let item = v1::PutStartItem { put_id: put_id(put), key: bytes(key), size: 64, ..Default::default() };
        let request = v1::BatchPutStartRequest { caller: caller(), items: vec![item], ..Default::default() };
        match self.master.batch_put_start(request).await {
            Ok(reply) => {
                let v1::BatchPutStartReply { results, grants, .. } = reply.into_inner();
                if let Some(granted) = grants.first() {
                    let (Grant { cluster, store, epoch, ranges, .. }, _) =
                        Grant::open(&granted.grant, &GRANT_KEY).unwrap();
                    let receipt = GRANT_KEY.receipts().receipt(cluster, store, epoch, &ranges[0]);
                    self.receipts.insert(put, Bytes::copy_from_slice(&receipt.to_bytes()));
                }
                Ok(code(results[0].code))
            }
            Err(status) => {
                let detail = detail_of(&status).unwrap_or_else(|| panic!("{status:?}"));
                Err((code(detail.code), detail.message))
            }
        }
    }

    pub async fn put_end(&mut self, put: u128, key: &str) -> Code {
        let receipts = self.receipts.get(&put).cloned().unwrap_or_default();
        let item = v1::PutEndItem { put_id: put_id(put), key: bytes(key), receipts, ..Default::default() };
        let request = v1::BatchPutEndRequest { caller: caller(), items: vec![item], ..Default::default() };
        code(self.master.batch_put_end(request).await.unwrap().into_inner().results[0].code)
    }

    pub async fn put_revoke(&mut self, put: u128) -> Code {
        let request =
            v1::BatchPutRevokeRequest { caller: caller(), put_ids: vec![put_id(put)], ..Default::default() };
        code(self.master.batch_put_revoke(request).await.unwrap().into_inner().results[0].code)
    }

    pub async fn get(&mut self, key: &str) -> Code {
        let request = v1::BatchGetRequest { caller: caller(), keys: vec![bytes(key)], ..Default::default() };
        code(self.master.batch_get(request).await.unwrap().into_inner().results[0].code)
    }

    pub async fn exist(&mut self, key: &str) -> Code {
        let request =
            v1::BatchExistRequest { caller: caller(), keys: vec![bytes(key)], ..Default::default() };
        code(self.master.batch_exist(request).await.unwrap().into_inner().results[0].code)
    }

    pub async fn remove(&mut self, key: &str) -> Code {
        let items = vec![v1::RemoveItem { key: bytes(key), ..Default::default() }];
        let request = v1::BatchRemoveRequest { caller: caller(), items, force: true, ..Default::default() };
        code(self.master.batch_remove(request).await.unwrap().into_inner().results[0].code)
    }
}

fn put_id(put: u128) -> Bytes {
    Bytes::copy_from_slice(&put.to_be_bytes())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn code(number: i32) -> Code {
    Code::try_from(number).unwrap()
}
