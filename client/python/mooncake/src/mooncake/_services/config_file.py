"""The file of `mooncake_master --config_path`: a flat list of settings, whose names are mostly those of the flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .flags import COMMAND_LINE_ONLY, Effect, Flag, FlagError, Given

# Names that differ from the flag's.
_ALIASES = {"client_live_ttl_sec": "client_ttl"}
_NOT_SETTINGS = COMMAND_LINE_ONLY | {"config_path"}
# Values of YAML that begin so are lists, mappings, blocks, references and the like.
_NO_SCALARS = ("[", "{", "|", ">", "&", "*")
_MOST_BYTES = 1 << 20


def read_config(table: Mapping[str, Flag], given: Given) -> None:
    """Adds the settings of the file to those that no flag has set. FlagError names a setting that is unknown, refused or illegal."""
    path = given.text("config_path")
    if not path:
        return
    for name, text in _settings(path).items():
        flag = table.get(_ALIASES.get(name, name))
        if flag is None:
            raise FlagError(f"--config_path={path}: unknown setting '{name}': --help lists the flags, and settings have their names")
        if flag.name in _NOT_SETTINGS:
            raise FlagError(f"--config_path={path}: '{name}' is no setting: give it as a flag, --{name}")
        if flag.name in given.values:
            continue
        try:
            given.values[flag.name] = flag.read(text)
        except FlagError as error:
            raise FlagError(f"--config_path={path}: {error}") from None
        if flag.effect is Effect.REFUSED and given.changed(flag):
            raise FlagError(f"--config_path={path}: {name} is refused: {flag.note}")


def _settings(path: str) -> dict[str, str]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise FlagError(f"--config_path={path} has more than {_MOST_BYTES} bytes: it is no configuration")
        text = content.decode()
        return _of_json(path, json.loads(text)) if path.endswith(".json") else _of_yaml(path, text)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FlagError):
            raise
        raise FlagError(f"--config_path={path} can't be read: {error}") from None


def _of_json(path: str, content: object) -> dict[str, str]:
    if not isinstance(content, dict):
        raise FlagError(f"--config_path={path} holds {type(content).__name__} in place of a JSON object")
    for name, value in content.items():
        if not isinstance(value, str | int | float):
            raise FlagError(f"--config_path={path}: '{name}' is {json.dumps(value)[:40]}: write text, a number, true or false")
    return {name: str(value) for name, value in content.items()}


def _of_yaml(path: str, text: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        name, colon, value = line.partition(":")
        if not colon or line[0] in " \t-" or (value and value[0] not in " \t"):
            raise FlagError(f"--config_path={path}, line {number}: {stripped!r} is no setting: write `name: value`, without nesting")
        if value.strip().startswith(_NO_SCALARS):
            raise FlagError(f"--config_path={path}, line {number}: {value.strip()!r} is no plain value: write it in one line, in quotes")
        settings[name.strip()] = _scalar(value.strip())
    return settings


def _scalar(value: str) -> str:
    quote = value[:1]
    if quote in ("'", '"') and (end := value.find(quote, 1)) > 0:
        return value[1:end]
    return value.partition(" #")[0].strip() if not value.startswith("#") else ""
