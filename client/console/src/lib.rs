//! Parts that `mcctl` and `mc-bench` share: the flags of every command, output, exit codes, connections,
//! and certificates.
//!
//! A program parses its command line with [`Global`] in it, runs a command that ends as [`Ended`], and returns [`exit_code`].

pub mod certificates;
pub mod connect;
mod exit;
mod failure;
mod flags;
mod interrupt;
mod output;
mod progress;
mod view;

pub use exit::{Ended, exit_code, format_of, not_a_command, run_to_end};
pub use failure::{NoLeader, Unavailable};
pub use flags::Global;
pub use interrupt::{Interrupted, Interrupts};
pub use output::{
    Format, Output, Tone, columns, human_bytes, note, or_dash, printable, ratio, rounded, write_bytes,
};
pub use progress::Progress;
pub use view::{
    Health, Lacking, MasterView, StoreView, TransportView, View, address, lines_of, not_offered, state_name,
};
