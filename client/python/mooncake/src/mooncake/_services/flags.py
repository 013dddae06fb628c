"""Flags in the syntax of gflags, in which upstream's executables are configured."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

Value = str | int | float | bool

_TRUE = frozenset({"1", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "n", "no"})
_BOUNDS = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}
_HELP = frozenset({"help", "helpfull", "helpshort", "helpmatch", "helpon", "helppackage", "helpxml"})
COMMAND_LINE_ONLY = _HELP | {"version", "flagfile", "fromenv", "tryfromenv", "undefok"}
"""Flags that say how to read the others, or to print something."""
# Files and variables that name each other. gflags has no bound, and one that names itself would never end.
_MOST_SOURCES = 16


class FlagError(ValueError):
    """The command line can't be used. The text names the flag, and says why and what to write."""


class Effect(Enum):
    """Meaning of a flag of upstream's in this project."""

    MAPPED = "mapped"
    NONE = "no effect"
    REFUSED = "refused"
    """Refused with any value but upstream's default."""
    OURS = "added"
    """Upstream has no such flag."""


@dataclass(frozen=True)
class Flag:
    """A flag, and what becomes of it."""

    name: str
    kind: str
    """gflags' name of its type: bool, int32, uint32, int64, uint64, double or string."""
    default: str
    """Upstream's default, as one writes it."""
    effect: Effect
    note: str
    """Mapped: where to. Otherwise: why."""
    versions: str = ""
    """The one of 0.3.13 and 0.3.14 that has it. Empty: both."""

    def read(self, text: str) -> Value:
        """The value of `text`. FlagError if it is of another type."""
        lower = text.lower()
        if self.kind == "string":
            return text
        if self.kind == "bool":
            if lower in _TRUE:
                return True
            if lower in _FALSE:
                return False
            raise self._illegal(text, "write true or false")
        if self.kind == "double":
            try:
                return float(text)
            except ValueError:
                raise self._illegal(text, "write a number, such as 0.95") from None
        low, high = _BOUNDS[self.kind]
        try:
            number = int(text, 16 if lower.startswith("0x") else 10)
        except ValueError:
            raise self._illegal(text, "write a whole number") from None
        if not low <= number <= high:
            raise self._illegal(text, f"write a number between {low} and {high}")
        return number

    def _illegal(self, text: str, advice: str) -> FlagError:
        return FlagError(f"illegal value {text!r} specified for {self.kind} flag '{self.name}': {advice}")


@dataclass
class Given:
    """The flags of a command line."""

    values: dict[str, Value] = field(default_factory=dict)
    """Values of the flags that were given, by name."""
    words: list[str] = field(default_factory=list)
    """Arguments that belong to no flag. Upstream ignores them."""
    wants_help: bool = False
    wants_version: bool = False

    def changed(self, flag: Flag) -> bool:
        """Whether the flag was given with another value than upstream's default."""
        return flag.name in self.values and self.values[flag.name] != flag.read(flag.default)

    def text(self, name: str, default: str = "") -> str:
        """Value of a string flag."""
        return str(self.values.get(name, default))

    def number(self, name: str, default: int) -> int:
        """Value of a flag with a whole number."""
        return int(self.values.get(name, default))

    def is_true(self, name: str, *, default: bool = False) -> bool:
        """Value of a bool flag."""
        return bool(self.values.get(name, default))


def alike(effect: Effect, note: str, *rows: str) -> list[Flag]:
    """Flags with one note. A row is `name type default [@version]`, with `""` for an empty default and `&` for a space in it."""
    flags = []
    for row in rows:
        row, _, version = row.partition(" @")
        name, kind, default = row.split()
        flags.append(Flag(name, kind, default.strip('"').replace("&", " "), effect, note, version))
    return flags


def table_of(*groups: Iterable[Flag]) -> dict[str, Flag]:
    """A table of the flags, by name."""
    return {flag.name: flag for group in groups for flag in group}


