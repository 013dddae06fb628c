use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use mc_index::{Quota, TenantName};
use mc_types::{Code, MAX_TENANT_LEN};
use serde::{Deserialize, Serialize};

use super::answers::{failure, invalid, or_unavailable};
use super::forward::{PassableRequest, on_leader};
use super::tenant::{index_name, shown_name};
use crate::api::{Api, ReplySize};
use crate::leader::{Refusal, Services, TenantState, audited};

/// Most tenants in an answer.
const LISTED: usize = 4_096;
/// Largest quota in bytes, as Mooncake bounds it.
const LARGEST: u64 = (1 << 63) - 1;

#[derive(Debug, Deserialize)]
pub(super) struct TenantQuery {
    #[serde(default)]
    tenant_id: String,
}

#[derive(Debug, Deserialize)]
struct Policy {
    requested_quota_bytes: u64,
}

/// A tenant's quota as Mooncake shows it; 0 bytes are no limit.
#[derive(Serialize)]
struct Snapshot {
    tenant_id: String,
    requested_quota_bytes: u64,
    effective_quota_bytes: u64,
    charged_bytes: u64,
    /// Whether its puts are refused, whatever their size.
    admission_closed: bool,
    over_quota: bool,
    has_explicit_policy: bool,
}

#[derive(Serialize)]
struct Success<T> {
    success: bool,
    data: T,
}

impl Snapshot {
    fn new(TenantState { view, quota, .. }: &TenantState, services: &Services) -> Self {
        let charged_bytes = view.usage.all().bytes;
        let name = String::from_utf8_lossy(view.name.as_bytes());
        let is_served = services.coordinator.read(|applied| applied.state.is_served(&name));
        Self {
            tenant_id: shown_name(view.name.as_bytes()),
            requested_quota_bytes: view.registered.unwrap_or_default().bytes,
            effective_quota_bytes: quota.bytes,
            charged_bytes,
            admission_closed: !is_served,
            over_quota: quota.bytes > 0 && charged_bytes > quota.bytes,
            has_explicit_policy: view.registered.is_some(),
        }
    }
}

/// `/api/v1/tenant_quotas?tenant_id=TENANT`: GET, PUT and DELETE of a tenant's quota in bytes; GET without a tenant lists all.
pub(super) async fn tenant_quotas(
    State(api): State<Arc<Api>>,
    Query(TenantQuery { tenant_id }): Query<TenantQuery>,
    asked: PassableRequest,
) -> Response {
    if tenant_id.len() > MAX_TENANT_LEN {
        return invalid("Invalid tenant_id");
    }
    if tenant_id.is_empty() && asked.method != Method::GET {
        return invalid("Missing or invalid tenant_id");
    }
    let bytes = if asked.method == Method::PUT {
        match serde_json::from_slice(&asked.body) {
            Ok(Policy { requested_quota_bytes }) if (1..=LARGEST).contains(&requested_quota_bytes) => {
                requested_quota_bytes
            }
            Ok(_) => return invalid("Tenant quota must be in [1, 2^63 - 1] bytes"),
            Err(error) => return invalid(format!("Invalid JSON body: {error}")),
        }
    } else {
        0
    };
    let size = if tenant_id.is_empty() { ReplySize::Large } else { ReplySize::Small };
    let answer = on_leader(&api, &asked, size, async |services| {
        let done = match asked.method {
            Method::PUT => {
                let call =
                    asked.caller.named("SetTenant", Some(index_name(&tenant_id)), format!("bytes={bytes}"));
                audited(call, put(&services, &tenant_id, bytes)).await
            }
            Method::DELETE => {
                let call =
                    asked.caller.named("SetTenant", Some(index_name(&tenant_id)), "unregistered".to_owned());
                audited(call, delete(&services, &tenant_id)).await
            }
            _ if tenant_id.is_empty() => list(&services).await,
            _ => get(&services, &tenant_id).await,
        };
        match done {
            Err(Refusal::Tenant { name, code }) => Ok(refused(code, &Refusal::Tenant { name, code })),
            other => other,
        }
    });
    or_unavailable(answer.await)
}

fn refused(code: Code, why: &Refusal) -> Response {
    let status = match code {
        Code::TenantNotEmpty => StatusCode::CONFLICT,
        Code::TenantNotRegistered => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    };
    failure(status, code as i32, why.to_string())
}

async fn list(services: &Services) -> Result<Response, Refusal> {
    let (tenants, _) = services.tenants.list(None, LISTED).await?;
    let data: Vec<_> = tenants.iter().map(|tenant| Snapshot::new(tenant, services)).collect();
    Ok(Json(Success { success: true, data }).into_response())
}

/// Returns the state of a tenant; `None` if it is not registered and has nothing in the pool.
async fn find(services: &Services, tenant: &str) -> Result<Option<TenantState>, Refusal> {
    services.coordinator.lead().await?;
    let name = TenantName::new(index_name(tenant).as_bytes());
    Ok(services.coordinator.read(|applied| {
        let found = applied.state.tenants_from(name).next().filter(|view| view.name == name);
        found.map(|view| TenantState::of(&applied.state, view))
    }))
}

async fn get(services: &Services, tenant: &str) -> Result<Response, Refusal> {
    Ok(match find(services, tenant).await? {
        Some(found) => Json(Success { success: true, data: Snapshot::new(&found, services) }).into_response(),
        None => not_found(tenant),
    })
}

async fn put(services: &Services, tenant: &str, bytes: u64) -> Result<Response, Refusal> {
    let before = find(services, tenant).await?.and_then(|found| found.view.registered);
    // The number of objects is bounded with `mcctl` alone.
    let quota = Quota { bytes, objects: before.unwrap_or_default().objects };
    services.tenants.set(index_name(tenant).to_owned(), Some(quota)).await?;
    get(services, tenant).await
}

async fn delete(services: &Services, tenant: &str) -> Result<Response, Refusal> {
    let Some(found) = find(services, tenant).await?.filter(|found| found.view.registered.is_some()) else {
        return Ok(not_found(tenant));
    };
    services.tenants.set(index_name(tenant).to_owned(), None).await?;
    Ok(Json(Success { success: true, data: Snapshot::new(&found, services) }).into_response())
}

fn not_found(tenant: &str) -> Response {
    let why = format!("tenant `{tenant}` has no quota of its own, and nothing in the pool");
    failure(StatusCode::NOT_FOUND, Code::ObjectNotFound as i32, why)
}
