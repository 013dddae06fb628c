use bytes::{BufMut as _, Bytes, BytesMut};
use mc_types::Code;
use serde::{Deserialize, Serialize};

use super::{Op, Response};

/// Cluster version from which entries may name the call that they were proposed for.
pub const AUDIT_SINCE: u32 = 3;

/// First byte of a command that names its call. The call follows, then the command in its own format.
pub(crate) const AUDITED_FORMAT: u8 = 9;

/// Longest text in an [`AuditedCall`], in bytes.
const TEXT_MAX: usize = 600;

/// A call to a master that changes the cluster, for the audit logs of all masters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedCall {
    /// Time of the call by the leader's clock, in milliseconds since 1970. Nothing is decided by it.
    pub at_ms: u64,
    /// Identity of the caller without the trust domain; empty for one that has shown none.
    pub who: String,
    /// Host of the caller; empty if it is not known.
    pub from: String,
    /// Name of the call, as `SetTenant`.
    pub call: String,
    /// Tenant of the call, empty for the default one; `None` for a call without a tenant.
    pub tenant: Option<String>,
    /// Subject of the call: a setting and its value, a principal, a member or a store. Never the key of an object.
    pub subject: String,
}

impl AuditedCall {
    /// Returns an encoded command that names this call, which shortens long texts.
    #[must_use]
    pub fn put_before(&self, command: &[u8]) -> Bytes {
        let call = self.shortened();
        let encoded = postcard::to_stdvec(&call).expect("a call of plain values always encodes");
        let mut out = BytesMut::with_capacity(1 + encoded.len() + command.len());
        out.put_u8(AUDITED_FORMAT);
        out.put_slice(&encoded);
        out.put_slice(command);
        out.freeze()
    }

    fn shortened(&self) -> Self {
        let cut = |text: &String| {
            let fits = (0..=TEXT_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            text[..fits.unwrap_or(0)].to_owned()
        };
        Self {
            at_ms: self.at_ms,
            who: cut(&self.who),
            from: cut(&self.from),
            call: cut(&self.call),
            tenant: self.tenant.as_ref().map(cut),
            subject: cut(&self.subject),
        }
    }
}

/// Result of applying a command, for the audit logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditedResult {
    /// `OK`, the name of an error, or `BEGUN` for a change that no entry of the index makes.
    pub name: &'static str,
    /// Number of objects that were removed; `None` for other changes.
    pub objects: Option<u64>,
}

impl AuditedResult {
    /// Judges a command by its response.
    #[must_use]
    pub fn of(op: &Op, response: &Response) -> Self {
        let (name, objects) = match (op, response) {
            (Op::Tick, _) => ("BEGUN", None),
            (_, Response::WrongTerm) => ("WRONG_TERM", None),
            (_, Response::Removed(objects)) => (Code::Ok.name(), Some(*objects)),
            (Op::Remove { .. }, Response::Codes(codes)) => {
                (Code::Ok.name(), Some(codes.iter().filter(|code| **code == Code::Ok).count() as u64))
            }
            (_, Response::Codes(codes)) => (codes.first().copied().unwrap_or(Code::Ok).name(), None),
            _ => (Code::Ok.name(), None),
        };
        Self { name, objects }
    }
}

/// Splits a command that names its call into both; `None` for a command that names none.
pub(super) fn split(command: &[u8]) -> Option<Result<(AuditedCall, &[u8]), postcard::Error>> {
    match command.split_first() {
        Some((&AUDITED_FORMAT, body)) => Some(postcard::take_from_bytes(body)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, DecodeError, Stamp};

    fn command() -> Command {
        Command { stamp: Stamp { term: 3, ..Stamp::default() }, op: Op::SetClusterVersion(2) }
    }

    fn call() -> AuditedCall {
        AuditedCall {
            at_ms: 300,
            who: "admin/ops".into(),
            from: "::1".into(),
            call: "SetTenant".into(),
            tenant: Some("a".into()),
            subject: "x".into(),
        }
    }

    #[test]
    fn a_command_is_the_same_with_and_without_its_call() {
        let bare = command().encode();
        let named = call().put_before(&bare);
        assert_eq!(Command::decode_with_call(&named), Ok((command(), Some(call()))));
        assert_eq!(Command::decode_with_call(&bare), Ok((command(), None)));
        assert_eq!(Command::decode(&named), Ok(command()));
        assert!(matches!(Command::decode(&named[..8]), Err(DecodeError::Malformed(_))));
    }

    /// Logs have such entries: another encoding needs another format byte.
    #[test]
    fn the_encoding_stays_as_it_is() {
        let named = call().put_before(b"command");
        let expected = b"\x09\xac\x02\x09admin/ops\x03::1\x09SetTenant\x01\x01a\x01xcommand";
        assert_eq!(named[..], expected[..]);
    }

    /// A log must not be able to make decoding recurse.
    #[test]
    fn a_call_stands_before_one_command_alone() {
        let twice = call().put_before(&call().put_before(&command().encode()));
        assert_eq!(Command::decode(&twice), Err(DecodeError::Format(AUDITED_FORMAT)));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let subject = "ä".repeat(1 << 20);
        let named = AuditedCall { subject, ..call() }.put_before(&command().encode());
        assert!(named.len() < 2 * TEXT_MAX);
        let (_, cut) = Command::decode_with_call(&named).unwrap();
        assert_eq!(cut.unwrap().subject, "ä".repeat(TEXT_MAX / 2));
    }

    #[test]
    fn a_result_has_the_first_error_or_the_objects_that_were_removed() {
        let of = |op, response| {
            let AuditedResult { name, objects } = AuditedResult::of(&op, &response);
            (name, objects)
        };
        let remove = || Op::Remove { tenant: String::new(), items: Vec::new() };
        let removed = Response::Codes(vec![Code::Ok, Code::ObjectNotFound, Code::Ok]);
        assert_eq!(of(remove(), removed), ("OK", Some(2)));
        assert_eq!(of(remove(), Response::Codes(vec![Code::ObjectNotFound])), ("OK", Some(0)));
        assert_eq!(of(Op::Sweep { limit: 1 }, Response::Removed(3)), ("OK", Some(3)));
        assert_eq!(of(Op::Tick, Response::Done), ("BEGUN", None));
        let tenant = Op::SetTenant { tenant: String::new(), quota: None };
        assert_eq!(of(tenant, Response::Codes(vec![Code::TenantNotEmpty])), ("TENANT_NOT_EMPTY", None));
        assert_eq!(of(Op::SetClusterVersion(3), Response::Done), ("OK", None));
    }
}
