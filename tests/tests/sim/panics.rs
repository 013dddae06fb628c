//! A task of a master that panics is gone without a word to the others: here it is a violation.

use std::panic;
use std::sync::OnceLock;

static FIRST: OnceLock<String> = OnceLock::new();

/// Notes panics from now on, besides printing them.
pub(crate) fn watch() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        FIRST.get_or_init(|| info.to_string());
        usual(info);
    }));
}

/// The first panic.
pub(crate) fn first() -> Option<&'static str> {
    FIRST.get().map(String::as_str)
}
