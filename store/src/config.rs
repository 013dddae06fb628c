use std::net::SocketAddr;
use std::path::PathBuf;

use mc_process::{config::FileOptions, telemetry::LogOptions};
use mc_types::{ByteSize, HostPort, ParseAddressError};

/// Default port of the masters' client API.
const MASTER_PORT: u16 = 50051;
/// Below this a segment holds next to nothing.
const SMALLEST_SEGMENT: ByteSize = ByteSize(1 << 20);

/// Configuration of a store. Embedding processes fill it in themselves; `mc-store` reads it from its flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Memory to lend, such as 50gb. Several values make several segments; an object must fit into one segment
    #[arg(long, value_name = "SIZE", required = true, value_delimiter = ',')]
    pub segment: Vec<ByteSize>,
    /// Client addresses of the masters, comma-separated; one reachable master is enough to find the others
    #[arg(long, value_name = "ADDRESSES", default_value = "127.0.0.1:50051", value_delimiter = ',',
          value_parser = master_address)]
    pub masters: Vec<HostPort>,
    /// Listen address for clients that read and write the memory; port 0 picks a free port
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:50060")]
    pub listen: SocketAddr,
    /// Listen address for health and metrics over HTTP; port 0 picks a free port
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:9300")]
    pub http_listen: SocketAddr,
    /// Host under which clients reach this store [default: the address of --listen, or the local address that routes
    /// to the master]
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,
    /// Directory for the id of the store; the memory itself is never written to disk
    #[arg(long, value_name = "DIR", default_value = "./mc-data/store")]
    pub data_dir: PathBuf,
    /// Name for display [default: the host name and the port of --listen]
    #[arg(long)]
    pub name: Option<String>,
}

/// The flags of `mc-store`.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-store", version, about = "Lends this machine's memory to the pool")]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) store: Config,
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(flatten)]
    pub(crate) file: FileOptions,
    /// For tests: exit when standard input is closed
    #[arg(long, hide = true)]
    pub(crate) exit_on_stdin_eof: bool,
}

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// A segment that holds next to nothing.
    #[error("--segment {0} is too small: lend at least {SMALLEST_SEGMENT}")]
    SmallSegment(ByteSize),
    /// More than an address can name.
    #[error("--segment adds up to more than 2^63 bytes")]
    TooMuch,
    /// An empty list.
    #[error("--masters is empty: name at least one master, such as 10.0.0.1:50051")]
    NoMasters,
    /// Not a host.
    #[error("--advertise {given}: {why}")]
    Advertise {
        /// As given.
        given: String,
        /// Why.
        why: ParseAddressError,
    },
}

impl Config {
    /// The bytes of all segments.
    #[must_use]
    pub fn lent_bytes(&self) -> u64 {
        self.segment.iter().fold(0, |sum, size| sum.saturating_add(size.0))
    }

    /// Checks what parsing alone cannot.
    ///
    /// # Errors
    /// [`InvalidConfig`], which names the flag.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if let Some(small) = self.segment.iter().find(|size| **size < SMALLEST_SEGMENT) {
            return Err(InvalidConfig::SmallSegment(*small));
        }
        if self.lent_bytes() > i64::MAX as u64 {
            return Err(InvalidConfig::TooMuch);
        }
        if self.masters.is_empty() {
            return Err(InvalidConfig::NoMasters);
        }
        if let Some(host) = &self.advertise {
            HostPort::new(host, 0).map_err(|why| InvalidConfig::Advertise { given: host.clone(), why })?;
        }
        Ok(())
    }
}

fn master_address(text: &str) -> Result<HostPort, ParseAddressError> {
    HostPort::parse(text, MASTER_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn parse(args: &[&str]) -> Config {
        Flags::try_parse_from(["mc-store"].iter().chain(args)).unwrap().store
    }

    #[test]
    fn one_flag_is_enough_and_a_bare_name_gets_the_default_port() {
        let config = parse(&["--segment", "50gb"]);
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.lent_bytes(), 50 << 30);
        assert_eq!(config.masters, [HostPort::parse("127.0.0.1", 50051).unwrap()]);
        let config = parse(&["--segment=1gb", "--segment=2gb", "--masters", "a,b:7"]);
        assert_eq!(config.segment, [ByteSize(1 << 30), ByteSize(2 << 30)]);
        let masters: Vec<_> = config.masters.iter().map(ToString::to_string).collect();
        assert_eq!(masters, ["a:50051", "b:7"]);
    }

    #[test]
    fn each_mistake_names_its_flag() {
        for (args, flag) in [
            (&["--segment=1kb"][..], "--segment"),
            (&["--segment=8388608tb", "--segment=1tb"], "--segment"),
            (&["--segment=1gb", "--advertise=a b"], "--advertise"),
        ] {
            let text = parse(args).check().unwrap_err().to_string();
            assert!(text.contains(flag), "{text}");
        }
        assert!(Flags::try_parse_from(["mc-store"]).is_err(), "nothing to lend");
    }
}
