//! Audit logs of a master: the changes that it applied, whoever led, and the callers that it refused.
//!
//! `logs` uses `lines` and `refusals`; `logs` and `refusals` use `record`.

mod lines;
mod logs;
mod record;
mod refusals;

pub(crate) use logs::{AuditLogs, Kind, newest};
pub(crate) use record::{Record, now_ms};
