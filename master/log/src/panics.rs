//! Panics of the log's database, which are its answer to some damage and to some errors of the disk: here they are errors.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use parking_lot::Mutex;

/// Treatment of a panic on this thread.
enum Panics {
    /// It belongs to no caller: it is printed.
    Print,
    /// The next one becomes an error.
    Catch,
    /// One becomes an error: where it was. Another one while it unwinds ends the process, and must say why.
    Caught(String),
}

/// The first panic on one of the database's own threads, which no caller of it hears of: it waits for them forever.
static ON_ITS_THREADS: Mutex<Option<String>> = Mutex::new(None);

/// How the database names its threads.
const ITS_THREADS: &str = "sled-io-";

/// Which of the database's own threads has ended in a panic, and why. Known in a process that called
/// [`keep_caught_panics_quiet`].
pub(super) fn on_threads_of_the_database() -> Option<String> {
    ON_ITS_THREADS.lock().clone()
}

fn note_thread(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let Some(name) = thread.name().filter(|name| name.starts_with(ITS_THREADS)) else { return };
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let why = format!("{name}: {}, at {place}", words(panic.payload()));
    ON_ITS_THREADS.lock().get_or_insert(why);
}

thread_local! {
    static PANICS: RefCell<Panics> = const { RefCell::new(Panics::Print) };
}

/// Runs `work`, and returns the words of its panic if it does, and where it was.
pub(super) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let before = PANICS.replace(Panics::Catch);
    let result = catch_unwind(AssertUnwindSafe(work));
    let after = PANICS.replace(before);
    result.map_err(|panic| match after {
        Panics::Caught(place) => format!("{}, at {place}", words(&*panic)),
        Panics::Print | Panics::Catch => words(&*panic).to_owned(),
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// Keeps panics that become errors from being printed as panics, and notes those of the database's threads. For the
/// process: a library has no say in that.
pub fn keep_caught_panics_quiet() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        note_thread(panic);
        let quiet = PANICS.try_with(|panics| {
            let Ok(mut panics) = panics.try_borrow_mut() else { return false };
            let is_first = matches!(*panics, Panics::Catch);
            if is_first {
                *panics = Panics::Caught(panic.location().map(ToString::to_string).unwrap_or_default());
            }
            is_first
        });
        if !quiet.unwrap_or(false) {
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
        let nested = caught(|| caught(|| panic!("inner")).unwrap_or_else(|why| panic!("after {why}")));
        assert_eq!(nested, Err::<(), _>("after inner".to_owned()));
        assert!(PANICS.with_borrow(|panics| matches!(panics, Panics::Print)), "those after it are printed");
    }
}
