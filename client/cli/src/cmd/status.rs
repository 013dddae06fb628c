//! `mcctl status`: shows the pool on one screen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use mc_console::{
    Ended, Global, Health, MasterView, Output, StoreView, Tone, View, columns, connect, human_bytes,
    not_offered, or_dash, printable,
};

pub(crate) async fn status(global: &Global, output: Output) -> Result<Ended> {
    let admin = connect::admin(&global.masters()).await?;
    let view = View::of(&admin.status().await);
    output.result(&view, || screen(&view, output));
    Ok(match view.health {
        Health::Healthy => Ended::Well,
        Health::Degraded => Ended::Negative,
        Health::Down => Ended::Down,
    })
}

fn screen(view: &View, output: Output) -> String {
    let mut text = String::new();
    let health = match view.health {
        Health::Healthy => output.paint(Tone::Good, "healthy"),
        Health::Degraded => output.paint(Tone::Warning, "degraded"),
        Health::Down => output.paint(Tone::Bad, "down"),
    };
    let nobody_answers = view.masters.iter().all(|master| master.pid.is_none());
    let unnamed = if nobody_answers { "unknown" } else { "not formed" };
    let cluster = view.cluster_id.as_deref().unwrap_or(unnamed);
    // Writing to a string can't fail.
    let _ = writeln!(text, "cluster {cluster}  {health}  keys {}", or_dash(view.keys));
    for problem in &view.problems {
        let _ = writeln!(text, "  {}", output.paint(Tone::Warning, &printable(problem)));
    }
    if let Some(warning) = &view.warning {
        let _ = writeln!(text, "  {}", output.paint(Tone::Warning, warning));
    }

    let row = |master: &MasterView| {
        let tone = if master.pid.is_some() { Tone::Good } else { Tone::Bad };
        [
            master.addr.clone(),
            output.paint(tone, &master.role),
            or_dash(master.term),
            or_dash(master.applied),
            or_dash(master.raft_timing.as_ref()),
            or_dash(master.pid),
            or_dash(master.id.as_ref()),
        ]
    };
    let heading = ["MASTER", "ROLE", "TERM", "APPLIED", "TIMING", "PID", "ID"];
    let _ = write!(text, "\n{}", columns(heading, view.masters.iter().map(row)));

    if !view.stores.is_empty() {
        let row = |store: &StoreView| {
            let tone = if store.is_alive() { Tone::Good } else { Tone::Bad };
            let full = 100.0 * store.used_bytes as f64 / store.capacity_bytes.max(1) as f64;
            [
                printable(&store.addr).into_owned(),
                output.paint(tone, &store.state),
                human_bytes(store.used_bytes),
                human_bytes(store.capacity_bytes),
                format!("{full:.0} %"),
                or_dash(Some(store.moved_by()).filter(|moved| !moved.is_empty())),
                store.id.clone(),
            ]
        };
        let heading = ["STORE", "STATE", "USED", "CAPACITY", "FULL", "MOVED BY", "ID"];
        let _ = write!(text, "\n{}", columns(heading, view.stores.iter().map(row)));
        let mut owned = BTreeMap::<&str, usize>::new();
        for tenant in view.stores.iter().filter_map(|store| store.tenant.as_deref()) {
            *owned.entry(tenant).or_default() += 1;
        }
        for (tenant, stores) in owned {
            let (all, tenant) = (view.stores.len(), printable(tenant));
            let _ = write!(text, "\n  {stores} of {all} stores take objects of tenant {tenant} alone");
        }
        for line in not_offered(&view.stores) {
            let _ = write!(text, "\n  {}", printable(&line));
        }
    }
    text
}
