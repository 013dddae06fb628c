//! `mcctl tenants list|set|rm`: shows tenants, and sets their quotas and limits.

use std::borrow::Cow;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use mc_client::{Admin, Quota, Setting, Tenant, TenantRules};
use mc_console::{Ended, Global, Output, columns, connect, human_bytes, printable};
use mc_types::ByteSize;
use serde::Serialize;

use super::Switch;

#[derive(Debug, Subcommand)]
pub(crate) enum TenantsCommand {
    /// List the tenants that have a quota of their own or something in the pool
    List,
    /// Give a tenant a quota of its own, a limit on its calls and a rule for RDMA, or change them; at the quota, its own objects
    /// are evicted first
    Set(TenantQuotaArgs),
    /// Take a tenant's own quota and limit away; it must have no objects. A rule for RDMA stays
    Rm {
        /// Name of the tenant; empty: the default tenant
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TenantQuotaArgs {
    /// Name of the tenant; empty: the default tenant
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) limits: TenantLimits,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct TenantLimits {
    /// Most bytes of all replicas, puts in flight included; 0: no limit [default: as it is]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<ByteSize>,
    /// Most objects, puts in flight included; 0: no limit [default: as it is]
    #[arg(long, value_name = "N")]
    pub(crate) objects: Option<u64>,
    /// Most calls of its users in a second; 0: no limit [default: as it is]
    #[arg(long, value_name = "N")]
    pub(crate) calls: Option<u32>,
    /// Whether its bytes may go by RDMA, which does not encrypt them [default: as it is]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(crate) rdma: Option<Switch>,
}

#[derive(Serialize)]
struct Document {
    tenants: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    /// Whether the quota is its own, rather than the default one.
    registered: bool,
    /// 0: no limit.
    quota_bytes: u64,
    /// 0: no limit.
    quota_objects: u64,
    objects: u64,
    bytes: u64,
    puts_in_flight: u64,
    bytes_in_flight: u64,
    hard_pinned_bytes: u64,
    /// 0: no limit.
    calls_per_s: u32,
    /// Whether its bytes may go by RDMA.
    rdma: bool,
}

#[derive(Serialize)]
struct Changed<'a> {
    tenant: &'a str,
    /// set or removed.
    result: &'static str,
}

pub(crate) async fn tenants(global: &Global, command: &TenantsCommand, output: Output) -> Result<Ended> {
    let admin = connect::client_of(global).await?.admin();
    match command {
        TenantsCommand::List => {
            let tenants = admin.tenants().await?.into_iter().map(listed).collect();
            let document = Document { tenants };
            output.result(&document, || table(&document));
        }
        TenantsCommand::Set(args) => {
            let (name, quota) = (&args.name, wanted(&admin, &args.name, &args.limits).await?);
            let mut text = format!("{}, {}", limit(quota.bytes.0, size), limit(quota.objects, objects_text));
            let mut rules = TenantRules::default();
            if let Some(calls) = args.limits.calls {
                rules = rules.with_calls_per_s(calls);
                let calls = limit(calls.into(), |calls| format!("{calls} calls a second"));
                text = format!("{text}, {calls}");
            }
            if let Some(rdma) = args.limits.rdma {
                rules = rules.with_rdma(rdma == Switch::On);
                text = format!("{text}, RDMA {rdma}");
            }
            admin.set_tenant_rules(name, quota, rules).await?;
            output.result(&Changed { tenant: name, result: "set" }, || format!("{}: {text}", shown(name)));
        }
        TenantsCommand::Rm { name } => {
            admin.remove_tenant(name).await?;
            output.result(&Changed { tenant: name, result: "removed" }, || {
                format!("{} has no quota of its own any more", shown(name))
            });
        }
    }
    Ok(Ended::Well)
}

/// Returns the quota that a tenant is to have: a limit that is not given stays as it is.
///
/// The quota is read before it is written, so of two changes at the same time one may take back the other.
async fn wanted(admin: &Admin, name: &str, limits: &TenantLimits) -> Result<Quota> {
    if let (Some(bytes), Some(objects)) = (limits.bytes, limits.objects) {
        return Ok(Quota::default().with_bytes(bytes).with_objects(objects));
    }
    let now = match admin.tenants().await?.into_iter().find(|tenant| tenant.name == name) {
        Some(tenant) => tenant.quota,
        None => default_quota(&admin.config().await?.settings)?,
    };
    Ok(changed(now, limits))
}

fn changed(now: Quota, limits: &TenantLimits) -> Quota {
    now.with_bytes(limits.bytes.unwrap_or(now.bytes)).with_objects(limits.objects.unwrap_or(now.objects))
}

/// Returns the default quota. It applies to a tenant that the leader does not list: one without a quota of its own and
/// without objects.
fn default_quota(settings: &[Setting]) -> Result<Quota> {
    let value = |name: &str| {
        let setting = settings.iter().find(|setting| setting.name == name);
        setting.map(|setting| setting.value.as_str()).with_context(|| {
            format!("the masters have no setting {name}, so the present limits are unknown: give both limits")
        })
    };
    let bytes =
        value("default-quota-bytes")?.parse().context("cannot read the setting default-quota-bytes")?;
    let objects =
        value("default-quota-objects")?.parse().context("cannot read the setting default-quota-objects")?;
    Ok(Quota::default().with_bytes(bytes).with_objects(objects))
}

fn listed(tenant: Tenant) -> Listed {
    Listed {
        name: tenant.name,
        registered: tenant.registered,
        quota_bytes: tenant.quota.bytes.0,
        quota_objects: tenant.quota.objects,
        objects: tenant.objects,
        bytes: tenant.bytes.0,
        puts_in_flight: tenant.puts_in_flight,
        bytes_in_flight: tenant.bytes_in_flight.0,
        hard_pinned_bytes: tenant.hard_pinned_bytes.0,
        calls_per_s: tenant.calls_per_s,
        rdma: !tenant.avoids_rdma,
    }
}

/// Returns the name as people read it.
fn shown(name: &str) -> Cow<'_, str> {
    if name.is_empty() { Cow::Borrowed("(default)") } else { printable(name) }
}