def parse(table: Mapping[str, Flag], arguments: Sequence[str], environ: Mapping[str, str]) -> Given:
    """Reads a command line as gflags does. FlagError for a flag that is unknown, refused, or of an illegal value.

    One dash or two; `--flag value` and `--flag=value`; `--flag` and `--noflag` of a bool, which takes a value after `=` only; dashes
    in names count as underscores; `--` ends the flags; the last of several values counts. `--flagfile`, `--fromenv`, `--tryfromenv`
    and `--undefok` work, too.
    """
    reader = _Reader(table, environ, _undefined_is_fine(arguments))
    reader.read(list(arguments))
    for flag in table.values():
        if flag.effect is Effect.REFUSED and reader.given.changed(flag):
            raise FlagError(f"--{flag.name} is refused: {flag.note}")
    return reader.given


def _undefined_is_fine(arguments: Sequence[str]) -> frozenset[str]:
    names: set[str] = set()
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "undefok":
            names |= set((value if equals else following).replace("-", "_").split(","))
    return frozenset(names)


class _Reader:
    """What has been read so far."""

    def __init__(self, table: Mapping[str, Flag], environ: Mapping[str, str], undefined: frozenset[str]) -> None:
        self.table, self.environ, self.undefined = table, environ, undefined
        self.given = Given()
        self.sources = 0

    def read(self, arguments: list[str]) -> None:
        waiting = iter(arguments)
        for argument in waiting:
            if argument == "--":
                self.given.words += waiting
            elif not argument.startswith("-") or argument == "-":
                self.given.words.append(argument)
            else:
                self.flag(argument, waiting)

    def flag(self, argument: str, waiting: Iterable[str]) -> None:
        name, equals, text = argument[1 + argument.startswith("--") :].partition("=")
        name = name.replace("-", "_")
        flag = self.table.get(name)
        if flag is None and name.startswith("no") and (flag := self.table.get(name[2:])) is not None:
            if flag.kind != "bool" or equals:
                raise FlagError(f"{argument!r}: boolean value specified for {flag.kind} flag '{flag.name}'; write --{flag.name}=VALUE")
            text = "false"
        elif flag is None:
            if name in self.undefined:
                return
            raise FlagError(f"unknown command line flag '{name}' in {argument!r}: --help lists the flags")
        elif not equals and flag.kind == "bool":
            text = "true"
        elif not equals:
            following = next(iter(waiting), None)
            if following is None:
                raise FlagError(f"flag '--{name}' is missing its argument: write --{name}=VALUE")
            text = following
        self.take(flag, text)

    def take(self, flag: Flag, text: str) -> None:
        if flag.name == "flagfile":
            for path in filter(None, text.split(",")):
                self.file(path)
        elif flag.name in ("fromenv", "tryfromenv"):
            self.variables(flag.name, text)
        else:
            value = flag.read(text)
            self.given.values[flag.name] = value
            self.given.wants_help |= flag.name in _HELP and bool(value)
            self.given.wants_version |= flag.name == "version" and bool(value)

    def file(self, path: str) -> None:
        self.count(f"--flagfile={path}")
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FlagError(f"--flagfile={path} can't be read: {error}") from None
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line.startswith("#"):
                continue
            if not line.startswith("-"):
                raise FlagError(f"--flagfile={path}, line {number}: {line!r} is no flag; write --flag=value")
            self.flag(line, ())

    def count(self, source: str) -> None:
        self.sources += 1
        if self.sources > _MOST_SOURCES:
            raise FlagError(f"{source}: more than {_MOST_SOURCES} files and lists of variables; does one name itself?")

    def variables(self, source: str, names: str) -> None:
        self.count(f"--{source}={names}")
        for name in filter(None, names.split(",")):
            flag, text = self.table.get(name), self.environ.get(f"FLAGS_{name}")
            if flag is None:
                raise FlagError(f"--{source}: unknown command line flag '{name}': --help lists the flags")
            if text is not None:
                self.take(flag, text)
            elif source == "fromenv":
                raise FlagError(f"--fromenv={name}: the variable FLAGS_{name} is not set")


