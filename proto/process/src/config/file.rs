use std::path::{Path, PathBuf};

use super::ConfigError;

/// A flat TOML file of flag names and their values, as text.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) values: Vec<(String, Vec<String>)>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let malformed = |why: String| ConfigError::Malformed { path: path.to_owned(), why };
        let table: toml::Table = text.parse().map_err(|err: toml::de::Error| {
            let line =
                err.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count()) + 1;
            malformed(format!("{} in line {line}", err.message()))
        })?;
        let mut values = Vec::with_capacity(table.len());
        for (key, value) in table {
            let texts = match value {
                toml::Value::Array(items) => items.into_iter().map(scalar).collect::<Option<Vec<_>>>(),
                value => scalar(value).map(|text| vec![text]),
            };
            let texts = texts.ok_or_else(|| {
                malformed(format!("`{key}` is not a text, a number, a bool, or a list of those"))
            })?;
            values.push((key, texts));
        }
        Ok(Self { path: path.to_owned(), values })
    }

    /// Refuses keys that are not in `known`.
    pub(super) fn check_keys(&self, known: &[String]) -> Result<(), ConfigError> {
        match self.values.iter().find(|(key, _)| !known.contains(key)) {
            None => Ok(()),
            Some((key, _)) => Err(ConfigError::UnknownKey {
                path: self.path.clone(),
                key: key.clone(),
                nearest: nearest(key, known),
            }),
        }
    }
}

fn scalar(value: toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns the known key with the fewest edits to `key`, or `None` if more than half of it would have to change.
fn nearest(key: &str, known: &[String]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (distance(key, candidate), candidate))
        .min()
        .filter(|(edits, candidate)| *edits <= candidate.len().max(key.len()) / 2)
        .map(|(_, candidate)| candidate.clone())
}

/// Returns the Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
