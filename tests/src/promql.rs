//! The series that a PromQL expression selects, as far as boards and alerts need it: no full parser.

use std::collections::BTreeSet;
use std::fmt;

use crate::Series;

/// The parts of an expression that name series and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expression {
    /// Selectors, in their order.
    pub selectors: Vec<Selector>,
    /// Labels of `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub labels: BTreeSet<String>,
}

/// A selector such as `mc_stores{state="alive"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Name of the series. A selector by `__name__` alone counts as one for each name.
    pub name: String,
    /// Matchers, in their order.
    pub matchers: Vec<Matcher>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    /// The label.
    pub label: String,
    /// Whether it must have one of the values, or must not.
    pub negated: bool,
    /// The values; `None`: any.
    pub values: Option<Vec<String>>,
}

impl Expression {
    /// Reads an expression. Variables of Grafana must be replaced before.
    ///
    /// # Errors
    /// Where quotes or brackets are not closed, or a matcher is not one of those that this reads: a quoted value, or
    /// for a regular expression, literal alternatives or `.*` or `.+`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
        reader.expression().map_err(|why| format!("{why} at {:?} in {text:?}", &text[reader.at..]))
    }

    /// Lists what the expression names and `live` does not have: names of series, labels, values of labels.
    #[must_use]
    pub fn missing(&self, live: &[Series]) -> Vec<String> {
        let missing: Vec<_> = self.selectors.iter().filter_map(|selector| selector.missing(live)).collect();
        if !missing.is_empty() {
            return missing;
        }
        let selected = |series: &&Series| self.selectors.iter().any(|selector| selector.selects(series));
        let selected: Vec<_> = live.iter().filter(selected).collect();
        let unknown = |label: &&String| !selected.iter().any(|series| series.labels.contains_key(*label));
        let unknown = self.labels.iter().filter(unknown);
        unknown.map(|label| format!("no series here has the label {label}")).collect()
    }
}

impl Selector {
    /// Whether a series is selected.
    pub fn selects(&self, series: &Series) -> bool {
        series.name == self.name && self.matchers.iter().all(|matcher| matcher.holds(series))
    }

    fn missing(&self, live: &[Series]) -> Option<String> {
        let named: Vec<_> = live.iter().filter(|series| series.name == self.name).collect();
        if named.is_empty() {
            return Some(format!("there is no series {}", self.name));
        }
        for Matcher { label, values, .. } in &self.matchers {
            let is = |value: &str| {
                named.iter().any(|series| series.labels.get(label).is_some_and(|it| it == value))
            };
            if !named.iter().any(|series| series.labels.contains_key(label)) {
                return Some(format!("{} has no label {label}", self.name));
            }
            if let Some(value) = values.iter().flatten().find(|value| !is(value)) {
                return Some(format!("{} is nowhere with {label}={value:?}", self.name));
            }
        }
        let none = !live.iter().any(|series| self.selects(series));
        none.then(|| format!("no series matches {self}"))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, matchers } = self;
        let matchers: Vec<_> = matchers
            .iter()
            .map(|Matcher { label, negated, values }| {
                let op = if *negated { "!~" } else { "=~" };
                let values = values.as_ref().map_or(".*".to_owned(), |values| values.join("|"));
                format!("{label}{op}{values:?}")
            })
            .collect();
        write!(f, "{name}{{{}}}", matchers.join(","))
    }
}

