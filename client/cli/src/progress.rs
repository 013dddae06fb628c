//! How far a longer command is: a bar on a terminal, a line every few seconds elsewhere; always on standard error.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{self, Output};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// Progress towards a known total.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let template = "{msg} [{wide_bar}] {human_pos}/{human_len} {elapsed}";
            // The template is a constant; the default style serves as well.
            let style = ProgressStyle::with_template(template)
                .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "));
            ProgressBar::new(total).with_style(style).with_message(what)
        });
        Self { what, total, bar, said: Instant::now() }
    }

    /// It has come so far.
    pub(crate) fn set(&mut self, done: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done.min(self.total)),
            None if self.said.elapsed() >= LINE_EVERY => {
                self.said = Instant::now();
                output::note(&format!("{}: {} of {}", self.what, done.min(self.total), self.total));
            }
            None => {}
        }
    }

    /// Tells a line of the story without tearing the bar.
    pub(crate) fn say(&self, output: Output, line: &str) {
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
