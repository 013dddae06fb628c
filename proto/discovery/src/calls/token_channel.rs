use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::AUTHORIZATION;
use http::{Request, Response};
use mc_net::Tls;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::transport::channel::ResponseFuture;
use tower::Service;

/// A channel to a master that shows the token of this process with each call, if it has one.
#[derive(Clone, Debug)]
pub struct TokenChannel {
    channel: Channel,
    tls: Option<Arc<Tls>>,
}

impl TokenChannel {
    /// Wraps a channel of the network with these certificates, which makes it by TLS alone once a token was shown.
    pub(super) fn new(channel: Channel, tls: Option<Arc<Tls>>) -> Self {
        Self { channel, tls }
    }
}

impl Service<Request<Body>> for TokenChannel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(bearer) = self.tls.as_ref().and_then(|tls| tls.bearer()) {
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        self.channel.call(request)
    }
}
