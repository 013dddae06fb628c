use std::sync::Arc;

use mc_index::{Quota, Request, State, TenantName, TenantView};
use mc_types::Code;

use crate::leader::term::{Coordinator, Refusal};

/// Serves the quotas of tenants.
pub(crate) struct Tenants {
    coordinator: Arc<Coordinator>,
}

/// A tenant, and the quota that binds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantState {
    pub(crate) view: TenantView,
    pub(crate) quota: Quota,
    /// Most calls a second; `None` for no limit.
    pub(crate) calls: Option<u32>,
    /// Whether its bytes may not go by RDMA.
    pub(crate) avoids_rdma: bool,
}

impl TenantState {
    pub(crate) fn of(state: &State, view: TenantView) -> Self {
        let name = std::str::from_utf8(view.name.as_bytes()).ok();
        let calls = name.and_then(|name| state.security().calls(name));
        let avoids_rdma = name.is_some_and(|name| state.security().avoids_rdma(name));
        Self { view, quota: state.quota(&view.name), calls, avoids_rdma }
    }
}

impl Tenants {
    pub(crate) fn new(coordinator: Arc<Coordinator>) -> Self {
        Self { coordinator }
    }

    /// Lists tenants by name, after a name: at most `limit` of them, and whether there are more.
    pub(crate) async fn list(
        &self,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<TenantState>, bool), Refusal> {
        self.coordinator.lead().await?;
        Ok(self.coordinator.read(|applied| {
            let state = &applied.state;
            let from = TenantName::new(after.unwrap_or_default());
            let is_after = |view: &TenantView| after.is_none_or(|_| view.name > from);
            let mut views = state.tenants_from(from).filter(is_after);
            let page = views.by_ref().take(limit);
            let page: Vec<_> = page.map(|view| TenantState::of(state, view)).collect();
            (page, views.next().is_some())
        }))
    }

    /// Registers a tenant with a quota, or unregisters it.
    pub(crate) async fn set(&self, tenant: String, quota: Option<Quota>) -> Result<(), Refusal> {
        let leading = self.coordinator.lead().await?;
        let name = tenant.clone();
        match self.coordinator.propose(&leading, &Request::set_tenant(tenant, quota)).await? {
            Code::Ok => Ok(()),
            code => Err(Refusal::Tenant { name, code }),
        }
    }
}
