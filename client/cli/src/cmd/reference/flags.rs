//! The flags and commands that `--help` shows, as values.

use std::collections::BTreeMap;
use std::fmt;

use clap::{Arg, Command};

use super::markdown::code;

/// A flag as the reference lists it.
pub(super) struct Flag {
    /// Name with its dashes.
    pub(super) name: String,
    /// Name of its value; empty for a flag without one.
    pub(super) value: String,
    /// Value that applies when the flag is not given.
    pub(super) default: Fallback,
    /// Environment variable that sets it.
    pub(super) variable: Option<String>,
    /// Effect of the flag, from its help text.
    pub(super) help: String,
}

/// Value of a flag that is not given. Its `Display` form is a table cell.
pub(super) enum Fallback {
    /// The flag has this default.
    Value(String),
    /// Description of where the value comes from.
    Words(String),
    /// No value: the flag must be given.
    Required,
    /// The flag is optional and has no default.
    Unset,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.write_str(&code(value)),
            Self::Words(words) => f.write_str(words),
            Self::Required => f.write_str("required"),
            Self::Unset => Ok(()),
        }
    }
}

/// Lists the flags of a built `command`. `variable` names the environment variable of a flag whose help has no note
/// `[env: NAME]`.
pub(super) fn of(command: &Command, variable: impl Fn(&Arg) -> Option<String>) -> Vec<Flag> {
    let shown = |arg: &&Arg| {
        !arg.is_positional() && !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
    };
    command.get_arguments().filter(shown).map(|arg| flag(arg, &variable)).collect()
}

fn flag(arg: &Arg, variable: impl Fn(&Arg) -> Option<String>) -> Flag {
    let names =
        [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let takes_value = arg.get_action().takes_values();
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let (text, notes) = without_notes(&help);
    let mut help = text.to_owned();
    let possible: Vec<_> = arg.get_possible_values().iter().map(|value| code(value.get_name())).collect();
    if takes_value && !possible.is_empty() {
        help = format!("{help}: {}", possible.join(" or "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match notes.get("default") {
        Some(words) => Fallback::Words((*words).to_owned()),
        None if arg.is_required_set() => Fallback::Required,
        None if takes_value && !defaults.is_empty() => Fallback::Value(defaults.join(",")),
        None => Fallback::Unset,
    };
    Flag {
        name: names.into_iter().flatten().collect::<Vec<_>>().join(", "),
        value: if takes_value { arg.get_value_names().unwrap_or_default().join(" ") } else { String::new() },
        default,
        variable: notes.get("env").map(|name| (*name).to_owned()).or_else(|| variable(arg)),
        help,
    }
}

/// Splits a help text from the notes at its end, such as `[default: the host name]`.
fn without_notes(help: &str) -> (&str, BTreeMap<&str, &str>) {
    let (mut text, mut notes) = (help.trim_end(), BTreeMap::new());
    while let Some((before, note)) = text.strip_suffix(']').and_then(|text| text.rsplit_once('[')) {
        let Some((name, value)) = note.split_once(": ") else { break };
        notes.insert(name, value);
        text = before.trim_end();
    }
    (text, notes)
}

/// Lists the leaf commands of a built `command`: the usage of each, and its effect.
pub(super) fn commands(command: &Command) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    add_commands(command, command.get_name(), &mut rows);
    rows
}

fn add_commands(command: &Command, line: &str, rows: &mut Vec<(String, String)>) {
    let arguments =
        |command: &Command| command.get_positionals().map(|arg| format!(" {arg}")).collect::<String>();
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(shown) {
        let line = format!("{line} {}", command.get_name());
        if command.has_subcommands() {
            add_commands(command, &line, rows);
        } else {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            rows.push((line + &arguments(command), about));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_at_the_end_of_a_help_text_become_columns() {
        let arg = Arg::new("masters").long("masters").short('m').value_name("LIST");
        let help = "Masters, as [a], comma-separated\n[env: MC_M] [default: this machine]";
        let from_notes = flag(&arg.clone().help(help), |_| None);
        assert_eq!((from_notes.name.as_str(), from_notes.value.as_str()), ("-m, --masters", "LIST"));
        assert_eq!(from_notes.help, "Masters, as [a], comma-separated");
        assert_eq!(from_notes.variable.as_deref(), Some("MC_M"));
        assert_eq!(from_notes.default.to_string(), "this machine");

        let declared = flag(&arg.help("Masters [a]").default_value("b:1"), |_| Some("MC_MASTERS".into()));
        assert_eq!(
            (declared.help.as_str(), declared.variable.as_deref()),
            ("Masters [a]", Some("MC_MASTERS"))
        );
        assert_eq!(declared.default.to_string(), "`b:1`");
    }

    #[test]
    fn hidden_flags_and_commands_are_left_out() {
        let mut command = Command::new("tool")
            .arg(Arg::new("secret").long("secret").hide(true))
            .arg(Arg::new("size").long("size").required(true))
            .subcommand(Command::new("secret").hide(true))
            .subcommand(
                Command::new("pool").subcommand(Command::new("add").about("Add").arg(Arg::new("KEY"))),
            );
        command.build();
        let flags = of(&command, |_| None);
        let flags: Vec<_> = flags.iter().map(|flag| (flag.name.as_str(), flag.default.to_string())).collect();
        assert_eq!(flags, [("--size", "required".to_owned())]);
        assert_eq!(commands(&command), [("tool pool add [KEY]".to_owned(), "Add".to_owned())]);
    }
}
