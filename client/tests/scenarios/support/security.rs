//! Access settings of the fake masters: the level of TLS, principals, tokens, limits on calls.

use std::collections::BTreeMap;

use mc_proto::status_of;
use mc_proto::v1::{self, set_security_request::Change};
use mc_types::Code;
use tonic::Status;

#[derive(Debug, Default)]
pub struct Security {
    pub tls_level: u32,
    pub principals: BTreeMap<String, (v1::Principal, Vec<u8>)>,
    pub cut_off: Vec<v1::CutOff>,
    pub tenants: BTreeMap<String, v1::Tenant>,
    /// The authorization header of each call.
    pub bearers: Vec<Option<String>>,
}

impl Security {
    pub fn reply(&self) -> v1::GetSecurityReply {
        v1::GetSecurityReply {
            tls_level: self.tls_level,
            principals: self.principals.values().map(|(principal, _)| principal.clone()).collect(),
            cut_off: self.cut_off.clone(),
        }
    }

    pub fn set(&mut self, request: &v1::SetSecurityRequest) -> Result<v1::SetSecurityReply, Status> {
        let refuse = |message: &str| {
            let (code, message) = (Code::InvalidParams as i32, message.to_owned());
            status_of(&v1::ErrorDetail { code, message, ..v1::ErrorDetail::default() })
        };
        match request.change.as_ref().ok_or_else(|| refuse("no change"))? {
            Change::TlsLevel(3) if !request.force && !self.cut_off.is_empty() => {
                return Err(refuse("it would cut off processes"));
            }
            Change::TlsLevel(level) => self.tls_level = *level,
            Change::Principal(set) => {
                let is_known = self.principals.contains_key(&set.name);
                if set.known.is_some_and(|known| known != is_known) {
                    return Err(refuse(if is_known { "it is known already" } else { "it is not known" }));
                }
                if set.forget {
                    self.principals.remove(&set.name);
                    return Ok(v1::SetSecurityReply {});
                }
                let (principal, hash) = self.principals.entry(set.name.clone()).or_default();
                principal.name.clone_from(&set.name);
                if let Some(new) = &set.token_hash {
                    *hash = new.to_vec();
                    principal.has_token = !new.is_empty();
                }
                if let Some(certificates) = &set.certificates {
                    principal.certificates.clone_from(&certificates.uris);
                }
                principal.expires_s = set.expires_s.unwrap_or(principal.expires_s);
                principal.denied = set.denied.unwrap_or(principal.denied);
            }
        }
        Ok(v1::SetSecurityReply {})
    }

    pub fn who_am_i(&self, bearer: Option<&str>) -> v1::WhoAmIReply {
        let token =
            bearer.and_then(|bearer| bearer.strip_prefix("Bearer ")).map(str::parse::<mc_types::Token>);
        let hash = token.and_then(Result::ok).map(|token| token.hash().0.to_vec());
        let known = self.principals.values().find(|(_, known)| Some(known) == hash.as_ref());
        let name = known.map(|(principal, _)| format!("spiffe://here/mc/{}", principal.name));
        v1::WhoAmIReply {
            identity: name.unwrap_or_default(),
            calls: vec!["Hello".to_owned(), "WhoAmI".to_owned()],
            ..v1::WhoAmIReply::default()
        }
    }

    pub fn set_tenant(&mut self, request: &v1::SetTenantRequest) {
        let Some(quota) = request.quota else {
            self.tenants.remove(&request.tenant);
            return;
        };
        let tenant = self.tenants.entry(request.tenant.clone()).or_default();
        (tenant.name, tenant.quota) = (request.tenant.clone(), Some(quota));
        tenant.calls_per_s = request.calls_per_s.unwrap_or(tenant.calls_per_s);
        tenant.avoids_rdma = request.rdma.map_or(tenant.avoids_rdma, |allowed| !allowed);
    }

    pub fn tenants(&self) -> v1::ListTenantsReply {
        v1::ListTenantsReply { tenants: self.tenants.values().cloned().collect(), more: false }
    }
}
