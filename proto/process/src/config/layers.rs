use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::file::File;
use super::{ConfigError, Loaded, Origin, Setting};

/// Flags that ask for something instead of setting it. They have no environment variable, no key in the file and no
/// line in the listing.
const ASKING: [&str; 3] = ["help", "version", "print-config"];
/// The flag that names the configuration file.
pub(super) const CONFIG: &str = "config";

/// A long flag, and the environment variable that sets it.
struct Flag {
    arg: Arg,
    long: String,
    env: String,
}

/// Loads all layers by parsing twice.
///
/// The first pass sees the command line alone, with nothing required, and shows which flags it sets. Values of the
/// environment and the file are then inserted in front of it, and clap parses the whole. So a value is checked by the
/// same rules whichever layer it comes from.
pub(super) fn load<T: FromArgMatches>(
    command: Command,
    mut args: Vec<OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Loaded<T>, ConfigError> {
    let flags: Vec<Flag> = command.get_arguments().filter_map(flag).collect();
    // clap would read the process' real environment, which tests cannot control. This reads only `env`.
    let command = command.mut_args(|arg| match flag(&arg) {
        Some(Flag { env, .. }) => {
            let note = format!("[env: {env}]");
            let noted = |text: String| if text.is_empty() { note.clone() } else { format!("{text} {note}") };
            let short = noted(arg.get_help().map(ToString::to_string).unwrap_or_default());
            let long = arg.get_long_help().map(|text| noted(text.to_string()));
            let arg = arg.env(Resettable::Reset).help(short);
            match long {
                Some(long) => arg.long_help(long),
                None => arg,
            }
        }
        None => arg,
    });

    let first = command
        .clone()
        .mut_args(|arg| arg.required(false))
        .try_get_matches_from(&args)
        .map_err(|err| ConfigError::from_clap(&err, None))?;
    let is_given = |arg: &Arg| first.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    // A flag that stands alone is no setting, and goes with none: the other layers are not for it.
    let stands_alone = command.get_arguments().any(|arg| arg.is_exclusive_set() && is_given(arg));
    let flags = if stands_alone { Vec::new() } else { flags };
    let on_command_line = |flag: &Flag| is_given(&flag.arg);

    let mut origins: BTreeMap<&str, Origin> = BTreeMap::new();
    let mut added: Vec<OsString> = Vec::new();
    for flag in &flags {
        if on_command_line(flag) {
            origins.insert(&flag.long, Origin::Flag);
        } else if let Some(value) = env(&flag.env).filter(|value| !value.is_empty()) {
            let origin = Origin::Env(flag.env.clone());
            flag.add(&mut added, vec![value], &origin)?;
            origins.insert(&flag.long, origin);
        }
    }

    if let Some(path) = config_path(&flags, &first, env) {
        let file = File::read(&path)?;
        let known: Vec<String> =
            flags.iter().map(|flag| flag.long.clone()).filter(|long| long != CONFIG).collect();
        file.check_keys(&known)?;
        for (key, values) in file.values {
            let Some(flag) = flags.iter().find(|flag| flag.long == key) else { continue };
            if !origins.contains_key(flag.long.as_str()) {
                let origin = Origin::File(path.clone());
                flag.add(&mut added, values.into_iter().map(OsString::from).collect(), &origin)?;
                origins.insert(&flag.long, origin);
            }
        }
    }

    // In front, because a subcommand with flags of its own may follow.
    let after_name = args.len().min(1);
    args.splice(after_name..after_name, added);
    let blame = |err: &clap::Error| {
        let origin = invalid_flag(err).and_then(|long| origins.get(long.as_str()));
        ConfigError::from_clap(err, origin.filter(|origin| **origin != Origin::Flag))
    };
    let matches = command.clone().try_get_matches_from(&args).map_err(|err| blame(&err))?;
    let settings = flags
        .iter()
        // Flags hidden from --help are for programs that start this one, not for people who ask what is set.
        .filter(|flag| !flag.arg.is_hide_set())
        .map(|flag| Setting {
            name: flag.long.clone(),
            value: flag.text(&matches),
            origin: origins.get(flag.long.as_str()).cloned().unwrap_or(Origin::Default),
        })
        .collect();
    let args = T::from_arg_matches(&matches).map_err(|err| blame(&err.with_cmd(&command)))?;
    Ok(Loaded { args, settings })
}

fn flag(arg: &Arg) -> Option<Flag> {
    let env = variable(arg)?;
    Some(Flag { arg: arg.clone(), long: arg.get_long()?.to_owned(), env })
}

/// The environment variable that sets the flag `arg`.
///
/// `None` for an argument without a long flag, and for `--help`, `--version`, `--print-config` and flags that stand alone, which ask
/// for something instead of setting it.
pub fn variable(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|long| !ASKING.contains(long) && !arg.is_exclusive_set())?;
    Some(match arg.get_env() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => format!("MC_{}", long.to_uppercase().replace('-', "_")),
    })
}

fn config_path(
    flags: &[Flag],
    first: &ArgMatches,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let flag = flags.iter().find(|flag| flag.long == CONFIG)?;
    let id = flag.arg.get_id().as_str();
    let given = || first.get_raw(id)?.next().map(OsString::from);
    if first.value_source(id) == Some(ValueSource::CommandLine) {
        return given().map(PathBuf::from);
    }
    env(&flag.env).filter(|value| !value.is_empty()).or_else(given).map(PathBuf::from)
}

/// Returns the long flag that clap's error is about.
fn invalid_flag(err: &clap::Error) -> Option<String> {
    match err.get(ContextKind::InvalidArg)? {
        // `--name <VALUE>`
        ContextValue::String(text) => {
            Some(text.strip_prefix("--")?.split([' ', '=', '[']).next()?.to_owned())
        }
        _ => None,
    }
}

impl Flag {
    /// Appends this flag with `values` to the arguments `out`, as it would stand on a command line.
    fn add(
        &self,
        out: &mut Vec<OsString>,
        values: Vec<OsString>,
        origin: &Origin,
    ) -> Result<(), ConfigError> {
        let fail = |why: String| ConfigError::Value { name: self.long.clone(), origin: origin.clone(), why };
        let bare = || OsString::from(format!("--{}", self.long));
        let single = |values: &[OsString]| match values {
            [one] => Ok(one.to_string_lossy().trim().to_ascii_lowercase()),
            _ => Err(fail(format!("takes one value, not {}", values.len()))),
        };
        match self.arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => match single(&values)?.as_str() {
                "true" | "1" | "yes" | "on" => out.push(bare()),
                "false" | "0" | "no" | "off" => {}
                other => return Err(fail(format!("is `{other}`: write true or false"))),
            },
            ArgAction::Count => {
                let text = single(&values)?;
                let count: u8 = text.parse().map_err(|_| fail(format!("is `{text}`: write a number")))?;
                out.extend((0..count).map(|_| bare()));
            }
            ArgAction::Set if values.len() != 1 => {
                return Err(fail(format!("takes one value, not {}", values.len())));
            }
            _ => {
                for value in values {
                    let mut text = bare();
                    text.push("=");
                    text.push(value);
                    out.push(text);
                }
            }
        }
        Ok(())
    }

    fn text(&self, matches: &ArgMatches) -> Option<String> {
        let values = matches.get_raw(self.arg.get_id().as_str())?;
        let texts: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
}
