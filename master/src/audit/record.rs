use std::time::SystemTime;

use mc_index::AuditedResult;
use mc_net::{DenialReason, Denied};
use mc_raft::AuditedEntry;
use serde::{Deserialize, Serialize};

/// A line of an audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Time of the call, in milliseconds since 1970: by the clock of the leader for a change, of this master for a refusal.
    pub(crate) at_ms: u64,
    /// Term and log index of a change. All masters have the same line for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<(u64, u64)>,
    /// Identity of the caller without the trust domain; empty without an identity. The whole identity if it is of another trust
    /// domain.
    pub(crate) who: String,
    /// Host of the caller.
    pub(crate) from: String,
    pub(crate) call: String,
    /// Tenant of the call; empty for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Subject of a change, or the text of a refusal.
    pub(crate) subject: String,
    /// `OK`, `BEGUN`, the name of an error, or the kind of a refusal.
    pub(crate) result: String,
    /// Number of objects that were removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) objects: Option<u64>,
    /// Number of equal refusals that the line stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<u64>,
}

impl Record {
    /// Record of a change.
    pub(super) fn of_change(entry: &AuditedEntry) -> Self {
        let AuditedEntry { place, call, result: AuditedResult { name, objects } } = entry;
        Self {
            at_ms: call.at_ms,
            place: Some(*place),
            who: call.who.clone(),
            from: call.from.clone(),
            call: call.call.clone(),
            tenant: call.tenant.clone(),
            subject: call.subject.clone(),
            result: (*name).to_owned(),
            objects: *objects,
            times: None,
        }
    }

    /// Record of a refusal.
    pub(super) fn of_refusal(from: String, denied: &Denied) -> Self {
        let (_, reason) = DenialReason::ALL[denied.reason() as usize];
        let who = match denied {
            Denied::Foreign { id, .. } => id.to_string(),
            denied => denied.id().map(|id| id.path()).unwrap_or_default(),
        };
        Self {
            at_ms: now_ms(),
            who,
            from,
            call: denied.call().to_owned(),
            tenant: denied.named_tenant().map(str::to_owned),
            subject: denied.to_string(),
            result: reason.to_owned(),
            ..Self::default()
        }
    }
}

/// The clock of this machine, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_refusal_names_the_caller_that_is_known() {
        let id = |uri: &str| Arc::new(uri.parse().unwrap());
        let call = || "SetTenant".to_owned();
        let role = Denied::Role {
            call: call(),
            id: id("spiffe://prod/mc/tenant/a/ro/e"),
            open_to: mc_net::OpenTo::ADMINS,
        };
        let record = Record::of_refusal("10.0.0.7".into(), &role);
        assert_eq!((&*record.who, &*record.call, &*record.result), ("tenant/a/ro/e", "SetTenant", "role"));
        let plain = Record::of_refusal(String::new(), &Denied::Plain { call: call() });
        assert_eq!((&*plain.who, &*plain.result), ("", "plain"));
        let foreign =
            Denied::Foreign { call: call(), id: id("spiffe://other/mc/admin/ops"), ours: "prod".into() };
        assert_eq!(Record::of_refusal(String::new(), &foreign).who, "spiffe://other/mc/admin/ops");
    }
}
