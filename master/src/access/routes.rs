use axum::http::request::Parts;
use mc_net::{OpenTo, RoleKind};
use mc_process::{standard_access, status_page};

/// Header of a request that another master passed on.
pub(crate) const FORWARDED: &str = "mc-forwarded";

/// Returns the callers that an HTTP request to a master is open to. `metadata_is_open` opens `/metadata`, whose users can't show
/// certificates, to everyone.
///
/// A request that a master passes on is open to masters: the one that got it has checked its caller by this table.
pub(crate) fn route_open_to(request: &Parts, metadata_is_open: bool) -> OpenTo {
    let open_to = match request.uri.path() {
        "/health" | "/metadata" if metadata_is_open => OpenTo::Anyone,
        "/health" | "/role" | "/leader" | "/ha_status" | "/metrics/summary" => status_page(request),
        _ => standard_access(request),
    };
    match open_to {
        OpenTo::Roles(_) if request.headers.contains_key(FORWARDED) => ADMINS_AND_MASTERS,
        open_to => open_to,
    }
}

const ADMINS_AND_MASTERS: OpenTo = OpenTo::Roles(&[RoleKind::Admin, RoleKind::Master]);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::Request;
    use mc_net::{Demands, Peer, Principal};
    use mc_types::TlsLevel;

    use super::*;

    /// Roles, and strangers, that may make a request where TLS is required.
    fn admitted(method: &str, uri: &str, forwarded: bool, metadata_is_open: bool) -> Vec<&'static str> {
        let mut request = Request::builder().method(method).uri(uri);
        if forwarded {
            request = request.header(FORWARDED, "1");
        }
        let open_to = route_open_to(&request.body(()).unwrap().into_parts().0, metadata_is_open);
        let named = |id: &str| Peer::Named(Arc::new(format!("spiffe://{id}").parse().unwrap()));
        let callers = [
            ("admin", named("prod/mc/admin/a")),
            ("operator", named("prod/mc/operator/o")),
            ("observer", named("prod/mc/observer/o")),
            ("master", named("prod/mc/master/m")),
            ("store", named("prod/mc/store/s")),
            ("writer", named("prod/mc/tenant/a/rw/e")),
            ("reader", named("prod/mc/tenant/a/ro/e")),
            ("anonymous", Peer::Anonymous),
            ("plain", Peer::Plain),
            ("foreign", named("test/mc/admin/a")),
        ];
        let demands = Demands { level: TlsLevel::Require, trust: "prod" };
        let may = |peer: &Peer| Principal::of(peer, Some(demands)).may(open_to, uri).is_ok();
        callers.iter().filter(|(_, peer)| may(peer)).map(|(caller, _)| *caller).collect()
    }

    const ALL: [&str; 10] = [
        "admin",
        "operator",
        "observer",
        "master",
        "store",
        "writer",
        "reader",
        "anonymous",
        "plain",
        "foreign",
    ];

    #[test]
    fn each_route_is_open_to_the_roles_of_the_table() {
        for uri in ["/livez", "/readyz", "/metrics", "/metrics?compat=mooncake"] {
            assert_eq!(admitted("GET", uri, false, false), ALL, "{uri}");
        }
        for uri in ["/status", "/health", "/role", "/leader", "/ha_status", "/metrics/summary"] {
            let who = ["admin", "operator", "observer", "master", "store"];
            assert_eq!(admitted("GET", uri, false, false), who, "{uri}");
            assert_eq!(admitted("POST", uri, false, false), ["admin"], "{uri}");
        }
        for (method, uri) in [
            ("GET", "/get_all_segments"),
            ("GET", "/get_segments_detail"),
            ("GET", "/query_segment"),
            ("GET", "/get_all_keys"),
            ("GET", "/query_key?key=a"),
            ("GET", "/batch_query_keys"),
            ("GET", "/kv_events/status"),
            ("GET", "/api/v1/segments/status"),
            ("GET", "/api/v1/tenant_quotas"),
            ("PUT", "/api/v1/tenant_quotas"),
            ("DELETE", "/api/v1/tenant_quotas"),
            ("POST", "/api/v1/remove_all"),
            ("POST", "/api/v1/drain_jobs"),
            ("GET", "/api/v1/drain_jobs/query"),
            ("POST", "/api/v1/drain_jobs/cancel"),
            ("GET", "/metadata?key=a"),
            ("PUT", "/metadata?key=a"),
            ("GET", "/a_route_of_tomorrow"),
        ] {
            assert_eq!(admitted(method, uri, false, false), ["admin"], "{method} {uri}");
        }
    }

    #[test]
    fn a_request_that_was_passed_on_is_a_masters_to_make() {
        for (method, uri) in [("POST", "/api/v1/remove_all"), ("GET", "/get_all_keys"), ("GET", "/status")] {
            assert_eq!(admitted(method, uri, true, false), ["admin", "master"], "{method} {uri}");
        }
        assert_eq!(admitted("GET", "/livez", true, false), ALL);
    }

    #[test]
    fn open_metadata_is_open_to_engines_without_certificates() {
        for uri in ["/metadata?key=a", "/health"] {
            assert_eq!(admitted("GET", uri, false, true), ALL, "{uri}");
        }
        assert_eq!(admitted("GET", "/metadata/a", false, true), ["admin"]);
        assert_eq!(admitted("GET", "/get_all_keys", false, true), ["admin"]);
    }
}
