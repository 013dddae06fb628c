//! Boards in Grafana's JSON.

use serde_json::{Value, json};

use super::board::{Alarm, Board, Line, Panel, Row, Shape, Unit};

/// Version of the JSON model: Grafana 11 and later read it.
const SCHEMA: u32 = 39;
/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// Series by which the variables find the jobs and instances: one of each kind of process.
const PROCESSES: &str = "{__name__=~\"mc_raft_has_leader|mc_store_ready|mc_client_hits_total\"}";
/// Matchers of the variables, added to every series.
const CHOSEN: &str = "job=~\"$job\",instance=~\"$instance\"";
/// Marks on the time axis of every board.
const LEADER_CHANGES: &str = "sum(increase(mc_raft_leader_changes_total{}[1m])) > 0";

/// Returns the model of a board.
pub(super) fn model(board: &Board) -> Value {
    json!({
        "uid": format!("mc-{}", board.name),
        "title": format!("mc: {}", board.title),
        "description": board.about,
        "tags": ["mc"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": false,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "graphTooltip": 1,
        "links": [{
            "type": "dashboards",
            "title": "mc",
            "tags": ["mc"],
            "asDropdown": false,
            "includeVars": true,
            "keepTime": true,
        }],
        "annotations": { "list": [{
            "name": "leader changes",
            "datasource": source(),
            "enable": true,
            "iconColor": "orange",
            "expr": chosen(LEADER_CHANGES),
            "titleFormat": "a new leader",
        }] },
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
            variable("job", "Job", PROCESSES),
            variable("instance", "Instance", &PROCESSES.replace('}', ",job=~\"$job\"}")),
        ] },
        "panels": panels(board.rows),
    })
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// A variable over the values of a label, of which any number can be chosen.
fn variable(label: &str, title: &str, series: &str) -> Value {
    let query = format!("label_values({series}, {label})");
    json!({
        "name": label,
        "label": title,
        "type": "query",
        "datasource": source(),
        "definition": query,
        "query": { "query": query, "refId": label },
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
    })
}

/// Adds the matchers of the variables to every series of an expression.
fn chosen(expression: &str) -> String {
    expression.replace("{}", "{,}").replace('{', &format!("{{{CHOSEN},")).replace(",,}", "}")
}

/// Lays the rows out from top to bottom.
fn panels(rows: &[Row]) -> Vec<Value> {
    let (mut panels, mut y) = (Vec::new(), 0);
    for row in rows {
        let id = panels.len() + 1;
        let grid = json!({ "x": 0, "y": y, "w": COLUMNS, "h": 1 });
        panels.push(json!({
            "id": id, "type": "row", "title": row.title, "collapsed": false, "gridPos": grid, "panels": [],
        }));
        y += 1;
        let (mut x, mut tallest) = (0, 0);
        for panel in row.panels {
            let (width, height) = size(panel.shape);
            if x + width > COLUMNS {
                (x, y, tallest) = (0, y + tallest, 0);
            }
            let grid = json!({ "x": x, "y": y, "w": width, "h": height });
            panels.push(panel_model(panel, panels.len() + 1, &grid));
            (x, tallest) = (x + width, tallest.max(height));
        }
        y += tallest;
    }
    panels
}

/// Width and height on the grid.
fn size(shape: Shape) -> (u32, u32) {
    match shape {
        Shape::Value => (4, 4),
        Shape::Graph => (8, 8),
    }
}

fn panel_model(panel: &Panel, id: usize, grid: &Value) -> Value {
    let see = panel.section.map(|section| format!(" See \"{section}\" in docs/operations.md."));
    let kind = match panel.shape {
        Shape::Value => "stat",
        Shape::Graph => "timeseries",
    };
    let options = match panel.shape {
        Shape::Value => json!({
            "colorMode": if panel.alarm.is_some() { "background" } else { "none" },
            "graphMode": "none",
            "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
        }),
        Shape::Graph => json!({
            "legend": { "displayMode": "list", "placement": "bottom" },
            "tooltip": { "mode": "multi", "sort": "desc" },
        }),
    };
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": format!("{}{}", panel.help, see.unwrap_or_default()),
        "datasource": source(),
        "gridPos": grid,
        "fieldConfig": { "defaults": field(panel), "overrides": [] },
        "options": options,
        "targets": panel.lines.iter().enumerate().map(|(at, line)| target(at, line)).collect::<Vec<_>>(),
    })
}

fn field(panel: &Panel) -> Value {
    let step = |colour: &str, from: Option<f64>| json!({ "color": colour, "value": from });
    let steps = match panel.alarm {
        None => vec![step("green", None)],
        Some(Alarm::From(limit)) => vec![step("green", None), step("red", Some(limit))],
        Some(Alarm::Below(limit)) => vec![step("red", None), step("green", Some(limit))],
    };
    let mut field = json!({
        "unit": unit(panel.unit),
        "thresholds": { "mode": "absolute", "steps": steps },
    });
    // A value below zero is the alarm of some graphs.
    if panel.alarm != Some(Alarm::Below(0.0)) {
        field["min"] = json!(0);
    }
    if panel.unit == Unit::Ratio {
        field["max"] = json!(1);
    }
    if panel.shape == Shape::Graph {
        let style = if panel.alarm.is_some() { "dashed" } else { "off" };
        field["custom"] = json!({
            "fillOpacity": 10,
            "showPoints": "never",
            "thresholdsStyle": { "mode": style },
        });
    }
    field
}

/// Returns Grafana's name of a unit.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "short",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "binBps",
        Unit::PerSecond => "cps",
        Unit::Seconds => "s",
        Unit::Ratio => "percentunit",
    }
}

fn target(at: usize, (expression, legend): &Line) -> Value {
    // A panel has a few lines, and Grafana names them by letters.
    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or_default());
    json!({
        "refId": letter.to_string(),
        "datasource": source(),
        "expr": chosen(expression),
        "legendFormat": legend,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_limited_to_the_chosen_jobs_and_instances() {
        let plain = chosen("max(a{}) / b{}");
        assert_eq!(plain, format!("max(a{{{CHOSEN}}}) / b{{{CHOSEN}}}"));
        assert_eq!(chosen("a{op=\"read\"}"), format!("a{{{CHOSEN},op=\"read\"}}"));
    }

    #[test]
    fn panels_fill_the_width_and_overlap_nowhere() {
        const GRAPH: Panel = Panel::graph("g", Unit::Count, &[("a{}", "a")], "A.");
        const VALUE: Panel = Panel::value("v", Unit::Count, &[("a{}", "a")], "A.").alarm_from(1.0);
        let rows = [
            Row { title: "one", panels: &[VALUE, VALUE] },
            Row { title: "two", panels: &[GRAPH, GRAPH, GRAPH, GRAPH] },
        ];
        let at =
            |panel: &Value| ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap_or(99));
        let places: Vec<_> = panels(&rows).iter().map(at).collect();
        assert_eq!(
            places,
            [
                [0, 0, 24, 1],
                [0, 1, 4, 4],
                [4, 1, 4, 4],
                [0, 5, 24, 1],
                [0, 6, 8, 8],
                [8, 6, 8, 8],
                [16, 6, 8, 8],
                [0, 14, 8, 8],
            ]
        );
    }
}
