//! Reads of one or several keys in a call.

use mc_proto::v1;
use mc_tests::checker::{Action, Outcome};
use mc_types::{Code, PutId};
use tokio::time::{Duration, Instant, sleep};

use crate::caller::caller;
use crate::client::{Client, OPERATION};
use crate::keys::{self, digest_of, tenant_of};

impl Client {
    /// Reads every key until each has been answered.
    pub(crate) async fn read_all(&mut self) {
        let keys = self.oracle.keys();
        for key in keys {
            while !self.read(&key).await {}
        }
    }

    /// True when it was answered.
    async fn read(&mut self, key: &str) -> bool {
        match keys::is_entry(key) {
            true => self.get_entry(key).await,
            false => self.get(key).await,
        }
    }

    pub(crate) async fn get(&mut self, key: &str) -> bool {
        self.get_all(vec![key.to_owned()]).await
    }

    /// Reads several keys of one tenant by one call. True when all were answered.
    pub(crate) async fn get_all(&mut self, mut keys: Vec<String>) -> bool {
        let deadline = Instant::now() + OPERATION;
        loop {
            let started = self.oracle.now();
            let request = v1::BatchGetRequest {
                caller: caller(),
                tenant: tenant_of(&keys[0]).into(),
                keys: keys.iter().map(|key| bytes::Bytes::copy_from_slice(key.as_bytes())).collect(),
                reads_doubtful: true,
                ..Default::default()
            };
            if let Ok(reply) = self.caller.attempt(async |mut master| master.batch_get(request).await).await {
                let several = keys.len() > 1;
                let mut left = Vec::new();
                for (key, result) in keys.into_iter().zip(&reply.results) {
                    let outcome = match Code::try_from(result.code) {
                        Ok(Code::Ok) => {
                            Outcome::Value(digest_of(&key, version(&result.version), result.checksum))
                        }
                        Ok(Code::ObjectNotFound) => Outcome::Miss,
                        // The store is suspect: there is something, and nothing is said of what.
                        _ => {
                            left.push(key);
                            continue;
                        }
                    };
                    self.oracle.tally(|tally| tally.read_together += usize::from(several));
                    self.record(&key, Action::Get, outcome, started);
                }
                if left.is_empty() {
                    return true;
                }
                keys = left;
                sleep(Duration::from_millis(20)).await;
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    pub(crate) async fn exist(&mut self, key: &str) {
        let started = self.oracle.now();
        let keys = vec![bytes::Bytes::copy_from_slice(key.as_bytes())];
        let request = v1::BatchExistRequest { caller: caller(), keys, ..Default::default() };
        if let Ok(reply) = self.caller.attempt(async |mut master| master.batch_exist(request).await).await {
            let outcome = match Code::try_from(reply.results[0].code) {
                Ok(Code::Ok) => Outcome::Present,
                Ok(Code::ObjectNotFound) => Outcome::Absent,
                _ => return,
            };
            self.record(key, Action::Exist, outcome, started);
        }
    }

    /// Asks for the version and the pin of a key.
    pub(crate) async fn describe(&mut self, key: &str) {
        let started = self.oracle.now();
        let keys = vec![bytes::Bytes::copy_from_slice(key.as_bytes())];
        let tenant = tenant_of(key).to_owned();
        let request = v1::BatchDescribeRequest { caller: caller(), tenant, keys };
        let described = self.caller.attempt(async |mut master| master.batch_describe(request).await).await;
        let Ok(reply) = described else { return };
        let result = &reply.results[0];
        let outcome = match Code::try_from(result.code) {
            Ok(Code::Ok) => {
                let version = version(&result.version);
                self.oracle.pin_of(key, version, result.hard_pinned, result.soft_pin_left_ms > 0);
                Outcome::Value(digest_of(key, version, result.checksum))
            }
            Ok(Code::ObjectNotFound | Code::ReplicaIsNotReady) => Outcome::Miss,
            _ => return,
        };
        self.record(key, Action::Get, outcome, started);
    }
}

fn version(bytes: &[u8]) -> PutId {
    PutId::from_bytes(bytes).expect("an id has 16 bytes")
}
