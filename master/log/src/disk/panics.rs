//! Turns panics of the log's database into errors. sled panics on some damage and on some errors of the disk.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use parking_lot::Mutex;

/// Treatment of a panic on this thread.
enum Panics {
    /// The panic is printed, because no caller waits for it.
    Print,
    /// The next one becomes an error.
    Catch,
    /// A panic has become an error; the text says where it was. Another panic while it unwinds ends the process, and
    /// must say why.
    Caught(String),
}

/// The first panic on one of the database's own threads. Callers do not see it: they wait for the thread forever.
static ON_ITS_THREADS: Mutex<Option<String>> = Mutex::new(None);

/// Prefix of the names of the database's threads.
const ITS_THREADS: &str = "sled-io-";

/// Returns the name and the message of the database's first thread that ended in a panic. CallerRecord in a process that
/// called [`keep_caught_panics_quiet`].
pub(crate) fn on_threads_of_the_database() -> Option<String> {
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

/// Runs `work`. If it panics, returns the message and the place of the panic.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
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

/// Installs a panic hook that does not print panics which become errors, and that records those of the database's
/// threads. The executable calls this: a panic hook is not for a library to choose.
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
