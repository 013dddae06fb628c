//! Calls of the simulation to its masters.

use std::sync::Arc;
use std::time::Duration;

use mc_net::{ChannelOptions, Network};
use mc_proto::v1::{self, master_client::MasterClient};
use mc_tests::Seeded;
use mc_types::Code;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::Channel;

use crate::machine::CLIENTS;
use crate::net::address_of;

/// Calls masters, the one that answered last first.
pub(crate) struct Caller {
    masters: Vec<MasterClient<Channel>>,
    pub(crate) at: usize,
    pub(crate) patience: Duration,
    rng: Seeded,
}

/// Outcome of an attempt without an answer.
pub(crate) enum Missed {
    /// Nothing was done.
    Refused,
    /// Nothing was done, because the masters' disks are nearly full.
    NoRoom,
    /// It may have been done, or may be yet.
    Unknown,
}

impl Caller {
    pub(crate) fn new(network: &Arc<dyn Network>, masters: usize, patience: Duration, rng: Seeded) -> Self {
        let client = |at| {
            let address = address_of(at, CLIENTS).to_string();
            MasterClient::new(network.channel(&address, ChannelOptions::default()).expect("an address"))
        };
        Self { masters: (0..masters).map(client).collect(), at: 0, patience, rng }
    }

    /// One attempt. Whoever does not answer is left; a redirection is followed.
    pub(crate) async fn attempt<R>(
        &mut self,
        call: impl AsyncFnOnce(MasterClient<Channel>) -> Result<tonic::Response<R>, Status>,
    ) -> Result<R, Missed> {
        let status = match timeout(self.patience, call(self.masters[self.at].clone())).await {
            Ok(Ok(reply)) => return Ok(reply.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => {
                self.elsewhere().await;
                return Err(Missed::Unknown);
            }
        };
        let Some(detail) = mc_proto::detail_of(&status) else {
            self.elsewhere().await;
            return Err(Missed::Unknown);
        };
        let leader = detail.leader.as_ref().and_then(|leader| {
            (0..self.masters.len()).find(|at| address_of(*at, CLIENTS).to_string() == leader.address)
        });
        match leader {
            Some(leader) => self.at = leader,
            None => self.elsewhere().await,
        }
        match Code::try_from(detail.code) {
            Ok(Code::OutcomeUnknown) => Err(Missed::Unknown),
            Ok(Code::DiskNearlyFull) => Err(Missed::NoRoom),
            _ => Err(Missed::Refused),
        }
    }

    pub(crate) async fn elsewhere(&mut self) {
        self.anyone();
        sleep(Duration::from_millis(self.rng.within(2..20))).await;
    }

    pub(crate) fn anyone(&mut self) {
        self.at = self.rng.below(self.masters.len() as u64) as usize;
    }
}

pub(crate) fn caller() -> Option<v1::Caller> {
    Some(v1::Caller {
        client_id: vec![1; 16].into(),
        version_min: *mc_proto::VERSIONS.start(),
        version_max: *mc_proto::VERSIONS.end(),
        ..Default::default()
    })
}
