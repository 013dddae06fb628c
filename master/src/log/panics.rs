//! Panics of the log's database, which are its answer to some damage and to some errors of the disk: here they are errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, and returns the words of its panic if it does.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let before = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    result.map_err(|panic| words(&*panic).to_owned())
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// Keeps panics that become errors from being printed as panics. For the process: a library has no say in that.
pub(crate) fn print_others_only() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !CAUGHT.get() {
            print(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_words() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("of {}", 3)), Err::<(), _>("of 3".to_owned()));
        assert_eq!(caught(|| panic!("static")), Err::<(), _>("static".to_owned()));
        assert!(!CAUGHT.get(), "those after it are printed");
    }
}
