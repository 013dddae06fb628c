//! The extension module `mc._native`: the client library and an embedded store for Python.
//!
//! The packages `mc` and `mooncake` are Python over this module. It knows three kinds of arguments: objects with the buffer
//! protocol, whose exports it holds during a call; raw memory as (address, length); and handles. A call converts its
//! arguments under the GIL, runs without it, and converts its results under it again. No thread of the runtime
//! ever calls into Python.
//!
//! Without the feature `extension-module` only the parts that need no Python are built: see `Cargo.toml`.

mod codes;
#[cfg(feature = "extension-module")]
mod extension;

pub use codes::{Call, mooncake};
