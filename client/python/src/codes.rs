//! Result codes as Mooncake's callers know them.

use mc_client::Code;

/// Kind of a call, as far as its result codes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Puts, upserts and put sessions.
    Put,
    /// Gets, get sessions and sizes.
    Get,
    /// Removals, descriptions and the rest.
    Other,
}

/// Returns the code that Mooncake's callers get for a failure of mc.
///
/// vLLM knows a set of codes after which a buffer may be used again, and gives its client up after any other one. So puts and
/// gets answer codes of that set only. That is sound, because no transport touches a caller's memory after its call. A code of mc's own, below
/// -2000, never gets out.
#[must_use]
pub fn mooncake(call: Call, code: Code) -> i32 {
    use Code as C;
    let same = match code {
        C::InvalidKey | C::InvalidParams | C::NotSupported | C::InvalidWrite => C::InvalidParams,
        C::RpcTimeout | C::PutGone => C::RpcTimeout,
        C::NoAvailableHandle | C::DiskNearlyFull | C::GroupFull | C::ObjectTooLarge => C::NoAvailableHandle,
        C::TenantQuotaExceeded | C::TenantNotRegistered => C::TenantQuotaExceeded,
        C::ReplicaIsNotReady => C::ReplicaIsNotReady,
        C::LeaseExpired | C::VersionChanged => C::LeaseExpired,
        C::ObjectNotFound | C::ObjectAlreadyExists | C::ObjectHasLease | C::Ok => code,
        C::TransferFail | C::ChecksumMismatch if call == Call::Get => C::ObjectNotFound,
        // Mooncake's own numbers end there.
        _ if call == Call::Other && code as i32 > -2000 => code,
        _ => C::RpcFail,
    };
    same as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of failed gets after which vLLM continues.
    const SAFE_GETS: [i32; 9] = [-200, -600, -702, -703, -704, -705, -707, -900, -901];
    const SAFE_PUTS: [i32; 7] = [-200, -703, -704, -705, -900, -901, -1700];

    #[test]
    fn a_failure_is_one_after_which_vllm_goes_on() {
        for code in Code::ALL.iter().copied().filter(|code| *code != Code::Ok) {
            let (put, get) = (mooncake(Call::Put, code), mooncake(Call::Get, code));
            // The reader holds its own lease in a get, and a tenant without a quota puts nothing.
            let never_of_a_get =
                [Code::ObjectHasLease, Code::TenantQuotaExceeded, Code::TenantNotRegistered].contains(&code);
            assert!(SAFE_GETS.contains(&get) || never_of_a_get, "{code} is {get} for a get");
            let is_the_callers = put == Code::InvalidParams as i32;
            // A put session can end at another version.
            let of_a_session =
                [Code::LeaseExpired, Code::VersionChanged, Code::ObjectHasLease].contains(&code);
            assert!(SAFE_PUTS.contains(&put) || is_the_callers || of_a_session, "{code} is {put} for a put");
        }
    }

    #[test]
    fn the_table() {
        assert_eq!(mooncake(Call::Put, Code::ObjectTooLarge), -200);
        assert_eq!(mooncake(Call::Put, Code::GroupFull), -200);
        assert_eq!(mooncake(Call::Put, Code::PutGone), -901);
        assert_eq!(mooncake(Call::Put, Code::TransferFail), -900);
        assert_eq!(mooncake(Call::Get, Code::TransferFail), -704);
        assert_eq!(mooncake(Call::Get, Code::NoLeader), -900);
        assert_eq!(mooncake(Call::Get, Code::VersionChanged), -707);
        assert_eq!(mooncake(Call::Other, Code::ObjectHasLease), -706);
        assert_eq!(mooncake(Call::Other, Code::InvalidKey), -600);
    }
}
