//! Alert rules of Prometheus: the few conditions that need a person.

use std::fmt::Write as _;

/// A rule, written in Prometheus' YAML by [`rules`].
struct Alert {
    name: &'static str,
    /// Expression that has a value while the condition holds.
    when: &'static str,
    /// Time for which it must hold, as Prometheus writes it.
    lasts: &'static str,
    severity: Severity,
    /// The condition and its effect; `{{ $labels.NAME }}` stands for a label.
    summary: &'static str,
    /// Section of docs/operations.md with the steps, by its heading.
    section: &'static str,
}

/// Urgency of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// Callers are affected: wake somebody.
    Critical,
    /// The pool works with less in reserve: look within the day.
    Warning,
}

const ALERTS: &[Alert] = &[
    Alert {
        name: "McNoLeader",
        when: "sum by (job) (mc_raft_is_leader) < 1",
        lasts: "30s",
        severity: Severity::Critical,
        summary: "No master of {{ $labels.job }} leads: puts fail, and clients run on their local caches.",
        section: "Check health",
    },
    Alert {
        name: "McLeaderCannotWrite",
        when: "sum by (job) (mc_raft_leader_can_write) < 1 and sum by (job) (mc_raft_is_leader) >= 1",
        lasts: "30s",
        severity: Severity::Critical,
        summary: "The leader of {{ $labels.job }} gets the answers of a majority too late and refuses every write.",
        section: "A leader that can't write",
    },
    Alert {
        name: "McMasterDown",
        when: "up{job=\"mc-master\"} == 0",
        lasts: "1m",
        severity: Severity::Warning,
        summary: "The master at {{ $labels.instance }} does not answer: the cluster tolerates one failure less.",
        section: "Replace a master whose machine is gone",
    },
    Alert {
        name: "McMasterWithoutLeader",
        when: "mc_raft_has_leader == 0",
        lasts: "2m",
        severity: Severity::Warning,
        summary: "The master at {{ $labels.instance }} knows no leader: it waits to be taken in, was removed, or can't reach the \
                  others.",
        section: "Check health",
    },
    Alert {
        name: "McStoreSuspect",
        when: "max by (job) (mc_stores{state=\"suspect\"}) > 0",
        lasts: "1m",
        severity: Severity::Warning,
        summary: "{{ $value }} stores are silent: their objects can't be read, and are dropped after store-ttl.",
        section: "Replace or drain a store",
    },
    Alert {
        name: "McPutsRefusedForDisk",
        when: "sum by (job) (increase(mc_master_puts_refused_total{short_of=\"disk\"}[5m])) > 0",
        lasts: "1m",
        severity: Severity::Critical,
        summary: "The leader of {{ $labels.job }} refuses puts: a disk under the masters' logs is nearly full.",
        section: "A master's disk fills",
    },
    Alert {
        name: "McPutsRefusedForSpace",
        when: "sum by (job) (increase(mc_master_puts_refused_total{short_of=\"space\"}[5m])) > 0",
        lasts: "5m",
        severity: Severity::Warning,
        summary: "The leader of {{ $labels.job }} refuses puts: evictions can't free enough space in the pool.",
        section: "Puts find no space",
    },
    Alert {
        name: "McDiskNearlyFull",
        when: "mc_data_dir_free_bytes < 1.25 * mc_data_dir_needed_bytes",
        lasts: "5m",
        severity: Severity::Warning,
        summary: "The disk under the data directory of {{ $labels.instance }} is nearly full; below the needed space a leader starts \
                  no puts.",
        section: "A master's disk fills",
    },
    Alert {
        name: "McDiskSlow",
        when: "histogram_quantile(0.99, sum by (le, job, instance) (rate(mc_raft_log_fsync_seconds_bucket[5m]))) > 0.1",
        lasts: "10m",
        severity: Severity::Warning,
        summary: "One in a hundred syncs of the log of {{ $labels.instance }} takes more than {{ $value | humanizeDuration }}.",
        section: "A master's disk is slow, stuck or broken",
    },
    Alert {
        name: "McWrongBytes",
        when: "sum by (job, instance) (increase(mc_client_checksum_mismatches_total[10m])) > 0",
        lasts: "0s",
        severity: Severity::Critical,
        summary: "The client at {{ $labels.instance }} read bytes that are not those that were written. It returned a miss instead.",
        section: "A store returns wrong bytes",
    },
];

/// Returns the file of alert rules.
pub(super) fn rules() -> String {
    let mut text = String::from(
        "# Generated from client/cli/src/cmd/monitoring/alerts.rs by `mcctl monitoring`.\n\
         groups:\n  - name: mc\n    rules:\n",
    );
    for alert in ALERTS {
        let severity = match alert.severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        };
        let runbook = format!("docs/operations.md#{}", anchor(alert.section));
        // Writing to a text cannot fail.
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {}\n          runbook: {}\n",
            alert.name,
            quoted(alert.when),
            alert.lasts,
            quoted(alert.summary),
            quoted(&runbook),
        );
    }
    text
}

/// Quotes a text for YAML, of which JSON's strings are a part.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_the_heading_in_lower_case_without_punctuation() {
        assert_eq!(anchor("A leader that can't write"), "a-leader-that-cant-write");
        assert_eq!(
            anchor("A master's disk is slow, stuck or broken"),
            "a-masters-disk-is-slow-stuck-or-broken"
        );
    }
}
