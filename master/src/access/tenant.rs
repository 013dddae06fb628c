use mc_net::{Denied, Principal};
use mc_proto::v1;
use mc_types::{DEFAULT_TENANT, Role};

/// A request of the client port, by its field for the tenant.
pub(crate) trait TenantField {
    /// Whether the request counts as a call of the tenant's users, which may be limited.
    const IS_LIMITED: bool;

    /// The field; `None` for a request without a tenant.
    fn tenant_mut(&mut self) -> Option<&mut String>;
}

macro_rules! tenant_fields {
    (limited: $($limited:ident)*; unlimited: $($unlimited:ident)*; without: $($without:ident)*;) => {
        $(tenant_fields!(@ $limited, true);)*
        $(tenant_fields!(@ $unlimited, false);)*
        $(impl TenantField for v1::$without {
            const IS_LIMITED: bool = false;

            fn tenant_mut(&mut self) -> Option<&mut String> {
                None
            }
        })*

        /// Requests with the field, and those without.
        #[cfg(test)]
        const REQUESTS: [&[&str]; 2] =
            [&[$(stringify!($limited),)* $(stringify!($unlimited),)*], &[$(stringify!($without),)*]];
    };
    (@ $with:ident, $limited:literal) => {
        impl TenantField for v1::$with {
            const IS_LIMITED: bool = $limited;

            fn tenant_mut(&mut self) -> Option<&mut String> {
                Some(&mut self.tenant)
            }
        }
    };
}

// A tenant that uses up its limit must not keep others from raising it.
tenant_fields! {
    limited:
        BatchExistRequest BatchGetRequest BatchDescribeRequest ReportMismatchRequest ListKeysRequest
        BatchPutStartRequest BatchPutEndRequest BatchPutRevokeRequest BatchRemoveRequest RemoveAllRequest
        BatchDropReplicasRequest;
    unlimited:
        SetTenantRequest;
    without:
        WatchRequest ListTenantsRequest MountStoreRequest UnmountStoreRequest ListMembersRequest
        TransferLeaderRequest AddMemberRequest RemoveMemberRequest GetConfigRequest SetConfigRequest
        FinishUpgradeRequest ReadAuditRequest GetSecurityRequest SetSecurityRequest WhoAmIRequest;
}

/// Writes the tenant of a tenant's user into its request, which may name that one or none. Other callers may name any.
///
/// # Errors
/// [`Denied::Tenant`] when the request names another tenant.
pub(crate) fn resolve_tenant(
    principal: &Principal,
    call: &str,
    request: &mut impl TenantField,
) -> Result<(), Denied> {
    let Some(id) = principal.id() else { return Ok(()) };
    let (Role::Tenant { tenant, .. }, Some(named)) = (id.role(), request.tenant_mut()) else { return Ok(()) };
    let is_default = tenant.is_empty() && named == DEFAULT_TENANT;
    if !(named.is_empty() || named == tenant || is_default) {
        return Err(Denied::tenant(call, id, named));
    }
    named.clone_from(tenant);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_net::Principal;

    use super::*;

    fn principal(id: &str) -> Principal {
        let id = Arc::new(mc_types::SpiffeId::of_path("prod", id).unwrap());
        Principal::Named { id, token: None, shares_memory: false }
    }

    /// Tenant that a request is for after it was resolved; `None` if it was denied.
    fn resolved(principal: &Principal, named: &str) -> Option<String> {
        let mut request = v1::BatchPutRevokeRequest { tenant: named.into(), ..Default::default() };
        resolve_tenant(principal, "BatchPutRevoke", &mut request).ok().map(|()| request.tenant)
    }

    #[test]
    fn a_tenants_user_gets_its_own_tenant_or_nothing() {
        for (id, named, tenant) in [
            ("tenant/a/rw/e", "", Some("a")),
            ("tenant/a/ro/e", "a", Some("a")),
            ("tenant/a/rw/e", "b", None),
            ("tenant/a/rw/e", "A", None),
            ("tenant/a/rw/e", "default", None),
            ("tenant/default/rw/e", "", Some("")),
            ("tenant/default/ro/e", "default", Some("")),
            ("tenant/default/rw/e", "a", None),
        ] {
            assert_eq!(resolved(&principal(id), named).as_deref(), tenant, "{id} names `{named}`");
        }
    }

    #[test]
    fn the_denial_names_both_tenants() {
        let mut request = v1::RemoveAllRequest { tenant: "b".into(), ..Default::default() };
        let denied = resolve_tenant(&principal("tenant/a/rw/e"), "RemoveAll", &mut request);
        let denied = denied.unwrap_err().to_string();
        assert!(denied.contains("prod/mc/tenant/a/rw/e") && denied.contains("tenant `b`"), "{denied}");
    }

    #[test]
    fn admins_and_open_callers_name_any_tenant() {
        for named in ["", "a", "default"] {
            for principal in [principal("admin/a"), Principal::Open] {
                assert_eq!(resolved(&principal, named).as_deref(), Some(named), "{principal:?}");
            }
        }
    }

    #[test]
    fn a_request_has_the_field_if_the_proto_file_says_so() {
        let file = include_str!("../../../proto/proto/mc/v1/master.proto");
        for (requests, has) in REQUESTS.into_iter().zip([true, false]) {
            for request in requests {
                let (_, message) = file.split_once(&format!("message {request} {{\n")).unwrap();
                let (fields, _) = message.split_once("\n}").unwrap();
                assert_eq!(fields.contains(" tenant = "), has, "{request}");
            }
        }
    }
}
