//! `mcctl run master|store`: what `mc-master` and `mc-store` are, in this executable.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the master or store when that is what the command line asks for, with everything behind the role as its flags.
pub(crate) fn role_of_this_process() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != "run" {
        return None;
    }
    let role = args.next()?;
    let with_name = |name: &str| std::iter::once(OsString::from(name)).chain(args).collect::<Vec<_>>();
    match role.to_str()? {
        "master" => Some(mc_master::main_with(with_name("mcctl run master"))),
        "store" => Some(mc_store_server::main_with(with_name("mcctl run store"))),
        _ => None,
    }
}
