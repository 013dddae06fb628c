//! Input from people: flags, files, settings.

use std::hint::black_box;

use clap::CommandFactory as _;
use mc_index::ReadPolicy;
use mc_log::LogSync;
use mc_master::MasterArgs;
use mc_master::fuzz::{flags, peer_list};
use mc_types::{ByteSize, HostPort, Span};

use crate::files::in_file;

/// Sizes, durations, addresses and lists.
pub(crate) fn text(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let size = text.parse::<ByteSize>();
    if let Ok(size) = size {
        assert_eq!(size.to_string().parse(), Ok(size), "a size reads back");
    }
    let span = text.parse::<Span>();
    if let Ok(span) = span {
        assert_eq!(span.to_string().parse(), Ok(span), "a duration reads back");
    }
    let address = HostPort::parse(text, 50055);
    if let Ok(address) = &address {
        assert_eq!(HostPort::parse(&address.to_string(), 1).as_ref(), Ok(address), "an address reads back");
    }
    let peers = peer_list(text);
    let names = text.parse::<LogSync>().is_ok() || text.parse::<ReadPolicy>().is_ok();
    size.is_ok() || span.is_ok() || address.is_ok() || peers || names
}

/// One of each form.
pub(crate) fn texts() -> Vec<Vec<u8>> {
    let texts = [
        "50gb",
        "64KiB",
        "4096",
        "500ms",
        "10m",
        "a,b:1,c",
        "[::1]:50055",
        "::1",
        "host.example:50051",
        "0.0.0.0:0",
        "fdatasync",
        "read-index",
    ];
    owned(&texts)
}

fn owned(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A replicated setting and its value.
pub(crate) fn setting(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    text.split_once('=').is_some_and(|(name, value)| mc_master::fuzz::setting(name, value))
}

/// Every setting that can be changed.
pub(crate) fn settings() -> Vec<Vec<u8>> {
    owned(&[
        "put-deadline-max=45s",
        "read-lease=7s",
        "read-policy=read-index",
        "store-ttl=2h",
        "store-suspect=1500ms",
    ])
}

/// A configuration file of `mc-master`.
pub(crate) fn master(data: &[u8]) -> bool {
    in_file(data, |file| {
        let args = ["mc-master".into(), "--config".into(), file.as_os_str().to_owned()];
        let loaded = mc_process::config::load::<MasterArgs>(MasterArgs::command(), args, |_| None);
        loaded.is_ok_and(|loaded| {
            black_box(loaded.args.settings());
            flags(&loaded.args)
        })
    })
}

/// A master of three.
pub(crate) fn masters() -> Vec<Vec<u8>> {
    owned(&[
        "peers = [\"a\", \"b:1\", \"c\"]\nread-lease = \"20s\"\ndisk-reserve = \"2gb\"\nsingle = false\n",
    ])
}

/// A configuration file of `mc-store`.
pub(crate) fn store(data: &[u8]) -> bool {
    in_file(data, mc_store_server::fuzz::config)
}

/// A store with two segments.
pub(crate) fn stores() -> Vec<Vec<u8>> {
    owned(&[
        "segment = [\"1gb\", \"2gb\"]\nmasters = \"a,b:7\"\nadvertise = \"store.example\"\nname = \"one\"\n",
    ])
}
