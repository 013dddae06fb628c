use std::sync::Arc;

use mc_index::Settings;
use mc_net::Tls;
use mc_raft::RaftNode;
use tokio::sync::watch;

use crate::formation::Formation;
use crate::leader::members::Members;
use crate::leader::objects::Objects;
use crate::leader::settings::{Configuration, KeyValues, SecuritySettings, Tenants};
use crate::leader::stores::Stores;
use crate::leader::term::{Coordinator, CoordinatorConfig};

/// Parts from which the services are built.
pub(crate) struct ServicesConfig {
    pub(crate) coordinator: CoordinatorConfig,
    pub(crate) seed: Settings,
    pub(crate) formation: Arc<Formation>,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// The services of one master, which share its coordinator.
pub(crate) struct Services {
    pub(crate) coordinator: Arc<Coordinator>,
    /// The Raft node below the coordinator.
    pub(crate) raft: Arc<RaftNode>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) tenants: Tenants,
    pub(crate) key_values: KeyValues,
    pub(crate) stores: Arc<Stores>,
    pub(crate) members: Arc<Members>,
    pub(crate) configuration: Configuration,
    pub(crate) security: SecuritySettings,
    /// Client addresses of all members.
    pub(crate) addresses: watch::Sender<Vec<String>>,
}

impl Services {
    pub(crate) fn new(config: ServicesConfig) -> Self {
        let ServicesConfig { coordinator, seed, formation, tls } = config;
        let (raft, metrics) = (coordinator.raft.clone(), coordinator.metrics.clone());
        let coordinator = Arc::new(Coordinator::new(coordinator));
        Self {
            objects: Arc::new(Objects::new(coordinator.clone(), raft.index().clone(), metrics.clone())),
            tenants: Tenants::new(coordinator.clone()),
            key_values: KeyValues::new(coordinator.clone()),
            stores: Arc::new(Stores::new(coordinator.clone())),
            members: Arc::new(Members::new(coordinator.clone(), raft.clone(), metrics, formation.clone())),
            security: SecuritySettings::new(
                coordinator.clone(),
                raft.clone(),
                formation.clone(),
                tls.clone(),
            ),
            configuration: Configuration::new(coordinator.clone(), raft.clone(), formation, seed, tls),
            addresses: watch::Sender::default(),
            coordinator,
            raft,
        }
    }
}
