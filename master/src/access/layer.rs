use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::{Either, Ready, ready};
use mc_net::{ConnectInfo, Guard, Principal};
use mc_proto::Procedure;
use tonic::body::Body;
use tonic::{Extensions, Status};
use tower::{Layer, Service};

use super::table::open_to;

/// Layer that lets a call through if its caller may make it, and notes the caller in it for [`principal_of`].
#[derive(Clone, Debug)]
pub(crate) struct GuardedCalls(pub(crate) Arc<Guard>);

impl<S> Layer<S> for GuardedCalls {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, guard: self.0.clone() }
    }
}

/// A service behind [`GuardedCalls`].
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match admit(&self.guard, &request) {
            Ok(principal) => {
                request.extensions_mut().insert(principal);
                self.inner.call(request).left_future()
            }
            Err(status) => ready(Ok(status.into_http())).right_future(),
        }
    }
}

fn admit(guard: &Guard, request: &http::Request<Body>) -> Result<Principal, Status> {
    // The answer of a server that does not know the path.
    let procedure = Procedure::of_path(request.uri().path()).ok_or_else(|| Status::unimplemented(""))?;
    let caller = request.extensions().get::<ConnectInfo>();
    Ok(guard.admit(caller, open_to(procedure), procedure.name())?)
}

/// Returns the caller of a call that came through [`GuardedCalls`].
///
/// # Errors
/// `INTERNAL` for a call that did not.
pub(crate) fn principal_of(call: &Extensions) -> Result<&Principal, Status> {
    call.get().ok_or_else(|| Status::internal("the call did not pass the guard of the port"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

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
        let answer = GuardedCalls(Guard::open()).layer(service).oneshot(request).await.unwrap();
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
