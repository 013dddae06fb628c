//! `mcctl whoami`: who the masters take this user for, and what it may do.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use mc_client::WhoAmI;
use mc_console::certificates::rfc3339;
use mc_console::{Ended, Global, Output, connect, printable};
use mc_types::DEFAULT_TENANT;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct WhoamiArgs {
    /// Ask whether you may make this call, such as BatchGet, for the tenant of --tenant if that is given; exit code 0: yes, 1: no
    #[arg(long, value_name = "CALL")]
    can: Option<String>,
}

#[derive(Serialize)]
struct Document {
    /// `None`: nothing that counts was shown.
    identity: Option<String>,
    /// Whether the call came by TLS.
    tls: bool,
    /// The only tenant; `None`: any, in calls that are open to the caller.
    tenant: Option<String>,
    calls: Vec<String>,
    /// RFC 3339; `None`: never, or not known.
    expires: Option<String>,
    /// Whether the call of --can may be made; `None` without it.
    can: Option<bool>,
}

pub(crate) async fn whoami(global: &Global, args: &WhoamiArgs, output: Output) -> Result<Ended> {
    if let Some(call) = &args.can
        && !is_call(call)
    {
        bail!("the masters have no call {call}: docs/reference.md lists them, such as BatchGet");
    }
    let me = connect::client_of(global).await?.admin().who_am_i().await?;
    let tenant = global.named_tenant();
    let can = args.can.as_deref().map(|call| may(&me, call, tenant.as_deref()));
    let document = Document {
        identity: me.identity,
        tls: me.tls,
        tenant: me.tenant.map(|tenant| if tenant.is_empty() { DEFAULT_TENANT.to_owned() } else { tenant }),
        calls: me.calls,
        expires: me.expires.map(rfc3339),
        can,
    };
    output.result(&document, || text(&document));
    Ok(if can == Some(false) { Ended::Negative } else { Ended::Well })
}

/// Returns whether the masters serve a call of this name to clients.
fn is_call(name: &str) -> bool {
    let paths = mc_master::calls_reference().into_iter().map(|(path, _)| path);
    paths.filter_map(|path| path.strip_prefix("/mc.v1.Master/")).any(|call| call.eq_ignore_ascii_case(name))
}

fn may(me: &WhoAmI, call: &str, tenant: Option<&str>) -> bool {
    let tenant = tenant.map(|tenant| if tenant == DEFAULT_TENANT { "" } else { tenant });
    me.may(call) && tenant.is_none_or(|tenant| me.may_use(tenant))
}

fn text(document: &Document) -> String {
    let mut text = String::new();
    let mut row = |what: &str, value: &str| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{what:<10}{}", printable(value));
    };
    if let Some(can) = document.can {
        row("allowed", if can { "yes" } else { "no" });
    }
    row("identity", document.identity.as_deref().unwrap_or("none that counts"));
    row("by", if document.tls { "TLS" } else { "a plain connection" });
    row("tenant", document.tenant.as_deref().unwrap_or("any, where calls are open to you"));
    row("expires", document.expires.as_deref().unwrap_or("never, or not known"));
    row("calls", &document.calls.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> WhoAmI {
        let mut me = WhoAmI::default();
        (me.tenant, me.calls) = (Some(String::new()), vec!["BatchGet".to_owned()]);
        me
    }

    #[test]
    fn a_call_is_judged_with_its_tenant_if_one_is_named() {
        let may = |call, tenant| may(&reader(), call, tenant);
        assert!(may("batchget", None) && may("BatchGet", Some("")) && may("BatchGet", Some("default")));
        assert!(!may("BatchGet", Some("a")) && !may("BatchPutStart", None));
        assert!(is_call("batchGet") && is_call("WhoAmI") && !is_call("Vote") && !is_call("get"));
    }

    #[test]
    fn a_caller_that_has_shown_nothing_is_told_so() {
        let nobody = Document {
            identity: None,
            tls: false,
            tenant: None,
            calls: vec!["Hello".to_owned(), "WhoAmI".to_owned()],
            expires: None,
            can: Some(false),
        };
        assert_eq!(
            text(&nobody),
            "allowed   no\n\
             identity  none that counts\n\
             by        a plain connection\n\
             tenant    any, where calls are open to you\n\
             expires   never, or not known\n\
             calls     Hello, WhoAmI\n"
        );
    }
}
