//! The audit logs, and what they say of a call.

use std::fmt;

use http::HeaderValue;
use mc_index::AuditedCall;
use mc_net::Principal;
use mc_proto::v1;
use mc_proto::v1::set_security_request::Change;
use mc_types::{NodeId, Role, SegmentEpoch, StoreId, TlsLevel};
use tonic::{Extensions, Status};

use super::caller::host_of;
use crate::audit::{AuditLogs, Kind, Record, newest, now_ms};

/// Most records in an answer: with texts of the greatest length they have less than 4 MiB.
const RECORDS_MAX: usize = 1_000;

/// Caller of a call that is audited.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditedCaller {
    who: String,
    from: String,
}

impl AuditedCaller {
    pub(crate) fn of(call: &Extensions) -> Self {
        let who = call.get::<Principal>().and_then(Principal::id).map(|id| id.path());
        let from = host_of(call).map(|host| host.to_string());
        Self { who: who.unwrap_or_default(), from: from.unwrap_or_default() }
    }

    /// Returns the caller of a request over HTTP. A master that has passed it on names the caller in a header.
    pub(crate) fn of_http(request: &Extensions, passed_on: Option<&HeaderValue>) -> Self {
        let named = passed_on.and_then(|header| header.to_str().ok()?.strip_prefix("1;")?.split_once(';'));
        match (request.get::<Principal>(), named) {
            (Some(Principal::Named { id, .. }), Some((who, from))) if *id.role() == Role::Master => {
                Self { who: who.to_owned(), from: from.to_owned() }
            }
            // It may be a master, which has no certificate either. Nobody has an identity then.
            (Some(Principal::Open), Some((_, from))) => Self { who: String::new(), from: from.to_owned() },
            _ => Self::of(request),
        }
    }

    /// Returns the header by which a master names the caller of a request that it passes on.
    pub(crate) fn to_header(&self) -> HeaderValue {
        let value = HeaderValue::from_str(&format!("1;{};{}", self.who, self.from));
        // Identities and addresses are printable.
        value.unwrap_or(HeaderValue::from_static("1"))
    }

    /// Returns what the audit logs say of a request of this caller.
    pub(super) fn call(&self, request: &impl AuditedRequest) -> AuditedCall {
        let (call, tenant, subject) = request.described();
        self.named(call, tenant, subject)
    }

    /// Returns what the audit logs say of a call of this caller.
    pub(crate) fn named(&self, call: &str, tenant: Option<&str>, subject: String) -> AuditedCall {
        AuditedCall {
            at_ms: now_ms(),
            who: self.who.clone(),
            from: self.from.clone(),
            call: call.to_owned(),
            tenant: tenant.map(str::to_owned),
            subject,
        }
    }
}

/// A request that is audited.
pub(super) trait AuditedRequest {
    /// Name of the call, tenant if it has one, and what it is about.
    fn described(&self) -> (&'static str, Option<&str>, String);
}

impl AuditedRequest for v1::RemoveAllRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        // A pattern may be a key.
        let subject = if self.pattern.is_empty() { "all objects" } else { "objects by a pattern" };
        ("RemoveAll", Some(&self.tenant), subject.to_owned())
    }
}

impl AuditedRequest for v1::MountStoreRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("MountStore", None, format!("{} {}", self.name, store(&self.store_id, &self.epoch)))
    }
}

impl AuditedRequest for v1::UnmountStoreRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("UnmountStore", None, store(&self.store_id, &self.epoch))
    }
}

impl AuditedRequest for v1::AddMemberRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("AddMember", None, self.raft_address.clone())
    }
}

impl AuditedRequest for v1::RemoveMemberRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("RemoveMember", None, node(&self.node_id))
    }
}

impl AuditedRequest for v1::TransferLeaderRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("TransferLeader", None, if self.to.is_empty() { String::new() } else { node(&self.to) })
    }
}

impl AuditedRequest for v1::SetConfigRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("SetConfig", None, format!("{}={}", self.name, self.value))
    }
}

impl AuditedRequest for v1::FinishUpgradeRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        ("FinishUpgrade", None, if self.force { "by force" } else { "" }.to_owned())
    }
}

impl AuditedRequest for v1::SetSecurityRequest {
    fn described(&self) -> (&'static str, Option<&str>, String) {
        let subject = match &self.change {
            Some(Change::TlsLevel(number)) => {
                let level = TlsLevel::of_number(*number).map_or_else(String::new, |level| level.to_string());
                format!("tls={level}{}", if self.force { " by force" } else { "" })
            }
            Some(Change::Principal(change)) => principal(change),
            None => String::new(),
        };
        ("SetSecurity", None, subject)
    }
}

