//! The commands, one a file.

pub(crate) mod bench;
pub(crate) mod completion;
pub(crate) mod exist;
pub(crate) mod get;
pub(crate) mod playground;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod stat;
pub(crate) mod status;
