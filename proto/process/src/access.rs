use std::fmt;
use std::sync::Arc;

use axum::http::Method;
use axum::http::request::Parts;
use mc_net::{ConnectInfo, Denied, Guard, OpenTo, Principal, RoleKind};

/// Rights on an HTTP port.
#[derive(Clone)]
pub struct HttpAccess {
    /// Decides by the caller's identity.
    pub guard: Arc<Guard>,
    /// Returns the callers that a request is open to.
    pub open_to: Arc<dyn Fn(&Parts) -> OpenTo + Send + Sync>,
}

impl HttpAccess {
    /// Rights on a port that has the routes that every process has ([`standard_access`]).
    #[must_use]
    pub fn standard(guard: Arc<Guard>) -> Self {
        Self { guard, open_to: Arc::new(standard_access) }
    }

    /// Admits a request of a caller. The error names its path, and not its parameters.
    pub(crate) fn admit(&self, caller: Option<&ConnectInfo>, request: &Parts) -> Result<Principal, Denied> {
        let call = format!("{} {}", request.method, request.uri.path());
        let token = mc_net::bearer_of(&request.headers);
        self.guard.admit(caller, token, (self.open_to)(request), &call)
    }
}

/// Returns the callers that a request for a route of [`standard_routes`](crate::http::standard_routes) or for `/metrics` is open
/// to: everyone for probes and metrics, masters and stores for the status, and admins alone for all other routes.
#[must_use]
pub fn standard_access(request: &Parts) -> OpenTo {
    match request.uri.path() {
        "/livez" | "/readyz" | "/metrics" => OpenTo::Anyone,
        "/status" => status_page(request),
        _ => OpenTo::ADMINS,
    }
}

/// Returns the callers that a page about the state of a process is open to: those who run the pool or look at it, masters and
/// stores, if it is only read.
#[must_use]
pub fn status_page(request: &Parts) -> OpenTo {
    match request.method {
        Method::GET | Method::HEAD => OpenTo::Roles(&[
            RoleKind::Admin,
            RoleKind::Operator,
            RoleKind::Observer,
            RoleKind::Master,
            RoleKind::Store,
        ]),
        _ => OpenTo::ADMINS,
    }
}

impl fmt::Debug for HttpAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAccess").field("guard", &self.guard).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn open_to(method: &str, uri: &str) -> OpenTo {
        standard_access(&Request::builder().method(method).uri(uri).body(()).unwrap().into_parts().0)
    }

    #[test]
    fn routes_that_are_not_listed_are_for_admins() {
        for uri in ["/livez", "/readyz", "/metrics?compat=mooncake"] {
            assert_eq!(open_to("GET", uri), OpenTo::Anyone, "{uri}");
        }
        for (method, uri) in [
            ("PUT", "/status"),
            ("GET", "/segments"),
            ("DELETE", "/segments/3"),
            ("GET", "/livez/"),
            ("GET", "//livez"),
            ("GET", "/%6Civez"),
            ("GET", "/nothing"),
        ] {
            assert_eq!(open_to(method, uri), OpenTo::ADMINS, "{method} {uri}");
        }
    }

    #[test]
    fn the_status_is_for_masters_and_stores_too() {
        for method in ["GET", "HEAD"] {
            let open = open_to(method, "/status");
            assert!(
                [RoleKind::Admin, RoleKind::Master, RoleKind::Store].map(|role| open.includes(role))
                    == [true; 3]
            );
            assert!([RoleKind::Writer, RoleKind::Reader].map(|role| open.includes(role)) == [false; 2]);
        }
    }
}
