//! Tenants and their quotas.

use mc_index::Quota;
use mc_proto::v1;
use mc_types::MAX_ITEMS;

use super::audit::AuditedCaller;
use super::objects::limits;
use crate::leader::{Refusal, Services, TenantState, Tenants, audited};

/// Number of tenants in an answer when the request names none.
const LISTED_TENANTS: usize = 1000;

pub(super) async fn list(
    tenants: &Tenants,
    request: &v1::ListTenantsRequest,
) -> Result<v1::ListTenantsReply, Refusal> {
    let limit = match usize::try_from(request.limit).unwrap_or(usize::MAX) {
        0 => LISTED_TENANTS,
        limit => limit.min(MAX_ITEMS),
    };
    let after = request.after.as_ref().map(String::as_bytes);
    let (page, more) = tenants.list(after, limit).await?;
    Ok(v1::ListTenantsReply { tenants: page.into_iter().map(message).collect(), more })
}

fn message(TenantState { view, quota, calls, avoids_rdma }: TenantState) -> v1::Tenant {
    let all = view.usage.all();
    v1::Tenant {
        name: String::from_utf8_lossy(view.name.as_bytes()).into_owned(),
        registered: view.registered.is_some(),
        quota: Some(v1::Quota { bytes: quota.bytes, objects: quota.objects }),
        objects: view.usage.objects.count,
        bytes: view.usage.objects.bytes,
        puts_in_flight: view.usage.puts.count,
        bytes_in_flight: view.usage.puts.bytes,
        hard_pinned_bytes: all.pinned,
        calls_per_s: calls.unwrap_or(0),
        avoids_rdma,
    }
}

pub(super) async fn set(
    services: &Services,
    request: v1::SetTenantRequest,
    caller: &AuditedCaller,
) -> Result<v1::SetTenantReply, Refusal> {
    let tenant = request.tenant;
    limits(&tenant, 0)?;
    let quota = request.quota.map(|v1::Quota { bytes, objects }| Quota { bytes, objects });
    let (calls, rdma) = match quota {
        Some(_) => (request.calls_per_s, request.rdma),
        None => (Some(0), None),
    };
    let subject = quota.map_or_else(
        || "unregistered".to_owned(),
        |Quota { bytes, objects }| format!("bytes={bytes} objects={objects}"),
    );
    let call = caller.named("SetTenant", Some(&tenant), subject);
    audited(call, services.tenants.set(tenant.clone(), quota)).await?;
    if let Some(calls) = calls {
        let call = caller.named("SetTenant", Some(&tenant), format!("calls_per_s={calls}"));
        let calls = Some(calls).filter(|calls| *calls > 0);
        audited(call, services.security.set_calls(tenant.clone(), calls)).await?;
    }
    if let Some(allowed) = rdma {
        let call = caller.named("SetTenant", Some(&tenant), format!("rdma={allowed}"));
        audited(call, services.security.set_rdma(tenant, allowed)).await?;
    }
    Ok(v1::SetTenantReply {})
}
