//! Tests of the whole: real processes that are killed and restarted, and a checker that decides whether what the clients
//! saw can be explained.
//!
//! - [`checker`]: per-key linearizability of a recorded history.
//! - [`Faults`]: a run whose planned fault did not happen fails.

pub mod checker;
mod faults;
mod seeded;

pub use faults::{Fault, Faults};
pub use seeded::Seeded;
