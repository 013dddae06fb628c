//! Requests that are encoded once, however often they are sent.

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Response, Status};

use crate::codec::{BoundedCodec, BoundedDecoder};
use crate::v1::Caller;

/// Number of the field `caller`, the first of each request to a master.
const CALLER: u32 = 1;

/// A request to a master, encoded but for its caller: that names the master which is asked, and the rest stays the same for
/// each try.
#[derive(Clone, Debug)]
pub struct PreparedRequest(Bytes);

/// A prepared request with its caller.
#[derive(Clone, Debug)]
pub struct AddressedRequest {
    caller: Caller,
    rest: Bytes,
}

impl PreparedRequest {
    /// Encodes a request that has no caller.
    #[must_use]
    pub fn new(request: &impl Message) -> Self {
        Self(request.encode_to_vec().into())
    }

    /// Adds the caller, and copies nothing.
    #[must_use]
    pub fn with_caller(&self, caller: Caller) -> AddressedRequest {
        AddressedRequest { caller, rest: self.0.clone() }
    }
}

impl AddressedRequest {
    /// Encodes the request as the generated code does: the caller first.
    fn encode(self, mut to: impl BufMut) {
        prost::encoding::message::encode(CALLER, &self.caller, &mut to);
        // Whole: `put` would grow the buffer piece by piece.
        to.put_slice(&self.rest);
    }
}

/// Makes the unary call at `path`, as the generated clients do, over a channel or what wraps one.
///
/// # Errors
/// The status with which the call failed.
pub async fn call<R: Message + Default + 'static>(
    master: &mut Grpc<impl GrpcService<Body, ResponseBody = Body, Error = tonic::transport::Error>>,
    path: &'static str,
    request: Request<AddressedRequest>,
) -> Result<Response<R>, Status> {
    let ready = master.ready().await;
    ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    master.unary(request, PathAndQuery::from_static(path), PreparedCodec(BoundedCodec::default())).await
}

struct PreparedCodec<R>(BoundedCodec<(), R>);

impl<R: Message + Default + 'static> Codec for PreparedCodec<R> {
    type Encode = AddressedRequest;
    type Decode = R;
    type Encoder = PreparedEncoder;
    type Decoder = BoundedDecoder<R>;

    fn encoder(&mut self) -> PreparedEncoder {
        PreparedEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        self.0.decoder()
    }
}

struct PreparedEncoder;

impl Encoder for PreparedEncoder {
    type Item = AddressedRequest;
    type Error = Status;

    fn encode(&mut self, request: AddressedRequest, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{BatchPutStartRequest, PutStartItem};

    #[test]
    fn a_prepared_request_has_the_bytes_of_the_whole_one() {
        let item = PutStartItem { key: b"k"[..].into(), size: 7, ..Default::default() };
        let request = BatchPutStartRequest { tenant: "t".into(), items: vec![item; 3], ..Default::default() };
        for caller in [Caller::default(), Caller { node_id: vec![9; 8].into(), ..Default::default() }] {
            let mut prepared = Vec::new();
            PreparedRequest::new(&request).with_caller(caller.clone()).encode(&mut prepared);
            let whole = BatchPutStartRequest { caller: Some(caller), ..request.clone() };
            assert_eq!(prepared, whole.encode_to_vec());
        }
    }
}
