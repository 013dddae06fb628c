//! The audit logs of the masters.

use std::time::{Duration, SystemTime};

use mc_proto::v1::{self, ReadAuditRequest};

use super::Admin;
use crate::Error;

/// Most records that a master gives.
const RECORDS_MAX: u32 = 1_000;
/// Time limit for a master's answer. It may have to read 32 MiB.
const WITHIN: Duration = Duration::from_secs(5);

/// Which audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditKind {
    /// Changes of the cluster, which every master writes as it applies them.
    Changes,
    /// Callers that were refused, which the refusing master writes.
    Refusals,
}

/// Audit logs of all masters, as one.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AuditLog {
    /// The records, the oldest first. A change is there once, however many masters have it.
    pub records: Vec<AuditRecord>,
    /// Masters whose log is missing, each with the reason.
    pub missing: Vec<(String, Error)>,
}

/// A record of an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Time of the call: by the leader's clock for a change, by that of the refusing master for a refusal.
    pub at: SystemTime,
    /// Term of a change's log entry.
    pub term: Option<u64>,
    /// Index of a change's log entry.
    pub index: Option<u64>,
    /// Address of a master that has the record.
    pub master: String,
    /// Identity of the caller without the trust domain, as `admin/ops`; `None` without an identity.
    pub who: Option<String>,
    /// Host of the caller, if it is known.
    pub from: Option<String>,
    /// Name of the call, as `SetTenant`.
    pub call: String,
    /// Tenant of the call, empty for the default one; `None` for a call without a tenant.
    pub tenant: Option<String>,
    /// Subject of a change, such as a setting and its value, or the text of a refusal.
    pub subject: String,
    /// `OK`, `BEGUN` for a change of members, the name of an error, or the kind of a refusal.
    pub result: String,
    /// Number of objects that were removed.
    pub objects: Option<u64>,
    /// Number of equal refusals within a second that the record stands for; 1 for a change.
    pub times: u64,
}

impl Admin {
    /// Reads the newest records of the audit logs of all masters: at most `limit`, and at most 1,000 of each master.
    ///
    /// # Errors
    /// When no master gives its log; the error is that of one of them.
    pub async fn audit(&self, kind: AuditKind, limit: usize) -> Result<AuditLog, Error> {
        let most = u32::try_from(limit).unwrap_or(RECORDS_MAX).min(RECORDS_MAX);
        let addresses = self.status().await.masters.into_iter().map(|report| report.address);
        let asked = addresses.map(async |address| {
            let reply = self.ask_one("read audit", &address, WITHIN, async |master, caller| {
                let refusals = kind == AuditKind::Refusals;
                master
                    .client
                    .read_audit(ReadAuditRequest { caller: Some(caller), refusals, limit: most })
                    .await
            });
            let records = reply.await.map(|reply| reply.records);
            (address, records)
        });
        let (mut given, mut missing) = (Vec::new(), Vec::new());
        for (master, answer) in futures::future::join_all(asked.collect::<Vec<_>>()).await {
            match answer {
                Ok(records) => given.push((master, records)),
                Err(error) => missing.push((master, error)),
            }
        }
        match missing.first() {
            Some((_, error)) if given.is_empty() => Err(error.clone()),
            _ => Ok(AuditLog { records: merge(given, limit), missing }),
        }
    }
}

/// Merges the logs of several masters, and keeps the newest records.
fn merge(given: Vec<(String, Vec<v1::AuditRecord>)>, limit: usize) -> Vec<AuditRecord> {
    let read = |(master, records): (String, Vec<v1::AuditRecord>)| {
        records.into_iter().map(move |record| AuditRecord::read(&master, record))
    };
    let mut records: Vec<_> = given.into_iter().flat_map(read).collect();
    // Clocks of leaders differ, and the log has one order. Refusals have no index.
    records.sort_by_key(|record| (record.term, record.index, record.at));
    records.dedup_by(|a, b| a.index.is_some() && (a.term, a.index) == (b.term, b.index));
    records.split_off(records.len().saturating_sub(limit))
}

impl AuditRecord {
    fn read(master: &str, record: v1::AuditRecord) -> Self {
        let v1::AuditRecord { at_ms, term, index, who, from, call, tenant, subject, result, objects, times } =
            record;
        Self {
            at: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_millis(at_ms))
                .unwrap_or(SystemTime::UNIX_EPOCH),
            term,
            index,
            master: master.to_owned(),
            who: Some(who).filter(|who| !who.is_empty()),
            from: Some(from).filter(|from| !from.is_empty()),
            call,
            tenant,
            subject,
            result,
            objects,
            times: times.unwrap_or(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_once_and_in_the_order_of_the_log() {
        let change =
            |index, at_ms| v1::AuditRecord { term: Some(2), index: Some(index), at_ms, ..Default::default() };
        let given = vec![
            ("a".to_owned(), vec![change(7, 50), change(9, 40)]),
            ("b".to_owned(), vec![change(5, 60), change(7, 50)]),
        ];
        let indexes =
            |limit| merge(given.clone(), limit).iter().map(|it| it.index.unwrap()).collect::<Vec<_>>();
        assert_eq!(indexes(10), [5, 7, 9]);
        assert_eq!(indexes(2), [7, 9]);
    }

    #[test]
    fn refusals_of_all_masters_are_in_the_order_of_their_times() {
        let refusal = |at_ms| v1::AuditRecord { at_ms, times: Some(3), ..Default::default() };
        let given = vec![("a".to_owned(), vec![refusal(2), refusal(4)]), ("b".to_owned(), vec![refusal(2)])];
        let merged = merge(given, 10);
        let masters: Vec<_> = merged.iter().map(|it| it.master.as_str()).collect();
        assert_eq!((masters, merged[0].times), (vec!["a", "b", "a"], 3));
    }
}
