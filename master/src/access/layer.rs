use std::sync::Arc;

use mc_net::{ConnectInfo, Guard, Principal, bearer_of};
use mc_proto::Procedure;
use tonic::body::Body;
use tonic::{Extensions, Status};

use super::table::open_to;
use crate::judged::Judge;

/// Lets a call through if its caller may make it, and notes in it the caller, for [`principal_of`], and the call, for [`name_of`].
#[derive(Clone, Debug)]
pub(crate) struct GuardedCalls(pub(crate) Arc<Guard>);

impl Judge for GuardedCalls {
    fn judge(&self, call: &mut http::Request<Body>) -> Result<(), Status> {
        // The answer of a server that does not know the path.
        let procedure = Procedure::of_path(call.uri().path()).ok_or_else(|| Status::unimplemented(""))?;
        let caller = call.extensions().get::<ConnectInfo>();
        let token = bearer_of(call.headers());
        let principal = self.0.admit(caller, token, open_to(procedure), procedure.name())?;
        call.extensions_mut().insert(principal);
        call.extensions_mut().insert(procedure);
        Ok(())
    }
}

/// Returns the caller of a call that came through [`GuardedCalls`].
///
/// # Errors
/// `INTERNAL` for a call that did not.
pub(crate) fn principal_of(call: &Extensions) -> Result<&Principal, Status> {
    call.get().ok_or_else(|| Status::internal("the call did not pass the guard of the port"))
}

/// Returns the name of a call that came through [`GuardedCalls`].
pub(crate) fn name_of(call: &Extensions) -> &'static str {
    call.get::<Procedure>().map_or("", |procedure| procedure.name())
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tower::{Layer as _, ServiceExt as _, service_fn};

    use super::*;
    use crate::judged::JudgedBy;

    /// Returns the status of a call, or whether the service knows its caller.
    async fn called(path: &'static str) -> Result<bool, Code> {
        let service = service_fn(async |request: http::Request<Body>| {
            let known = request.extensions().get::<Principal>() == Some(&Principal::Open);
            Ok::<_, Status>(
                http::Response::builder().header("known", known.to_string()).body(Body::default()).unwrap(),
            )
        });
        let mut request = http::Request::new(Body::default());
        *request.uri_mut() = path.parse().unwrap();
        let answer =
            JudgedBy::new(GuardedCalls(Guard::open())).layer(service).oneshot(request).await.unwrap();
        match Status::from_header_map(answer.headers()) {
            Some(status) => Err(status.code()),
            None => Ok(answer.headers()["known"] == "true"),
        }
    }

    #[tokio::test]
    async fn a_procedure_learns_its_caller_and_an_unknown_path_gets_no_further() {
        assert_eq!(called("/mc.v1.Master/BatchGet").await, Ok(true));
        for path in ["/mc.v1.Master/Nothing", "/mc.v1.Master/BatchGet/", "/other/MountStore", "/"] {
            assert_eq!(called(path).await, Err(Code::Unimplemented), "{path}");
        }
    }
}
