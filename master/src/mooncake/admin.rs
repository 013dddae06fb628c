use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use mc_index::TenantName;
use mc_types::MAX_TENANT_LEN;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::answers::{UNAVAILABLE_IN_CURRENT_MODE, failure, invalid, or_unavailable};
use super::forward::{PassableRequest, on_leader};
use super::tenant::{index_name, text};
use crate::api::{Api, ReplySize};
use crate::leader::{Refusal, RemovalPage, Services, audited};

/// Mooncake's number for a job that it does not know.
const JOB_NOT_FOUND: i32 = -1402;
/// Time after which a removal answers how far it has come, so that its caller has an answer in time.
const REMOVES_FOR: Duration = Duration::from_secs(1);
/// Tenants that a removal asks for at a time.
const TENANTS_PAGE: usize = 1_000;

const NO_DRAIN_JOBS: &str = "this pool has no drain jobs: the objects of a store leave the pool with it. Stop the store with SIGTERM, or \
     unmount a segment with `mcctl segments`";

#[derive(Debug, Deserialize)]
pub(super) struct RemoveAll {
    #[serde(default)]
    force: String,
    #[serde(default)]
    tenant_id: String,
}

#[derive(Serialize)]
struct RemovedAll {
    success: bool,
    removed_count: u64,
}

/// `POST /api/v1/remove_all?force=true&tenant_id=TENANT`: removes the objects of a tenant, or of all; leased ones stay without
/// `force`.
pub(super) async fn remove_all(
    State(api): State<Arc<Api>>,
    Query(RemoveAll { force, tenant_id }): Query<RemoveAll>,
    asked: PassableRequest,
) -> Response {
    let force = matches!(&*force, "true" | "1");
    if tenant_id.len() > MAX_TENANT_LEN {
        return invalid("Invalid tenant_id");
    }
    let removed = async |services: Arc<Services>| {
        let until = Instant::now() + REMOVES_FOR;
        let tenants = match &*tenant_id {
            "" => all_tenants(&services).await?,
            tenant => vec![index_name(tenant).to_owned()],
        };
        let mut removed_count = 0;
        for tenant in tenants {
            let progress = match Instant::now() < until {
                true => {
                    let call = asked.caller.named("RemoveAll", Some(&tenant), "all objects".to_owned());
                    audited(call, removed_of(&services, &tenant, force, until, &mut removed_count)).await
                }
                false => Ok(Progress::Late),
            };
            let left = match progress {
                Ok(Progress::Done) => continue,
                Ok(Progress::Late) => format!("{REMOVES_FOR:?} are over"),
                // The next leader starts from the beginning, and would count too few.
                Err(refusal) if removed_count > 0 => refusal.to_string(),
                Err(refusal) => return Err(refusal),
            };
            let why = format!("{removed_count} objects are removed, and others are left: {left}; ask again");
            return Ok(failure(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE_IN_CURRENT_MODE, why));
        }
        Ok(Json(RemovedAll { success: true, removed_count }).into_response())
    };
    or_unavailable(on_leader(&api, &asked, ReplySize::Small, removed).await)
}

/// How far a removal has come.
enum Progress {
    Done,
    /// The time is over, and there may be more.
    Late,
}

/// Removes what may be removed of a tenant, and counts it, until the time is over.
async fn removed_of(
    services: &Services,
    tenant: &str,
    force: bool,
    until: Instant,
    count: &mut u64,
) -> Result<Progress, Refusal> {
    if force {
        *count += services.objects.remove_all(tenant.to_owned()).await?;
        return Ok(Progress::Done);
    }
    let mut from = 0;
    loop {
        let RemovalPage { objects, next, .. } =
            services.objects.remove_matching(tenant, "", false, from).await?;
        *count += objects;
        match next {
            None => return Ok(Progress::Done),
            Some(_) if Instant::now() >= until => return Ok(Progress::Late),
            Some(next) => from = next,
        }
    }
}

/// Tenants that have objects.
async fn all_tenants(services: &Services) -> Result<Vec<String>, Refusal> {
    let (mut names, mut last) = (Vec::new(), None);
    loop {
        let after = last.as_ref().map(TenantName::as_bytes);
        let (page, more) = services.tenants.list(after, TENANTS_PAGE).await?;
        last = page.last().map(|tenant| tenant.view.name);
        let page = page.iter().filter(|tenant| tenant.view.usage.objects.count > 0);
        names.extend(page.map(|tenant| text(tenant.view.name.as_bytes())));
        if !more {
            return Ok(names);
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct JobQuery {
    #[serde(default)]
    job_id: String,
}

/// Body of a request for a drain job.
#[derive(Debug, Deserialize)]
struct DrainJob {
    segments: Vec<String>,
}

/// `POST /api/v1/drain_jobs`: there are none.
pub(super) async fn create_drain_job(body: Bytes) -> Response {
    match serde_json::from_slice::<DrainJob>(&body) {
        Ok(DrainJob { segments }) if segments.is_empty() => invalid("segments is empty"),
        Ok(_) => failure(StatusCode::CONFLICT, UNAVAILABLE_IN_CURRENT_MODE, NO_DRAIN_JOBS),
        Err(error) => invalid(format!("Invalid JSON body: {error}")),
    }
}

/// `/api/v1/drain_jobs/query?job_id=ID` and `/api/v1/drain_jobs/cancel`: no job is known.
pub(super) async fn find_drain_job(Query(JobQuery { job_id }): Query<JobQuery>) -> Response {
    if !is_uuid(&job_id) {
        return invalid("Missing or invalid job_id");
    }
    failure(StatusCode::NOT_FOUND, JOB_NOT_FOUND, format!("JOB_NOT_FOUND: {NO_DRAIN_JOBS}"))
}

/// Whether a text has the form of a UUID.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[derive(Serialize)]
pub(super) struct KvEvents {
    enabled: bool,
    published_batches: u64,
    published_events: u64,
    dropped_events: u64,
    skipped_unparsed_keys: u64,
}

/// `/kv_events/status`: no events are published.
pub(super) async fn kv_events_status() -> Json<KvEvents> {
    Json(KvEvents {
        enabled: false,
        published_batches: 0,
        published_events: 0,
        dropped_events: 0,
        skipped_unparsed_keys: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_id_of_one() {
        assert!(is_uuid("01234567-89ab-cdef-0000-000000000002"));
        for id in
            ["", "7", "01234567-89ab-cdef-0000-00000000000g", "0123456789abcdef0000000000000002", "----"]
        {
            assert!(!is_uuid(id), "{id}");
        }
    }
}
