//! Sessions: objects that are read or written range by range.

mod get;

pub use get::{GetSession, ReadInto};
