//! Formatting of code and tables in GitHub's Markdown.

/// Formats `text` as code; an empty text stays empty.
pub(super) fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Formats a table. Cells are Markdown; their line breaks and `|` are escaped.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let head = line(head.map(str::to_owned));
    let rule = format!("|{}", "---|".repeat(N));
    let lines: Vec<_> = [head, rule].into_iter().chain(rows.into_iter().map(line)).collect();
    lines.join("\n")
}

fn line<const N: usize>(cells: [String; N]) -> String {
    let cells = cells.map(|cell| cell.replace("\n\n", "<br>").replace('\n', " ").replace('|', "\\|"));
    format!("| {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_one_cell_in_one_line() {
        let rows = [[code("lan|wan"), "one\ntwo\n\nthree".to_owned()], [code(""), "four".to_owned()]];
        assert_eq!(
            table(["Value", "Meaning"], rows),
            "| Value | Meaning |\n|---|---|\n| `lan\\|wan` | one two<br>three |\n|  | four |"
        );
    }
}