fn limit(limit: u64, text: impl Fn(u64) -> String) -> String {
    if limit == 0 { "no limit".to_owned() } else { text(limit) }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn objects_text(objects: u64) -> String {
    format!("{objects} objects")
}

fn table(document: &Document) -> String {
    if document.tenants.is_empty() {
        return "no tenant has a quota or an object".to_owned();
    }
    let heading = [
        "TENANT",
        "OBJECTS",
        "OF",
        "BYTES",
        "OF",
        "PUTS",
        "THEIR BYTES",
        "HARD-PINNED",
        "QUOTA",
        "CALLS/S",
        "RDMA",
    ];
    let rows = document.tenants.iter().map(|it| {
        [
            shown(&it.name).into_owned(),
            it.objects.to_string(),
            limit(it.quota_objects, |objects| objects.to_string()),
            human_bytes(it.bytes),
            limit(it.quota_bytes, human_bytes),
            it.puts_in_flight.to_string(),
            human_bytes(it.bytes_in_flight),
            human_bytes(it.hard_pinned_bytes),
            if it.registered { "its own" } else { "default" }.to_owned(),
            limit(it.calls_per_s.into(), |calls| calls.to_string()),
            if it.rdma { "on" } else { "off" }.to_owned(),
        ]
    });
    columns(heading, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(bytes: u64, objects: u64) -> Quota {
        Quota::default().with_bytes(ByteSize(bytes)).with_objects(objects)
    }

    fn of(quota: Quota) -> (u64, u64) {
        (quota.bytes.0, quota.objects)
    }

    #[test]
    fn a_limit_that_is_not_given_stays() {
        let limits = |bytes: Option<u64>, objects| TenantLimits {
            bytes: bytes.map(ByteSize),
            objects,
            calls: None,
            rdma: None,
        };
        assert_eq!(of(changed(quota(5, 7), &limits(Some(6), None))), (6, 7));
        assert_eq!(of(changed(quota(5, 7), &limits(None, Some(0)))), (5, 0));
        assert_eq!(of(changed(quota(5, 7), &limits(Some(1), Some(2)))), (1, 2));
    }

    #[test]
    fn a_tenant_that_is_not_listed_has_the_limits_of_the_settings() {
        let setting = |name: &str, value: &str| {
            let mut setting = Setting::default();
            (setting.name, setting.value) = (name.to_owned(), value.to_owned());
            setting
        };
        let settings = [setting("default-quota-objects", "9"), setting("default-quota-bytes", "1GiB")];
        assert_eq!(of(default_quota(&settings).unwrap()), (1 << 30, 9));
        let why = default_quota(&settings[..1]).unwrap_err().to_string();
        assert!(why.contains("default-quota-bytes"), "{why}");
    }

    #[test]
    fn puts_in_flight_are_listed_with_their_bytes_and_names_forge_no_row() {
        let listed = Listed {
            name: "team\n(default)".to_owned(),
            registered: true,
            quota_bytes: 1 << 30,
            quota_objects: 0,
            objects: 3,
            bytes: 4096,
            puts_in_flight: 2,
            bytes_in_flight: 3 << 20,
            hard_pinned_bytes: 0,
            calls_per_s: 500,
            rdma: false,
        };
        assert_eq!(
            table(&Document { tenants: vec![listed] }),
            "TENANT           OBJECTS  OF        BYTES    OF       PUTS  THEIR BYTES  HARD-PINNED  QUOTA    CALLS/S  RDMA\n\
             team\\n(default)  3        no limit  4.0 KiB  1.0 GiB  2     3.0 MiB      0 B          its own  500      off\n"
        );
    }
}
