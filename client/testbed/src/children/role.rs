//! `run master|store`: runs `mc-master` or `mc-store` in this executable.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the process that `run master` or `run store` names, with the arguments after it; returns `None` for any other
/// command line. `program` is the name of this executable in their messages.
pub fn role_of_this_process(program: &str) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != "run" {
        return None;
    }
    let role = args.next()?;
    let with_name = |role: &str| {
        let name = OsString::from(format!("{program} run {role}"));
        std::iter::once(name).chain(args).collect::<Vec<_>>()
    };
    match role.to_str()? {
        "master" => Some(mc_master::main_with(with_name("master"))),
        "store" => Some(mc_store_server::main_with(with_name("store"))),
        _ => None,
    }
}
