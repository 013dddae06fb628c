use prost::Message;

use crate::v1::{Code, ErrorDetail};

/// The gRPC status that carries `detail`. Its code is for people and proxies; callers decide by the detail.
#[must_use]
pub fn status_of(detail: &ErrorDetail) -> tonic::Status {
    let code = match Code::try_from(detail.code) {
        Ok(
            Code::NotLeader | Code::WrongCluster | Code::WrongNode | Code::VersionSkew | Code::StoreEpochDead,
        ) => tonic::Code::FailedPrecondition,
        Ok(Code::InvalidKey | Code::InvalidParams | Code::ObjectTooLarge) => tonic::Code::InvalidArgument,
        Ok(Code::ResourceExhausted | Code::NoAvailableHandle | Code::DiskNearlyFull) => {
            tonic::Code::ResourceExhausted
        }
        Ok(Code::NoLeader | Code::UnavailableInCurrentStatus) => tonic::Code::Unavailable,
        Ok(Code::OutcomeUnknown | Code::RpcTimeout) => tonic::Code::DeadlineExceeded,
        Ok(Code::SegmentAlreadyExists) => tonic::Code::AlreadyExists,
        _ => tonic::Code::Internal,
    };
    tonic::Status::with_details(code, detail.message.clone(), detail.encode_to_vec().into())
}

/// The detail that [`status_of`] put into a status; `None` for a status that came from elsewhere (a broken
/// connection, a proxy).
#[must_use]
pub fn detail_of(status: &tonic::Status) -> Option<ErrorDetail> {
    if status.details().is_empty() {
        return None;
    }
    ErrorDetail::decode(status.details()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_survives_its_status() {
        let detail =
            ErrorDetail { code: Code::NotLeader as i32, message: "ask b".into(), ..Default::default() };
        assert_eq!(detail_of(&status_of(&detail)), Some(detail));
        assert_eq!(detail_of(&tonic::Status::unavailable("connection refused")), None);
    }
}
