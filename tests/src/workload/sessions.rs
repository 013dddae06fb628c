use futures::future::join_all;
use mc_client::{ByteRange, Bytes, Code, Error, GetSession, Put, PutMode, PutSession};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::judged::{Judged, action, key_name};
use super::puts::Slice;
use crate::Seeded;
use crate::checker::{Action, Outcome};

/// Layers of an object.
const LAYERS: u64 = 8;

impl Judged {
    /// Puts or reads an object layer by layer.
    pub(super) async fn session(&self, random: &mut Seeded) {
        let key = random.below(self.workload.keys);
        if random.below(2) == 0 {
            self.put_session(key, random).await;
        } else {
            self.get_session(&key_name(key), random).await;
        }
    }

    /// Puts an object in a session, in layers or as a stream. The put is judged from the session's start to its finish. Some
    /// sessions are aborted or dropped: nobody may ever see what they wrote.
    async fn put_session(&self, key: u64, random: &mut Seeded) {
        let (name, len) = (key_name(key), self.workload.len(key, random));
        let options = self.workload.options([PutMode::IfAbsent, PutMode::Upsert][random.below(2) as usize]);
        let (value, digest) = self.puts.begin(&self.name(&name), len);
        let call = self.call(vec![(self.name(&name), action(&options, digest))]);
        let opened = self.client.put_session(&name, len as u64, &options).await;
        let end = random.below(6);
        let outcome = match opened {
            Ok(None) => Outcome::Exists,
            Err(error) => call.failed(&error),
            Ok(Some(session)) if random.below(2) == 0 => {
                let piece = 1 + random.below(len as u64) as usize;
                match stream(session, &value, piece, end <= 1).await {
                    Ok(None) => Outcome::Aborted,
                    Ok(Some(put)) => call.put(Ok(put)),
                    Err(error) => call.failed(&error),
                }
            }
            Ok(Some(session)) => match write(&session, &value).await {
                Err(error) => call.failed(&error),
                Ok(()) if end == 0 => {
                    // A failed abort frees the room later, and ends the put no more than one that works.
                    session.abort().await.ok();
                    Outcome::Aborted
                }
                Ok(()) if end == 1 => Outcome::Aborted,
                Ok(()) => call.put(session.finish().await),
            },
        };
        call.answered([outcome], |_, outcome| outcome);
    }

    /// Reads the version that is there when the session opens, in layers or as a stream.
    async fn get_session(&self, key: &str, random: &mut Seeded) {
        let mut call = self.call(vec![(self.name(key), Action::Get)]);
        let opened = self.client.get_session(key).await;
        call.ends_now();
        let outcome = match opened {
            Ok(None) => call.missed(),
            Err(error) => call.failed(&error),
            Ok(Some(session)) => {
                let read = match random.below(2) {
                    0 => read_layers(&session, 1 + random.below(LAYERS)).await,
                    _ => read_stream(session).await,
                };
                let parts: Vec<Slice<'_>> = read
                    .iter()
                    .filter_map(|(offset, bytes)| Some((*offset, &bytes.as_ref().ok()?[..])))
                    .collect();
                let failed = read.iter().find_map(|(_, bytes)| bytes.as_ref().err());
                match failed {
                    _ if !parts.is_empty() => Outcome::Value(self.puts.value_of(&self.name(key), &parts)),
                    Some(error) if !is_over(error.code) => call.failed(error),
                    _ => Outcome::Untold,
                }
            }
        };
        call.answered([outcome], |_, outcome| outcome);
    }
}

/// Returns whether the object was replaced or removed since its session was opened, which ends the session.
fn is_over(code: Code) -> bool {
    matches!(code, Code::VersionChanged | Code::ObjectNotFound)
}

fn layers_of(size: u64) -> impl Iterator<Item = ByteRange> {
    let layer = size.div_ceil(LAYERS);
    (0..LAYERS).map(move |n| {
        let offset = (n * layer).min(size);
        ByteRange { offset, len: layer.min(size - offset) }
    })
}

/// Part of an object by its first byte, as it was read.
type Read = (u64, Result<Bytes, Error>);

/// Reads the first layers at once.
async fn read_layers(session: &GetSession, layers: u64) -> Vec<Read> {
    let layers = layers_of(session.size()).take(layers as usize);
    join_all(layers.map(async |layer| (layer.offset, session.read(layer).await))).await
}

/// Reads an object as a stream, and what went wrong after its last byte.
async fn read_stream(session: GetSession) -> Vec<Read> {
    let mut value = Vec::new();
    let read = session.into_reader().read_to_end(&mut value).await;
    let end = value.len() as u64;
    let begin = (end > 0).then(|| (0, Ok(value.into())));
    let failed = read.err().map(|error| (end, Err(error.downcast().expect("an error of the client"))));
    begin.into_iter().chain(failed).collect()
}

/// Writes all layers at once.
async fn write(session: &PutSession, value: &[u8]) -> Result<(), Error> {
    let layers = layers_of(session.size()).map(async |ByteRange { offset, len }| {
        session.write(offset, &value[offset as usize..(offset + len) as usize]).await
    });
    join_all(layers).await.into_iter().collect()
}

/// Writes an object as a stream, in pieces of this length. One that is `dropped` before its shutdown is not put: `None`.
async fn stream(
    session: PutSession,
    value: &[u8],
    piece: usize,
    dropped: bool,
) -> Result<Option<Put>, Error> {
    let mut writer = session.into_writer();
    let written = async {
        for piece in value.chunks(piece) {
            writer.write_all(piece).await?;
        }
        if !dropped {
            writer.shutdown().await?;
        }
        Ok(writer.put())
    };
    written.await.map_err(|error: std::io::Error| error.downcast().expect("an error of the client"))
}
