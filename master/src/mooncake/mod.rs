//! HTTP paths of Mooncake, in its formats, for engines and tools that were made for it.

mod forward;
mod metadata;

pub(crate) use metadata::routes as metadata_routes;
