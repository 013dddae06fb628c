use prost::Message;

use mc_types::Code;

use crate::v1::ErrorDetail;

/// Returns the gRPC status that carries `detail`. Its code is for people and proxies; callers decide by the detail.
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
        Ok(Code::Unauthenticated) => tonic::Code::Unauthenticated,
        Ok(Code::PermissionDenied) => tonic::Code::PermissionDenied,
        _ => tonic::Code::Internal,
    };
    tonic::Status::with_details(code, detail.message.clone(), detail.encode_to_vec().into())
}

/// Returns the detail that [`status_of`] put into a status, or that the denial of a call by the guard of a port amounts to;
/// `None` for a status from elsewhere (a broken connection, a proxy).
#[must_use]
pub fn detail_of(status: &tonic::Status) -> Option<ErrorDetail> {
    if !status.details().is_empty() {
        return ErrorDetail::decode(status.details()).ok();
    }
    let code = match status.code() {
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        _ => return None,
    };
    Some(ErrorDetail { code: code as i32, message: status.message().to_owned(), ..Default::default() })
}

/// Returns why a call failed: the message of the process that refused it, or the innermost cause (`connection refused`
/// says more than `transport error`).
#[must_use]
pub fn reason_of(status: &tonic::Status) -> String {
    if let Some(detail) = detail_of(status) {
        return detail.message;
    }
    let mut cause = std::error::Error::source(status);
    while let Some(inner) = cause.and_then(std::error::Error::source) {
        cause = Some(inner);
    }
    match (cause, status.message(), status.code()) {
        (Some(cause), ..) => cause.to_string(),
        (None, "", tonic::Code::Unimplemented) => {
            "what answers there does not know this call: it may be another port of mc, or another program"
                .to_owned()
        }
        (None, "", code) => code.description().to_owned(),
        (None, message, _) => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_never_empty() {
        let detail =
            ErrorDetail { code: Code::NoLeader as i32, message: "no leader".into(), ..Default::default() };
        assert_eq!(reason_of(&status_of(&detail)), "no leader");
        assert_eq!(reason_of(&tonic::Status::unavailable("stopping")), "stopping");
        assert!(reason_of(&tonic::Status::unimplemented("")).contains("another port"));
        assert!(!reason_of(&tonic::Status::unknown("")).is_empty());
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(reason_of(&tonic::Status::from_error(Box::new(refused))), "connection refused");
    }

    #[test]
    fn a_detail_survives_its_status() {
        let detail =
            ErrorDetail { code: Code::NotLeader as i32, message: "ask b".into(), ..Default::default() };
        assert_eq!(detail_of(&status_of(&detail)), Some(detail));
        assert_eq!(detail_of(&tonic::Status::unavailable("connection refused")), None);
        let denied = detail_of(&tonic::Status::permission_denied("not yours")).unwrap();
        assert_eq!((denied.code, &*denied.message), (Code::PermissionDenied as i32, "not yours"));
    }
}
