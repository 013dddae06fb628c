use std::collections::{HashMap, HashSet};

use mc_types::StoreId;
use parking_lot::Mutex;

use crate::formation::TlsReport;

/// Most hosts that a store may name, and bytes of each.
const HOSTS: usize = 16;
const HOST_LEN: usize = 64;

/// Reports of the stores on TLS, from their latest heartbeats.
#[derive(Debug, Default)]
pub(crate) struct TlsReports(Mutex<HashMap<StoreId, TlsReport>>);

impl TlsReports {
    /// Keeps the report of a mounted store, if there is one.
    pub(crate) fn note(&self, store: StoreId, report: Option<TlsReport>) {
        let Some(mut report) = report else { return };
        report.tolerated.retain(|host| host.len() <= HOST_LEN);
        report.tolerated.truncate(HOSTS);
        self.0.lock().insert(store, report);
    }

    /// Forgets the stores that are not mounted any more.
    pub(crate) fn keep(&self, mounted: &HashSet<StoreId>) {
        self.0.lock().retain(|store, _| mounted.contains(store));
    }

    pub(crate) fn of(&self, store: StoreId) -> Option<TlsReport> {
        self.0.lock().get(&store).cloned()
    }
}
