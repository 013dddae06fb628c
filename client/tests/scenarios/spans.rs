//! The spans of calls, as a program's subscriber sees them.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;

use mc_client::{ByteRange, PutFrom, PutOptions};
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::Cluster;

/// Writes down each span of the client with its fields.
struct Seen(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("mc_client")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(format!("{} {}", span.metadata().level(), span.metadata().name()));
        span.record(&mut fields);
        self.0.lock().push(fields.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_call_has_one_span_that_says_how_many_items_it_has_and_no_key() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let spans = Arc::new(Mutex::new(Vec::new()));
    let _seen = tracing::subscriber::set_default(Seen(spans.clone()));
    let options = PutOptions::default();
    client.put("secret", b"value").await.unwrap();
    client.batch_put(&[("secret", b"v"), ("secret2", b"w")], &options).await;
    client.batch_put_from(&[PutFrom::new("secret", &[b"v"])], &options).await;
    client.get("secret").await.unwrap();
    client.batch_get(&["secret", "secret2", "secret3"]).await;
    client.get_range("secret", ByteRange { offset: 0, len: 1 }).await.unwrap();
    client.exist("secret").await.unwrap();
    client.get_session("secret").await.unwrap();
    client.remove("secret", true).await.unwrap();
    client.admin().lookup("secret").await.unwrap();
    let expected = [
        ("put", 1),
        ("put", 2),
        ("put", 1),
        ("get", 1),
        ("get", 3),
        ("get", 1),
        ("exist", 1),
        ("get session", 1),
        ("remove", 1),
        ("lookup", 1),
    ];
    let expected =
        expected.map(|(operation, items)| format!("DEBUG mc_client operation={operation:?} items={items}"));
    assert_eq!(*spans.lock(), expected);
}
