use std::net::SocketAddr;
use std::path::PathBuf;

use clap::CommandFactory as _;
use mc_process::{TlsOptions, config::FileOptions, telemetry::LogOptions};
use mc_store::{
    ByteSize, Config, DEFAULT_MASTER_PORT, DataEncryption, HostPort, InvalidConfig, ParseAddressError, Port,
    RdmaDevices, RdmaOptions, ShmAccess, StartError, Transports,
};

/// The flags of a store itself.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
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
    /// Directory for the id of the store; the memory itself is never written there
    #[arg(long, value_name = "DIR", default_value = "./mc-data/store")]
    pub data_dir: PathBuf,
    /// Directory on a tmpfs, such as /dev/shm/mc, or on a hugetlbfs, in which the memory outlives the process: after a crash, a stop or an upgrade the
    /// next process with the same --data-dir serves the same memory. Clients of this host use TCP to it. `mc-store --release DIR` frees it
    #[arg(long, value_name = "DIR")]
    pub segment_dir: Option<PathBuf>,
    /// Name for display, which the store's certificate must cover [default: the host name if the certificate
    /// covers it, else the certificate's own name and the port of --listen; without one the host name and the port]
    #[arg(long)]
    pub name: Option<String>,
    /// Clients of this host that may share memory with the store: off, same-uid (of this user, or root), any, auto. Who shares it
    /// can read the objects of all tenants: so auto is same-uid, and off where TLS is required; with same-uid and any, an admin has
    /// to allow it there to each user (`mcctl principals set NAME --shared-memory on`)
    #[arg(long, value_name = "WHO", default_value_t)]
    pub shm: ShmAccess,
    /// Transports to offer besides TCP: auto (all that there are), tcp (none), shm, rdma
    #[arg(long, value_name = "NAME", default_value_t)]
    pub transport: Transports,
    /// RDMA devices to use: auto (all with an active port), off, or names such as mlx5_0,mlx5_1
    #[arg(long, value_name = "NAMES", default_value_t)]
    pub rdma_devices: RdmaDevices,
    /// How to use them: default, or some of traffic-class=0..255, service-level=0..15, gid-index=N, pkey=0xN, port=N,
    /// timeout=1..31 (a lost packet is sent again after 4.096 us * 2^timeout, 14 is 67 ms), pairs=N (most queue pairs, 512),
    /// separated by commas
    #[arg(long, value_name = "OPTIONS", default_value_t)]
    pub rdma_options: RdmaOptions,
    /// Whether bytes to and from clients go through TLS, where the store has certificates: on, or off, which is faster, and lets
    /// everybody on the way read and change them. Clients need TLS with masters all the same
    #[arg(long, value_name = "STATE", default_value_t)]
    pub data_encryption: DataEncryption,
}

impl StoreArgs {
    /// Returns the configuration of a store whose process serves HTTP on `http_port`.
    pub fn config(&self, http_port: u16) -> Config {
        let mut config = Config::default();
        config.segment.clone_from(&self.segment);
        config.masters.clone_from(&self.masters);
        config.listen = self.listen;
        config.advertise.clone_from(&self.advertise);
        config.http_port = Some(http_port);
        config.data_dir = Some(self.data_dir.clone());
        config.segment_dir.clone_from(&self.segment_dir);
        config.name.clone_from(&self.name);
        config.shm = self.shm;
        config.transport = self.transport;
        config.rdma_devices.clone_from(&self.rdma_devices);
        config.rdma_options.clone_from(&self.rdma_options);
        config.data_encryption = self.data_encryption;
        config
    }
}

/// Returns the text of an error with the flags that set what the start failed for. The library does not know them.
pub fn with_flags(error: &StartError) -> String {
    flags_of(error).map_or_else(|| error.to_string(), |flags| format!("{flags}: {error}"))
}

fn flags_of(error: &StartError) -> Option<&'static str> {
    Some(match error {
        StartError::Config(InvalidConfig::NoMasters | InvalidConfig::Masters(_)) => "--masters",
        StartError::Config(InvalidConfig::Advertise { .. }) => "--advertise",
        StartError::Config(_) | StartError::Allocate(_) | StartError::Smaller { .. } => "--segment",
        StartError::SegmentDir(_) => "--segment-dir",
        StartError::DataDir(_) => "--data-dir",
        StartError::Rdma(_) => "--transport, --rdma-devices, --rdma-options",
        StartError::Listen { port: Port::Data, .. } => "--listen",
        StartError::Listen { port: Port::Http, .. } => "--http-listen",
        _ => return None,
    })
}

/// The flags of `mc-store`.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-store", version, about = "Lends this machine's memory to the pool")]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(flatten)]
    pub(crate) file: FileOptions,
    /// Free the memory that a store has left in its --segment-dir, and exit. The masters give up what it held when they drop the store
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub(crate) release: Option<PathBuf>,
    /// For tests: exit when standard input is closed
    #[arg(long, hide = true)]
    pub(crate) exit_on_stdin_eof: bool,
}

/// Returns the command line of `mc-store`, for help, completions, and a binary with several programs.
pub fn command() -> clap::Command {
    Flags::command()
}

fn master_address(text: &str) -> Result<HostPort, ParseAddressError> {
    HostPort::parse(text, DEFAULT_MASTER_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn parse(args: &[&str]) -> Config {
        Flags::try_parse_from(["mc-store"].iter().chain(args)).unwrap().store.config(9300)
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
            let error = StartError::from(parse(args).check().unwrap_err());
            assert_eq!(flags_of(&error), Some(flag), "{error}");
        }
        assert!(Flags::try_parse_from(["mc-store"]).is_err(), "nothing to lend");
    }
}
