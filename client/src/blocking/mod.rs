//! The client for threads without an async runtime.
//!
//! [`Client`] has the calls of the [async client](crate::Client) under the same names. Each returns when the call has ended, which is by its deadline.
//! [`Client::wait`] runs everything else, such as [`Admin`](crate::Admin)'s calls. Both kinds of handle may be used beside each other: one is made
//! of the other with `From`.
//!
//! # Panics
//! Every call panics in a thread that drives async tasks, because they would all stand still meanwhile. Use the async client there, or call
//! this one in `tokio::task::spawn_blocking`. Creating, cloning and dropping a handle or a session is safe anywhere.
//!
//! ```no_run
//! use mc_client::{Client, blocking};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client: blocking::Client = Client::builder().masters("a:50051,b:50051,c:50051").connect_blocking()?;
//! client.put("k", b"value")?;
//! assert_eq!(client.get("k")?.as_deref(), Some(&b"value"[..]));
//! for object in client.list("prompt/") {
//!     println!("{}", object?.size);
//! }
//! let status = client.wait(client.as_async().admin().status());
//! # Ok(())
//! # }
//! ```

/// Defines blocking calls by their signatures. Each runs the async call of the same name.
macro_rules! calls {
    ($of:literal: $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[doc = concat!("[`", $of, "::", stringify!($name), "`](crate::", $of, "::", stringify!($name), "), which this waits for.")]
        pub fn $name(&self, $($argument: $type),*) -> $result {
            self.wait(self.0.$name($($argument),*))
        }
    )* };
}

mod client;
mod sessions;

use crate::connect::connect;
use crate::{Builder, ConnectError};

pub use client::{Client, Listing};
pub use sessions::{GetSession, PutSession};

impl Builder {
    /// [`connect`](Self::connect) for a thread without an async runtime.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    ///
    /// # Panics
    /// In a thread that drives async tasks: see [`blocking`](self).
    pub fn connect_blocking(self) -> Result<Client, ConnectError> {
        let background = self.background()?;
        let connect = background.run("connect", 1, connect(self.config(), background.clone()));
        background.wait(connect).map(Into::into)
    }
}
