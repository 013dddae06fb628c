//! Rights on a port: who calls, which callers a call is open to, and why one is denied.

mod denied;
mod guard;
mod log;
mod open_to;
mod principal;
mod records;

pub use denied::{DenialReason, Denied};
pub use guard::{Guard, bearer_of};
pub use open_to::{OpenTo, RoleKind};
pub use principal::{Demands, Principal, Stranger};
pub use records::{CallerRecord, CallerRecords};
