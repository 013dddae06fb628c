//! A board as a table: rows of panels, each with what it draws, its unit, and when to act.

/// A dashboard.
pub(super) struct Board {
    /// Name of its file, without `.json`; part of its uid.
    pub(super) name: &'static str,
    /// Title after `mc: `.
    pub(super) title: &'static str,
    /// Purpose, in a sentence.
    pub(super) about: &'static str,
    pub(super) rows: &'static [Row],
}

/// A row of panels under a heading.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: &'static [Panel],
}

/// A panel, made by [`Panel::value`] or [`Panel::graph`].
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) shape: Shape,
    pub(super) unit: Unit,
    /// Meaning of the values, when to worry, and what to do.
    pub(super) help: &'static str,
    /// Section of docs/operations.md with the steps, by its heading.
    pub(super) section: Option<&'static str>,
    pub(super) alarm: Option<Alarm>,
    pub(super) lines: &'static [Line],
}

/// An expression and its legend.
///
/// The generator adds the matchers of the variables `job` and `instance` to each `{` of the expression, so every series
/// is written with braces: `mc_raft_term{}`.
pub(super) type Line = (&'static str, &'static str);

/// Shape of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One number, coloured by its alarm.
    Value,
    /// Lines over time.
    Graph,
}

/// Unit of the values of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Count,
    Bytes,
    BytesPerSecond,
    PerSecond,
    Seconds,
    /// 0 to 1.
    Ratio,
}

/// Values that need somebody's attention: they are red.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Alarm {
    /// From this value up.
    From(f64),
    /// Below this value.
    Below(f64),
}

impl Panel {
    /// Shows one number.
    pub(super) const fn value(
        title: &'static str,
        unit: Unit,
        lines: &'static [Line],
        help: &'static str,
    ) -> Self {
        Self { title, shape: Shape::Value, unit, help, section: None, alarm: None, lines }
    }

    /// Draws lines over time.
    pub(super) const fn graph(
        title: &'static str,
        unit: Unit,
        lines: &'static [Line],
        help: &'static str,
    ) -> Self {
        Self { title, shape: Shape::Graph, unit, help, section: None, alarm: None, lines }
    }

    /// Makes values from `limit` up red.
    pub(super) const fn alarm_from(self, limit: f64) -> Self {
        Self { alarm: Some(Alarm::From(limit)), ..self }
    }

    /// Makes values below `limit` red.
    pub(super) const fn alarm_below(self, limit: f64) -> Self {
        Self { alarm: Some(Alarm::Below(limit)), ..self }
    }

    /// Names the section of docs/operations.md that has the steps.
    pub(super) const fn see(self, section: &'static str) -> Self {
        Self { section: Some(section), ..self }
    }
}

/// Writes the rate of a counter, summed by labels: `rate!("rpc", "mc_master_calls_shed_total{}")`.
macro_rules! rate {
    ($by:literal, $series:literal) => {
        concat!("sum by (", $by, ") (rate(", $series, "[$__rate_interval]))")
    };
}

/// Writes the increase of a counter within an hour, summed by labels, for what happens rarely.
macro_rules! in_an_hour {
    ($by:literal, $series:literal) => {
        concat!("sum by (", $by, ") (increase(", $series, "[1h]))")
    };
}

/// Writes a quantile of a histogram by labels: `quantile!(0.99, "rpc", "mc_raft_rpc_seconds", "{}")`.
macro_rules! quantile {
    ($q:literal, $by:literal, $metric:literal, $matchers:literal) => {
        concat!(
            "histogram_quantile(",
            $q,
            ", sum by (le, ",
            $by,
            ") (rate(",
            $metric,
            "_bucket",
            $matchers,
            "[$__rate_interval])))"
        )
    };
}

pub(super) use {in_an_hour, quantile, rate};
