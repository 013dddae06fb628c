//! Output of a command: results to standard output, progress to standard error.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::{array, iter};

use mc_client::{ByteSize, Code, Outcome};
use serde::Serialize;

/// First error of a write to standard output. A closed pipe is none: its reader wants no more.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Format of a command's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document on standard output and nothing else.
    Json,
}

/// Writes a command's result and story in the chosen format.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    colour: bool,
}

/// Result document of a command that failed.
#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
    /// Name of the pool's code; `None` when no call of the pool failed, as with a wrong command line or file.
    code: Option<&'static str>,
    /// `definite`: the command changed nothing in the pool. `unknown`: it may have.
    outcome: &'static str,
}

/// Meaning of a word in a table, shown by its colour.
#[derive(Clone, Copy, Debug)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Works, and something is missing.
    Warning,
    /// Does not work.
    Bad,
}

impl Output {
    /// Prints results in `format`, in colour only on a terminal and without `NO_COLOR` (<https://no-color.org>).
    pub fn new(format: Format) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { format, colour: format == Format::Table && io::stdout().is_terminal() && !no_colour }
    }

    /// Returns whether results are printed as JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Prints a result: `document` as JSON, or the text that `table` makes.
    pub fn result(self, document: &impl Serialize, table: impl FnOnce() -> String) {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(document).unwrap_or_else(|why| {
                    format!("{{\"error\": \"cannot write the result as JSON: {why}\"}}")
                });
                print(&printable_json(text));
            }
            Format::Table => print(table().trim_end()),
        }
    }

    /// Prints the error of a failed command as a JSON document. For people, the caller writes it to standard error.
    pub(crate) fn failure(self, error: &str, code: Option<Code>, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Definite => "definite",
            Outcome::Unknown => "unknown",
        };
        if self.is_json() {
            self.result(&Failure { error, code: code.map(|code| code.name()), outcome }, String::new);
        }
    }

    /// Prints one line of a longer command's story: to standard output, or to standard error beside a JSON document.
    pub fn say(self, line: &str) {
        match self.format {
            Format::Json => note(line),
            Format::Table => print(line),
        }
    }

    /// Returns `text` in the colour of its meaning, or unchanged where colour is off.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Bad => 31,
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes a line to standard error. Control characters that an error may quote are escaped.
pub fn note(line: &str) {
    let lines: Vec<_> = line.split('\n').map(printable).collect();
    // A closed standard error leaves no place to report the failure.
    let _ = writeln!(io::stderr().lock(), "{}", lines.join("\n"));
}

/// Writes the bytes of an object to standard output.
pub fn write_bytes(value: &[u8]) {
    keep_error(|out| out.write_all(value));
}

fn print(text: &str) {
    keep_error(|out| writeln!(out, "{text}"));
}

/// Keeps the error of a write to standard output for [`lost`], so that a command still completes its changes.
fn keep_error(write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) {
    let mut out = io::stdout().lock();
    note_lost(write(&mut out).and_then(|()| out.flush()));
}

/// Notes the outcome of a write to standard output.
pub(crate) fn note_lost(written: io::Result<()>) {
    match written {
        // `mcctl status | head -1` is no error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = LOST.set(error);
        }
        Ok(()) | Err(_) => {}
    }
}

/// Returns why a part of the output did not reach standard output, if so.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Escapes the characters of a name with which it could write over, reorder or add lines on a terminal: control
/// characters, and marks of line, paragraph and direction. Keys and tenants may have any.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let escape = |mut escaped: String, c: char| {
        if is_harmful(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
        escaped
    };
    Cow::Owned(text.chars().fold(String::new(), escape))
}

/// Escapes the same characters in a JSON document. JSON leaves most of them raw, and only in strings: of control
/// characters, strings have DEL and those above it, and line ends are outside of strings.
fn printable_json(document: String) -> String {
    let is_raw = |c: char| c != '\n' && is_harmful(c);
    if !document.contains(is_raw) {
        return document;
    }
    let escape = |mut escaped: String, c: char| {
        if is_raw(c) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
        escaped
    };
    document.chars().fold(String::new(), escape)
}

fn is_harmful(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Aligns cells in columns below their heading. Escape codes count as zero width.
pub fn columns<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = iter::once(heading.map(str::to_owned)).chain(rows).collect();
    let widest = |column: usize| rows.iter().map(|row| visible(&row[column])).max().unwrap_or_default();
    let widths: [usize; N] = array::from_fn(widest);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell}{:pad$}  ", "", pad = width - visible(cell));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A cell of what there may be; a dash stands for nothing.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn visible(cell: &str) -> usize {
    let mut escaped = false;
    cell.chars()
        .filter(|c| {
            let hidden = escaped || *c == '\x1b';
            escaped = hidden && *c != 'm';
            !hidden
        })
        .count()
}

/// Formats a size for people, as in `1.5 GiB`. The program does not parse this form.
pub fn human_bytes(bytes: u64) -> String {
    format!("{:#}", ByteSize(bytes))
}

/// Returns a share, rounded to four decimal places; 0 of nothing.
pub fn ratio(part: u64, whole: u64) -> f64 {
    rounded(part as f64 / whole.max(1) as f64)
}

/// Rounds to four decimal places.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_with_and_without_colour() {
        let rows = [["a:1", "\x1b[32malive\x1b[0m", "y"].map(str::to_owned)];
        assert_eq!(columns(["addr", "state", "x"], rows), "addr  state  x\na:1   \x1b[32malive\x1b[0m  y\n");
    }

    #[test]
    fn a_name_can_neither_move_the_cursor_nor_forge_a_row() {
        assert_eq!(printable("page/1 ä \\ 名"), "page/1 ä \\ 名");
        assert_eq!(printable("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("a\n1 B  b\r\t\x7f"), "a\\n1 B  b\\r\\t\\u{7f}");
        assert_eq!(printable("\u{9b}2J\u{202e}x\u{2028}"), "\\u{9b}2J\\u{202e}x\\u{2028}");
    }

    #[test]
    fn a_name_in_a_document_is_as_harmless_and_stays_the_same_name() {
        let names = ["page/1 \u{e4} \\ \u{540d}", "a\x1b[2J\n\x7f", "\u{9b}2J\u{202e}x\u{2028}"];
        let document = printable_json(serde_json::to_string_pretty(&names).unwrap());
        let read: Vec<String> = serde_json::from_str(&document).unwrap();
        assert_eq!(read, names);
        assert!(!document.contains(|c| c != '\n' && is_harmful(c)), "{document:?}");
        assert!(document.contains("\u{e4}") && document.contains('\u{540d}'), "{document}");
    }
}