/// Describes a change of a principal, without its token.
fn principal(change: &v1::SetPrincipal) -> String {
    let v1::SetPrincipal {
        name,
        known: _,
        forget,
        token_hash,
        certificates,
        expires_s,
        denied,
        shares_memory,
    } = change;
    let mut subject = vec![name.clone()];
    if *forget {
        subject.push("removed".to_owned());
    }
    if let Some(hash) = token_hash {
        subject.push(if hash.is_empty() { "without token" } else { "new token" }.to_owned());
    }
    subject.extend(denied.map(|denied| if denied { "denied" } else { "allowed" }.to_owned()));
    subject.extend(expires_s.map(|expires| format!("expires_s={expires}")));
    subject.extend(shares_memory.map(|allowed| format!("shared_memory={allowed}")));
    // Last, because a long text is cut.
    if let Some(certificates) = certificates {
        subject.push(format!("certificates={}", certificates.uris.join(",")));
    }
    subject.join(" ")
}

fn store(id: &[u8], epoch: &[u8]) -> String {
    let id = StoreId::from_bytes(id).map_or_else(|| "malformed".to_owned(), |id| id.to_string());
    let epoch =
        SegmentEpoch::from_bytes(epoch).map_or_else(|| "malformed".to_owned(), |epoch| epoch.to_string());
    format!("store={id} epoch={epoch}")
}

fn node(id: &[u8]) -> String {
    NodeId::from_bytes(id).map_or_else(String::new, |id| id.to_string())
}

/// Reads the newest records of this master.
pub(super) async fn read(
    logs: &AuditLogs,
    request: &v1::ReadAuditRequest,
) -> Result<v1::ReadAuditReply, Status> {
    let kind = if request.refusals { Kind::Refusals } else { Kind::Changes };
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX).clamp(1, RECORDS_MAX);
    let dir = logs.dir().to_owned();
    let records = mc_durable::blocking(move || newest(&dir, kind, limit)).await;
    let failed = |why: &dyn fmt::Display| Status::internal(format!("the audit log can't be read: {why}"));
    let records = records.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    Ok(v1::ReadAuditReply { records: records.into_iter().map(message).collect() })
}

fn message(record: Record) -> v1::AuditRecord {
    let Record { at_ms, place, who, from, call, tenant, subject, result, objects, times } = record;
    let (term, index) = place.unzip();
    v1::AuditRecord { at_ms, term, index, who, from, call, tenant, subject, result, objects, times }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_types::SpiffeId;

    use super::*;

    /// Returns who asks, by the identity at the other end of the connection and the header.
    fn asks(id: &str, header: Option<&str>) -> (String, String) {
        let mut request = Extensions::default();
        let id = Arc::new(SpiffeId::of_path("prod", id).unwrap());
        request.insert(Principal::Named { id, token: None, shares_memory: false });
        let header = header.map(|header| HeaderValue::from_str(header).unwrap());
        let AuditedCaller { who, from } = AuditedCaller::of_http(&request, header.as_ref());
        (who, from)
    }

    #[test]
    fn a_request_that_a_master_passes_on_is_its_callers_and_nobody_else_can_claim_that() {
        let caller = AuditedCaller { who: "admin/ops".into(), from: "10.0.0.7".into() };
        let header = caller.to_header();
        let header = header.to_str().unwrap();
        assert_eq!(asks("master/m", Some(header)), ("admin/ops".into(), "10.0.0.7".into()));
        assert_eq!(asks("admin/a", Some(header)), ("admin/a".into(), String::new()));
        // As builds before write it.
        assert_eq!(asks("master/m", Some("1")), ("master/m".into(), String::new()));
        assert_eq!(asks("master/m", None), ("master/m".into(), String::new()));
    }

    #[test]
    fn a_change_of_a_principal_names_no_secret() {
        let change = v1::SetPrincipal {
            name: "tenant/a/rw/e".into(),
            token_hash: Some(vec![0xab; 32].into()),
            denied: Some(true),
            ..v1::SetPrincipal::default()
        };
        let request =
            v1::SetSecurityRequest { change: Some(Change::Principal(change)), ..Default::default() };
        let (call, tenant, subject) = request.described();
        assert_eq!((call, tenant, &*subject), ("SetSecurity", None, "tenant/a/rw/e new token denied"));
    }

    #[test]
    fn a_removal_by_a_pattern_does_not_name_it() {
        let request = v1::RemoveAllRequest { pattern: "a-key".into(), ..Default::default() };
        assert_eq!(request.described(), ("RemoveAll", Some(""), "objects by a pattern".to_owned()));
    }
}