impl Matcher {
    fn holds(&self, series: &Series) -> bool {
        let Some(values) = &self.values else { return true };
        let value = series.labels.get(&self.label).map(String::as_str).unwrap_or_default();
        values.iter().any(|it| it == value) != self.negated
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Words that are neither series nor functions, and after which no label follows.
const WORDS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"];
/// Words after which labels follow in parentheses.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

impl<'a> Reader<'a> {
    fn expression(&mut self) -> Result<Expression, String> {
        let mut found = Expression::default();
        while let Some(next) = self.peek() {
            match next {
                '"' | '\'' | '`' => drop(self.quoted()?),
                '[' => {
                    self.until(']')?;
                }
                '{' => self.selector("", &mut found.selectors)?,
                // A number, with a unit if it is a duration.
                '0'..='9' => drop(self.word()),
                c if in_word(c) => {
                    let word = self.word();
                    self.spaces();
                    if BEFORE_LABELS.contains(&word) {
                        found.labels.extend(self.labels()?);
                    } else if !WORDS.contains(&word.to_ascii_lowercase().as_str()) && !self.is_function() {
                        self.selector(word, &mut found.selectors)?;
                    }
                }
                other => self.at += other.len_utf8(),
            }
        }
        Ok(found)
    }

    /// Whether the word before this position is the name of a function or an aggregation.
    fn is_function(&self) -> bool {
        let rest = &self.text[self.at..];
        let next = rest.split(|c: char| !in_word(c)).next();
        rest.starts_with('(') || matches!(next, Some("by" | "without"))
    }

    fn labels(&mut self) -> Result<Vec<String>, String> {
        // group_left needs none.
        if self.peek() != Some('(') {
            return Ok(Vec::new());
        }
        let inside = self.until(')')?;
        Ok(inside.split(',').map(str::trim).filter(|label| !label.is_empty()).map(str::to_owned).collect())
    }

    /// Reads the matchers of a selector, if it has any.
    fn selector(&mut self, name: &str, selectors: &mut Vec<Selector>) -> Result<(), String> {
        let mut matchers = Vec::new();
        if self.peek() == Some('{') {
            self.at += 1;
            loop {
                self.spaces();
                match self.peek() {
                    Some('}') => break self.at += 1,
                    Some(',') => self.at += 1,
                    Some(c) if in_word(c) => matchers.push(self.matcher()?),
                    _ => return Err("a matcher is expected".into()),
                }
            }
        }
        if !name.is_empty() {
            selectors.push(Selector { name: name.to_owned(), matchers });
            return Ok(());
        }
        let by_name = matchers.iter().position(|it| it.label == "__name__" && !it.negated);
        let names = by_name.and_then(|at| matchers.remove(at).values).ok_or("a selector needs a name")?;
        selectors.extend(names.into_iter().map(|name| Selector { name, matchers: matchers.clone() }));
        Ok(())
    }

    fn matcher(&mut self) -> Result<Matcher, String> {
        let label = self.word().to_owned();
        self.spaces();
        let rest = &self.text[self.at..];
        let op = ["=~", "!~", "!=", "="].into_iter().find(|op| rest.starts_with(op));
        let op = op.ok_or("an operator is expected")?;
        self.at += op.len();
        self.spaces();
        let value = self.quoted()?;
        let values = match (op.contains('~'), value.as_str()) {
            (false, _) => Some(vec![value]),
            (true, ".*" | ".+") => None,
            (true, alternatives) => {
                if alternatives.contains(|c: char| !in_word(c) && !matches!(c, '|' | '-')) {
                    return Err(format!("{alternatives:?} is more than literal alternatives"));
                }
                Some(alternatives.split('|').map(str::to_owned).collect())
            }
        };
        Ok(Matcher { label, negated: op.starts_with('!'), values })
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn spaces(&mut self) {
        self.at = self.text.len() - self.text[self.at..].trim_start().len();
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !in_word(c) && c != '.').unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Skips from an opening bracket to its end, and returns the text between.
    fn until(&mut self, end: char) -> Result<&'a str, String> {
        let inside = &self.text[self.at + 1..];
        let len = inside.find(end).ok_or_else(|| format!("{end} is missing"))?;
        self.at += len + 2;
        Ok(&inside[..len])
    }

    /// Reads a text in quotes.
    fn quoted(&mut self) -> Result<String, String> {
        let quote =
            self.peek().filter(|c| matches!(c, '"' | '\'' | '`')).ok_or("a quoted value is expected")?;
        let (mut value, mut escaped) = (String::new(), false);
        for (at, c) in self.text[self.at..].char_indices().skip(1) {
            match c {
                '\\' if !escaped && quote != '`' => escaped = true,
                c if c == quote && !escaped => {
                    self.at += at + c.len_utf8();
                    return Ok(value);
                }
                c => {
                    value.push(c);
                    escaped = false;
                }
            }
        }
        Err("a quote is not closed".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scrape;

    fn live() -> Vec<Series> {
        let page = "# HELP mc_stores Stores\n# TYPE mc_stores gauge\n\
                    mc_stores{state=\"alive\"} 1\nmc_stores{state=\"suspect\"} 0\n\
                    mc_rpc_seconds_bucket{rpc=\"get\",le=\"0.1\"} 3\nmc_rpc_seconds_bucket{rpc=\"put\",le=\"0.1\"} 3\n\
                    mc_term 7\n";
        Scrape::parse(page, "mc-master", "a:9003").series
    }

    fn missing(text: &str) -> Vec<String> {
        Expression::parse(text).unwrap().missing(&live())
    }

    #[test]
    fn selectors_are_told_from_functions_numbers_labels_and_texts() {
        let text = "histogram_quantile(0.99, sum by (le, rpc) (rate(mc_rpc_seconds_bucket{rpc=~\"get|put\", job!=\"x\"}[5m]))) \
                    / on (job) group_left 1e3 > bool 2 and count without(le)(mc_term offset 5m) or label_replace(mc_stores, \"a\", \
                    \"mc_none\", 'b', \"(.*)\")";
        let found = Expression::parse(text).unwrap();
        let names: Vec<_> = found.selectors.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["mc_rpc_seconds_bucket", "mc_term", "mc_stores"]);
        assert_eq!(found.labels.iter().map(String::as_str).collect::<Vec<_>>(), ["job", "le", "rpc"]);
        let [rpc, job] = &found.selectors[0].matchers[..] else { panic!("{found:?}") };
        assert_eq!((rpc.label.as_str(), rpc.negated), ("rpc", false));
        assert_eq!(rpc.values, Some(vec!["get".to_owned(), "put".to_owned()]));
        assert_eq!((job.label.as_str(), job.negated), ("job", true));
    }

    #[test]
    fn a_selector_by_name_alone_counts_for_each_name() {
        let found = Expression::parse("{__name__=~\"mc_term|mc_none\",job=~\".*\"}").unwrap();
        let names: Vec<_> = found.selectors.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["mc_term", "mc_none"]);
        assert_eq!(found.missing(&live()), ["there is no series mc_none"]);
    }

    #[test]
    fn what_is_live_is_not_missing() {
        for text in [
            "mc_term",
            "sum(mc_stores{state=\"alive\"}) / sum(mc_stores{state=~\".*\",instance=~\".+\"})",
            "sum by (rpc, le) (mc_rpc_seconds_bucket{rpc=~\"get|put\",job=\"mc-master\"})",
            "mc_stores{state!=\"suspect\"}",
            "up{instance=\"a:9003\"} == 0",
        ] {
            assert_eq!(missing(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_wrong_name_label_value_or_suffix_is_found() {
        for (text, why) in [
            ("sum(mc_terms)", "there is no series mc_terms"),
            ("rate(mc_rpc_seconds_buckets{rpc=\"get\"}[1m])", "there is no series mc_rpc_seconds_buckets"),
            ("mc_rpc_seconds_count", "there is no series mc_rpc_seconds_count"),
            ("mc_stores{state=\"lost\"}", "mc_stores is nowhere with state=\"lost\""),
            ("mc_stores{state=~\"alive|lost\"}", "mc_stores is nowhere with state=\"lost\""),
            ("mc_stores{state!=\"lost\"}", "mc_stores is nowhere with state=\"lost\""),
            ("mc_stores{mood=~\".*\"}", "mc_stores has no label mood"),
            ("sum by (state) (mc_term)", "no series here has the label state"),
            (
                "mc_stores{state=\"alive\",state!=\"alive\"}",
                "no series matches mc_stores{state=~\"alive\",state!~\"alive\"}",
            ),
        ] {
            assert_eq!(missing(text), [why], "{text}");
        }
    }

    #[test]
    fn an_expression_that_cannot_be_read_is_an_error() {
        for text in [
            "mc_term{",
            "mc_term{state}",
            "mc_term{state=\"a}",
            "rate(mc_term[5m)",
            "{job=\"a\"}",
            "a{b=~\"c.d\"}",
        ] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }
}
