use std::future::Future;

use mc_index::AuditedCall;

tokio::task_local! {
    /// The call that a task works on.
    static CALL: AuditedCall;
}

/// Does the work of a call. Entries that it proposes name the call, unless it proposes them in a task of its own.
pub(crate) fn audited<F: Future>(call: AuditedCall, work: F) -> impl Future<Output = F::Output> {
    CALL.scope(call, work)
}

/// Returns the call that this task works on.
pub(super) fn present() -> Option<AuditedCall> {
    CALL.try_with(Clone::clone).ok()
}
