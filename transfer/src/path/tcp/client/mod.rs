//! The client's end of TCP: the connections to stores, and the calls that go over them.
//!
//! A call of the `transport` is one of its `calls`, which cuts it into lanes. Each lane is carried by a `call` over connections of the
//! `pool`, a turn of its `work` at a time. `requests` move bytes over the connection itself.

mod call;
mod calls;
mod pool;
mod requests;
mod transport;
mod work;

pub(crate) use self::calls::Answered;
pub use self::transport::TcpTransport;
