//! Access settings.

use mc_index::{PrincipalRecord, StoredPrincipal};
use mc_net::{ConnectInfo, Peer};
use mc_proto::v1;
use mc_proto::v1::set_security_request::Change;
use mc_types::{Role, SpiffeId, TlsLevel, TokenHash};
use tonic::{Extensions, Status};

use crate::access::{calls_of, principal_of};
use crate::leader::{CutOff, PrincipalChange, Refusal, SecuritySettings, Services};

pub(super) async fn get(security: &SecuritySettings) -> Result<v1::GetSecurityReply, Refusal> {
    let (security, cut_off) = security.get().await?;
    let cut_off = cut_off.into_iter().map(|CutOff { who, why }| v1::CutOff { who, why });
    Ok(v1::GetSecurityReply {
        tls_level: security.level().map_or(0, TlsLevel::number),
        principals: security.principals().map(|(name, known)| message(name, known)).collect(),
        cut_off: cut_off.collect(),
    })
}

fn message(name: &str, stored: &StoredPrincipal) -> v1::Principal {
    let PrincipalRecord { token, certificates, expires, denied } = &stored.record;
    v1::Principal {
        name: name.to_owned(),
        has_token: token.is_some(),
        certificates: certificates.clone(),
        expires_s: expires.unwrap_or(0),
        denied: *denied,
        shares_memory: stored.shares_memory,
    }
}

pub(super) async fn set(
    security: &SecuritySettings,
    request: v1::SetSecurityRequest,
) -> Result<v1::SetSecurityReply, Refusal> {
    match request.change {
        Some(Change::TlsLevel(number)) => {
            let level = TlsLevel::of_number(number);
            let level =
                level.ok_or_else(|| Refusal::Invalid(format!("no level of TLS has the number {number}")))?;
            security.set_level(level, request.force).await?;
        }
        Some(Change::Principal(change)) => security.set_principal(parse(change)?).await?,
        None => return Err(Refusal::Invalid("the request changes nothing".to_owned())),
    }
    Ok(v1::SetSecurityReply {})
}

/// Whether a request can be read.
#[cfg(feature = "testing")]
pub(super) fn can_be_read(request: v1::SetSecurityRequest) -> bool {
    match request.change {
        Some(Change::Principal(change)) => parse(change).is_ok(),
        Some(Change::TlsLevel(number)) => TlsLevel::of_number(number).is_some(),
        None => false,
    }
}

fn parse(change: v1::SetPrincipal) -> Result<PrincipalChange, Refusal> {
    let v1::SetPrincipal { name, known, forget, token_hash, certificates, expires_s, denied, shares_memory } =
        change;
    let token = token_hash.map(|hash| match hash.len() {
        0 => Ok(None),
        len => <[u8; 32]>::try_from(&hash[..])
            .map(|hash| Some(TokenHash(hash)))
            .map_err(|_| Refusal::Invalid(format!("the hash of a token has 32 bytes, not {len}"))),
    });
    Ok(PrincipalChange {
        name,
        known,
        forget,
        token: token.transpose()?,
        certificates: certificates.map(|certificates| certificates.uris),
        expires: expires_s.map(|expires| Some(expires).filter(|expires| *expires > 0)),
        denied,
        shares_memory,
    })
}

/// Says who makes a call, and what else it may call.
pub(super) fn who_is(call: &Extensions) -> Result<v1::WhoAmIReply, Status> {
    let principal = principal_of(call)?;
    let tls = call.get::<ConnectInfo>().is_some_and(|caller| caller.peer != Peer::Plain);
    let tenant = principal.id().and_then(|id| match id.role() {
        Role::Tenant { tenant, .. } => Some(tenant.clone()),
        _ => None,
    });
    Ok(v1::WhoAmIReply {
        identity: principal.id().map(ToString::to_string).unwrap_or_default(),
        tls,
        tenant,
        calls: calls_of(principal).map(str::to_owned).collect(),
        expires_s: 0,
    })
}

/// Adds the end that the record of the caller names.
pub(super) fn with_expiry(mut caller: v1::WhoAmIReply, services: &Services) -> v1::WhoAmIReply {
    if let Ok(id) = caller.identity.parse::<SpiffeId>() {
        let security = services.raft.index().security();
        let expires = security.borrow().principal(&id.path()).and_then(|stored| stored.record.expires);
        caller.expires_s = expires.unwrap_or(0);
    }
    caller
}
