use mc_types::{Code, MAX_TENANT_LEN};

use crate::command::Quota;
use crate::key::TenantName;
use crate::state::State;
use crate::tenants::TenantUsage;

impl State {
    pub(crate) fn set_tenant(&mut self, tenant: &str, quota: Option<Quota>) -> Code {
        if tenant.len() > MAX_TENANT_LEN {
            return Code::InvalidParams;
        }
        let name = TenantName::new(tenant.as_bytes());
        if quota.is_none() {
            let known = self.tenants.get(&name).filter(|tenant| tenant.quota.is_some());
            let Some(known) = known else { return Code::TenantNotRegistered };
            if known.usage != TenantUsage::default() {
                return Code::TenantNotEmpty;
            }
        }
        self.tenants.set_quota(name, quota);
        Code::Ok
    }
}
