//! Decides whether clients were served as well as promised.
//!
//! The checker says whether answers were right; this says whether there were any. Each client is judged for each kind of
//! call, so that one client that goes on does not make up for another that has no service.

mod promise;
mod served;
#[cfg(test)]
mod tests;

pub use promise::{Allowed, Service, worst};
pub use served::{CallKind, Counted, Served, served, unserved};
