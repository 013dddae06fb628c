use mc_types::DEFAULT_TENANT;

/// Returns the name of a tenant in the index.
pub(super) fn index_name(shown: &str) -> &str {
    if shown == DEFAULT_TENANT { "" } else { shown }
}

/// Returns the name of a tenant as Mooncake shows it.
pub(super) fn shown_name(name: &[u8]) -> String {
    if name.is_empty() { DEFAULT_TENANT.to_owned() } else { text(name) }
}

/// Returns the name of a tenant in the index as text, which the API ensures that it is.
pub(super) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
