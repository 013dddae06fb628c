//! Messages at and above what a master reads and decodes on its two gRPC ports, and batches above what it takes into one
//! log entry.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use futures::stream;
use http::uri::PathAndQuery;
use mc_durable::FreeSpace;
use mc_net::{ChannelOptions, Network as _, TcpNetwork};
use mc_proto::{
    MAX_FIELDS, detail_of,
    v1::{self, master_client::MasterClient, raft_client::RaftClient},
};
use mc_types::{Code, MAX_COMMAND_BYTES, MAX_ITEMS, MAX_KEY_LEN};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::master_support::{Single, caller};

/// Largest message on the port of clients and stores.
const REQUEST_BYTES: usize = 24 << 20;
/// Largest message on the port of the other masters.
const RAFT_BYTES: usize = 4 << 20;
/// More than stands in a message here beside its one long field.
const BESIDES: usize = 1 << 10;

/// A disk that is never full.
#[derive(Debug)]
struct Room;

impl FreeSpace for Room {
    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(1 << 40)
    }
}

async fn channel(master: &Single, port: &str) -> Channel {
    let status: serde_json::Value = serde_json::from_str(&master.http("/status").await.1).unwrap();
    let address = status["masters"][0][port].as_str().unwrap().to_owned();
    TcpNetwork.channel(&address, ChannelOptions::default()).unwrap()
}

fn exist(keys: Vec<Bytes>) -> v1::BatchExistRequest {
    v1::BatchExistRequest { caller: caller(), keys, ..Default::default() }
}

fn key(bytes: usize) -> Bytes {
    vec![b'k'; bytes].into()
}

fn append(bytes: usize) -> v1::AppendRequest {
    let entry = v1::Entry { payload: vec![0; bytes].into(), ..Default::default() };
    v1::AppendRequest { entries: vec![entry], ..Default::default() }
}

/// Messages as their bytes.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

fn assert_too_many_fields(refused: &Status, bytes: usize) {
    let detail = detail_of(refused).unwrap_or_else(|| panic!("{refused:?}"));
    assert_eq!(detail.code, Code::InvalidParams as i32, "{}", detail.message);
    let most = format!("a message of {bytes} bytes has more than {MAX_FIELDS} items and other fields");
    assert!(detail.message.starts_with(&most), "{}", detail.message);
    assert!(detail.message.ends_with("split the call"), "{}", detail.message);
}

fn assert_too_long(refused: &Status, limit: usize) {
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    assert!(refused.message().contains(&format!("the limit is: {limit} bytes")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_above_the_limit_is_refused_and_its_connection_goes_on() {
    let master = Single::start(&[], Arc::new(Room)).await;
    let mut client = MasterClient::new(channel(&master, "addr").await);
    let read = client.batch_exist(exist(vec![key(REQUEST_BYTES - BESIDES)])).await.unwrap().into_inner();
    assert_eq!(read.results[0].code, Code::InvalidKey as i32, "it was read");
    // Several, since what is sent and not read must not use up the connection's window.
    for _ in 0..8 {
        let refused = client.batch_exist(exist(vec![key(REQUEST_BYTES)])).await.unwrap_err();
        assert_too_long(&refused, REQUEST_BYTES);
    }
    let read = client.batch_exist(exist(vec![key(1)])).await.unwrap().into_inner();
    assert_eq!(read.results[0].code, Code::ObjectNotFound as i32);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_master_above_the_limit_is_refused_and_its_connection_goes_on() {
    let master = Single::start(&[], Arc::new(Room)).await;
    let mut peer = RaftClient::new(channel(&master, "raft_addr").await);
    let refused = peer.append(append(RAFT_BYTES - BESIDES)).await.unwrap_err();
    assert!(refused.message().contains("has no envelope"), "it was read: {refused}");
    for _ in 0..8 {
        assert_too_long(&peer.append(append(RAFT_BYTES)).await.unwrap_err(), RAFT_BYTES);
    }
    let mut answers = peer.append_stream(stream::iter([append(RAFT_BYTES)])).await.unwrap().into_inner();
    assert_too_long(&answers.message().await.unwrap_err(), RAFT_BYTES);
    let met = peer.meet(v1::MeetRequest::default()).await.unwrap().into_inner();
    assert!(met.formed);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_millions_of_items_is_refused_before_it_is_decoded_and_its_connection_goes_on() {
    let master = Single::start(&[], Arc::new(Room)).await;
    let line = channel(&master, "addr").await;
    let mut raw = Grpc::new(line.clone());
    // Empty items, whose field has the same number in all batches.
    let items = Bytes::from([0x1a_u8, 0x00].repeat(2 << 20));
    for call in ["Exist", "Get", "PutStart", "PutEnd", "PutRevoke", "Remove"] {
        let path: PathAndQuery = format!("/mc.v1.Master/Batch{call}").parse().unwrap();
        raw.ready().await.unwrap();
        let refused = raw.unary(Request::new(items.clone()), path, Raw).await.unwrap_err();
        assert_too_many_fields(&refused, items.len());
    }
    let read = MasterClient::new(line).batch_exist(exist(vec![key(1)])).await.unwrap().into_inner();
    assert_eq!(read.results[0].code, Code::ObjectNotFound as i32);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_master_with_too_many_entries_is_refused_in_a_stream_too() {
    let master = Single::start(&[], Arc::new(Room)).await;
    let mut peer = RaftClient::new(channel(&master, "raft_addr").await);
    let append =
        |entries| v1::AppendRequest { entries: vec![v1::Entry::default(); entries], ..Default::default() };
    let refused = peer.append(append(MAX_FIELDS)).await.unwrap_err();
    assert!(refused.message().contains("has no envelope"), "it was read: {refused}");
    let bytes = 2 * (MAX_FIELDS + 1);
    let refused = peer.append(append(MAX_FIELDS + 1)).await.unwrap_err();
    assert_too_many_fields(&refused, bytes);
    let mut answers = peer.append_stream(stream::iter([append(MAX_FIELDS + 1)])).await.unwrap().into_inner();
    assert_too_many_fields(&answers.message().await.unwrap_err(), bytes);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_not_split_is_refused_with_that_advice() {
    let master = Single::start(&[], Arc::new(Room)).await;
    let mut client = MasterClient::new(channel(&master, "addr").await);
    let start = |n: usize| v1::PutStartItem {
        put_id: (n as u128 + 1).to_be_bytes().to_vec().into(),
        key: key(MAX_KEY_LEN),
        size: 64,
        ..Default::default()
    };
    let items = (0..MAX_COMMAND_BYTES / MAX_KEY_LEN).map(start).collect();
    let long = v1::BatchPutStartRequest { caller: caller(), items, ..Default::default() };
    let refusals = [
        client.batch_put_start(long).await.map(drop).unwrap_err(),
        client.batch_exist(exist(vec![key(1); MAX_ITEMS + 1])).await.map(drop).unwrap_err(),
    ];
    for refused in refusals {
        let detail = detail_of(&refused).unwrap_or_else(|| panic!("{refused:?}"));
        assert_eq!(detail.code, Code::InvalidParams as i32, "{}", detail.message);
        assert!(detail.message.ends_with("split the batch"), "{}", detail.message);
    }
    master.stop().await;
}
