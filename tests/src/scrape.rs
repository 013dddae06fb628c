//! A page of metrics as Prometheus reads it.

use std::collections::BTreeMap;

/// A series with its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name; those of a histogram end in `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// Its labels, `job` and `instance` included.
    pub labels: BTreeMap<String, String>,
}

/// A metric, which is one series or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Its help text; empty if it has none.
    pub help: String,
    /// `counter`, `gauge`, `histogram` or `summary`.
    pub kind: String,
}

/// A scraped page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrape {
    /// Metrics by name.
    pub families: BTreeMap<String, Family>,
    /// Series, with the labels that Prometheus adds, and `up`, which it makes.
    pub series: Vec<Series>,
}

impl Scrape {
    /// Reads a page that was scraped from `instance` by `job`.
    pub fn parse(page: &str, job: &str, instance: &str) -> Self {
        let target = [("job", job), ("instance", instance)];
        let target: BTreeMap<_, _> =
            target.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
        let mut scrape = Self::default();
        scrape.series.push(Series { name: "up".to_owned(), labels: target.clone() });
        for line in page.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(about) = line.strip_prefix("# ") {
                let mut words = about.splitn(3, ' ');
                let (what, name, rest) = (words.next(), words.next(), words.next().unwrap_or_default());
                let name = name.unwrap_or_else(|| panic!("a comment without a name: {line}"));
                let family = scrape.families.entry(name.to_owned()).or_default();
                match what {
                    Some("HELP") => family.help = rest.to_owned(),
                    Some("TYPE") => family.kind = rest.to_owned(),
                    _ => panic!("a comment that is neither help nor type: {line}"),
                }
                continue;
            }
            let (name, mut labels) = series(line).unwrap_or_else(|| panic!("not a series: {line}"));
            labels.extend(target.clone());
            scrape.series.push(Series { name, labels });
        }
        scrape
    }

    /// Returns the metric that a series belongs to.
    pub fn family_of<'a>(&self, series: &'a str) -> &'a str {
        let parts = ["_bucket", "_sum", "_count"].into_iter();
        let whole =
            parts.filter_map(|part| series.strip_suffix(part)).find(|name| self.families.contains_key(*name));
        whole.unwrap_or(series)
    }
}

/// Reads the name and the labels of a line.
fn series(line: &str) -> Option<(String, BTreeMap<String, String>)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.trim_start_matches(',').split_once("=\"")?;
            let (mut value, mut escaped, mut len) = (String::new(), false, None);
            for (at, c) in after.char_indices() {
                match c {
                    '\\' if !escaped => escaped = true,
                    '"' if !escaped => {
                        len = Some(at);
                        break;
                    }
                    c => {
                        value.push(if escaped && c == 'n' { '\n' } else { c });
                        escaped = false;
                    }
                }
            }
            labels.insert(label.to_owned(), value);
            rest = &after[len? + 1..];
        }
        rest = &rest[1..];
    }
    rest.trim().split(' ').next()?.parse::<f64>().ok()?;
    Some((name.to_owned(), labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_families_and_series() {
        let page = "# HELP mc_t_seconds Time to do it\n# TYPE mc_t_seconds histogram\n\
                    mc_t_seconds_bucket{rpc=\"a, \\\"b\\\"\\\\\",le=\"+Inf\"} 2\nmc_t_seconds_sum{rpc=\"x\"} 0.5\n\n\
                    # TYPE mc_age_seconds gauge\nmc_age_seconds NaN\n";
        let scrape = Scrape::parse(page, "j", "i");
        let expected = Family { help: "Time to do it".to_owned(), kind: "histogram".to_owned() };
        assert_eq!(scrape.families["mc_t_seconds"], expected);
        assert_eq!(scrape.families["mc_age_seconds"].help, "");
        let names: Vec<_> = scrape.series.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["up", "mc_t_seconds_bucket", "mc_t_seconds_sum", "mc_age_seconds"]);
        let labels = &scrape.series[1].labels;
        assert_eq!(labels["rpc"], "a, \"b\"\\");
        assert_eq!((labels["job"].as_str(), labels["instance"].as_str()), ("j", "i"));
        assert_eq!(scrape.family_of("mc_t_seconds_sum"), "mc_t_seconds");
        assert_eq!(scrape.family_of("mc_other_sum"), "mc_other_sum");
    }
}
