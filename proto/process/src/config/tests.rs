use std::io::Write as _;

use clap::{CommandFactory as _, Parser};
use mc_types::{ByteSize, Span};

use super::*;

#[derive(Debug, Parser)]
#[command(name = "mc-test", version)]
struct Flags {
    /// Masters to ask
    #[arg(long, value_delimiter = ',')]
    masters: Vec<String>,
    /// Size to lend
    #[arg(long)]
    segment: ByteSize,
    #[arg(long, default_value = "5s")]
    leader_timeout: Span,
    #[arg(long)]
    single: bool,
    #[arg(long, env = "MC_LOG")]
    log: Option<String>,
    #[arg(long, hide = true)]
    end_with_parent: bool,
    #[command(flatten)]
    file: FileOptions,
}

fn load_with(args: &[&str], env: &[(&str, &str)]) -> Result<Loaded<Flags>, ConfigError> {
    let args = ["mc-test"].iter().chain(args).map(OsString::from);
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    load(Flags::command(), args, move |name| {
        env.iter().find(|(key, _)| key == name).map(|(_, value)| value.into())
    })
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn message(result: Result<Loaded<Flags>, ConfigError>) -> String {
    let text = result.unwrap_err().to_string();
    assert!(!text.contains('\n'), "not one line: {text}");
    text
}

/// A store's memory is freed in the environment that its usual start is made for.
#[test]
fn a_flag_that_stands_alone_is_read_from_the_command_line_alone() {
    #[derive(Debug, Parser)]
    struct Flags {
        #[arg(long, required = true)]
        segment: Vec<ByteSize>,
        #[arg(long, exclusive = true)]
        release: Option<String>,
        #[command(flatten)]
        file: FileOptions,
    }
    let load = |args: &[&str], env: &[(&str, &str)]| {
        let args = ["mc-test"].iter().chain(args).map(OsString::from);
        load::<Flags>(Flags::command(), args.collect::<Vec<_>>(), |name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    };
    let loaded = load(&["--segment", "1gb"], &[("MC_RELEASE", "dir")]).unwrap();
    assert_eq!(loaded.args.release, None);
    assert!(loaded.settings.iter().all(|setting| setting.name != "release"));
    let file = file("release = \"dir\"\nsegment = \"1gb\"\n");
    let path = file.path().to_str().unwrap();
    assert!(load(&["--config", path], &[]).unwrap_err().to_string().contains("release"));
    let loaded =
        load(&["--release", "dir"], &[("MC_SEGMENT", "1gb"), ("MC_CONFIG", "/no/such/file")]).unwrap();
    assert_eq!(
        (loaded.args.release.as_deref(), loaded.args.segment, loaded.args.file.config),
        (Some("dir"), vec![], None)
    );
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let file = file("segment = \"1gb\"\nmasters = [\"f1\", \"f2\"]\nsingle = true\nlog = \"debug\"\n");
    let path = file.path().to_str().unwrap();
    let loaded =
        load_with(&["--config", path, "--segment", "3gb"], &[("MC_SEGMENT", "2gb"), ("MC_LOG", "warn")])
            .unwrap();
    assert_eq!(loaded.args.segment, ByteSize(3 << 30));
    assert_eq!(loaded.args.log.as_deref(), Some("warn"));
    assert_eq!(loaded.args.masters, ["f1", "f2"]);
    assert!(loaded.args.single);
    assert_eq!(loaded.origin("segment"), Some(&Origin::Flag));
    assert_eq!(loaded.origin("log"), Some(&Origin::Env("MC_LOG".into())));
    assert_eq!(loaded.origin("masters"), Some(&Origin::File(file.path().into())));
    assert_eq!(loaded.origin("leader-timeout"), Some(&Origin::Default));

    let by_env =
        load_with(&[], &[("MC_CONFIG", path), ("MC_MASTERS", "a,b"), ("MC_SINGLE", "false")]).unwrap();
    assert_eq!(by_env.args.segment, ByteSize(1 << 30), "a required flag may come from the file");
    assert_eq!(by_env.args.masters, ["a", "b"]);
    assert!(!by_env.args.single, "the environment's false wins over the file's true");
    assert_eq!(by_env.origin("config"), Some(&Origin::Env("MC_CONFIG".into())));
}

#[test]
fn what_is_printed_is_a_configuration_file() {
    let first = load_with(&["--segment=4096", "--masters", "a,b"], &[("MC_SINGLE", "1")]).unwrap();
    let mut text = Vec::new();
    first.print(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("segment = \"4096\""), "{text}");
    assert!(text.contains("# env MC_SINGLE"), "{text}");
    assert!(text.contains("# log is not set"), "{text}");

    let file = file(&text);
    let second = load_with(&["--config", file.path().to_str().unwrap()], &[]).unwrap();
    assert_eq!(second.args.masters, first.args.masters);
    assert_eq!(second.args.segment, first.args.segment);
    assert!(second.args.single);
    let mut again = Vec::new();
    second.print(&mut again).unwrap();
    let again = String::from_utf8(again).unwrap();
    assert!(again.contains("\n# config is ") && !again.contains("config = "), "{again}");
}

#[test]
fn a_hidden_flag_works_in_every_layer_and_is_not_listed() {
    for (args, env) in [(&["--end-with-parent"][..], &[][..]), (&[], &[("MC_END_WITH_PARENT", "1")])] {
        let loaded = load_with(&[&["--segment=1"], args].concat(), env).unwrap();
        assert!(loaded.args.end_with_parent);
        let mut text = Vec::new();
        loaded.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("segment") && !text.contains("end-with-parent"), "{text}");
    }
}

#[test]
fn each_mistake_is_one_sentence_that_names_it() {
    let near = file("segmemt = \"1gb\"\n");
    let near = message(load_with(&["--config", near.path().to_str().unwrap()], &[]));
    assert!(near.contains("unknown key `segmemt`; did you mean `segment`?"), "{near}");

    let bad = file("segment = \"huge\"\n");
    let path = bad.path().to_str().unwrap().to_owned();
    let bad = message(load_with(&["--config", &path], &[]));
    assert!(bad.contains("`huge` is not a size") && bad.contains(&format!("(file {path})")), "{bad}");

    let toml = file("\nsegment = \n");
    let toml = message(load_with(&["--config", toml.path().to_str().unwrap()], &[]));
    assert!(toml.contains("is not valid TOML") && toml.contains("line 2"), "{toml}");

    let env = message(load_with(&["--segment=1"], &[("MC_SINGLE", "maybe")]));
    assert_eq!(env, "`single` (env MC_SINGLE) is `maybe`: write true or false");

    let missing = message(load_with(&[], &[]));
    assert!(missing.contains("--segment"), "{missing}");
    let unknown = message(load_with(&["--segmnt", "1"], &[]));
    assert!(unknown.contains("'--segmnt'") && unknown.contains("--segment"), "{unknown}");
    let absent = message(load_with(&["--config", "/nowhere/x.toml"], &[]));
    assert!(absent.contains("cannot read the configuration file /nowhere/x.toml"), "{absent}");
}

#[test]
fn help_is_not_an_error_and_names_the_environment() {
    let Err(ConfigError::Shown(help)) = load_with(&["--help"], &[]) else { panic!("help is shown") };
    assert!(help.contains("[env: MC_MASTERS]"), "{help}");
}