# Flags that gflags and glog add to each of upstream's executables.
COMMON: list[Flag] = [
    *alike(Effect.MAPPED, "reads flags from files with a flag a line", 'flagfile string ""'),
    *alike(Effect.MAPPED, "reads the named flags from variables `FLAGS_name`, which must be set", 'fromenv string ""'),
    *alike(Effect.MAPPED, "reads the named flags from variables `FLAGS_name`", 'tryfromenv string ""'),
    *alike(Effect.MAPPED, "names of flags that may be unknown", 'undefok string ""'),
    *alike(
        Effect.MAPPED,
        "prints the flags",
        "help bool false",
        "helpfull bool false",
        "helpshort bool false",
        "helppackage bool false",
        "helpxml bool false",
        'helpmatch string ""',
        'helpon string ""',
    ),
    *alike(Effect.MAPPED, "prints the version", "version bool false"),
    *alike(Effect.MAPPED, "level of the log: 0 info, 1 warnings, 2 and more errors", "minloglevel int32 0"),
    *alike(Effect.MAPPED, "1 and more: the log has debug lines, too", "v int32 0"),
    *alike(Effect.NONE, "for shells", "tab_completion_columns int32 80", 'tab_completion_word string ""'),
    *alike(
        Effect.NONE,
        "the log goes to standard error",
        "alsologtostderr bool false",
        "logtostderr bool false",
        "colorlogtostderr bool false",
        "stderrthreshold int32 2",
        'log_dir string ""',
        'log_link string ""',
        'alsologtoemail string ""',
        "logemaillevel int32 999",
        "logmailer string /bin/mail",
        "logfile_mode int32 436",
        "max_log_size int32 1800",
        "stop_logging_if_full_disk bool false",
        "drop_log_memory bool true",
    ),
    *alike(Effect.NONE, "each line has its time and level", "log_prefix bool true"),
    *alike(Effect.NONE, "lines are not held back", "logbuflevel int32 0", "logbufsecs int32 30"),
    *alike(Effect.NONE, "names source files of upstream's", 'log_backtrace_at string ""', 'vmodule string ""'),
    *alike(Effect.NONE, "backtraces always have names", "symbolize_stacktrace bool true"),
]


def log_level(given: Given) -> int:
    """Level of Python's log for glog's flags."""
    if given.number("v", 0) > 0:
        return logging.DEBUG
    return {0: logging.INFO, 1: logging.WARNING}.get(max(given.number("minloglevel", 0), 0), logging.ERROR)


def print_help(program: str, table: Mapping[str, Flag]) -> None:
    """Prints the flags with their meaning."""
    print(f"{program}: flags of Mooncake, with one dash or two\n")
    for flag in sorted(table.values(), key=lambda flag: flag.name):
        default = f'"{flag.default}"' if flag.kind == "string" else flag.default
        print(f"  --{flag.name} ({flag.kind}, default {default})\n      {flag.effect.value}: {flag.note}")


def markdown(table: Mapping[str, Flag]) -> str:
    """The table for the documentation."""
    rows = ["| Flag | Type | Default | Here | How, or why |", "|---|---|---|---|---|"]
    for flag in sorted(table.values(), key=lambda flag: flag.name):
        versions = f" ({flag.versions})" if flag.versions else ""
        default = f"`{flag.default}`" if flag.default else ""
        rows.append(f"| `--{flag.name}`{versions} | {flag.kind} | {default} | {flag.effect.value} | {flag.note} |")
    return "\n".join(rows) + "\n"


def without_effect(table: Mapping[str, Flag], given: Given) -> list[str]:
    """A line for each flag that was given and has no effect."""
    quiet = {flag.name for flag in COMMON}
    return [
        f"--{flag.name} has no effect: {flag.note}"
        for flag in table.values()
        if flag.effect is Effect.NONE and given.changed(flag) and flag.name not in quiet
    ]
