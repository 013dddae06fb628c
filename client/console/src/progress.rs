//! Progress of a longer command on standard error: a bar on a terminal, else a line every few seconds.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{self, Output};

/// Minimum time between two lines when standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// Progress towards a known total.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    total: u64,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl Progress {
    /// Begins at 0 of `total`.
    pub fn new(what: &'static str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let template = "{msg} [{wide_bar}] {human_pos}/{human_len} {elapsed}";
            // The template is a constant. If it did not parse, the default style would do.
            let style = ProgressStyle::with_template(template)
                .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "));
            ProgressBar::new(total).with_style(style).with_message(what)
        });
        Self { what, total, bar, said: Instant::now() }
    }

    /// Sets how much is done.
    pub fn set(&mut self, done: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done.min(self.total)),
            None if self.said.elapsed() >= LINE_EVERY => {
                self.said = Instant::now();
                output::note(&format!("{}: {} of {}", self.what, done.min(self.total), self.total));
            }
            None => {}
        }
    }

    /// Prints a line of the story without disturbing the bar.
    pub fn say(&self, output: Output, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output.say(line)),
            None => output.say(line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
