"""What the word under the cursor may become: commands, options, keys of the chosen method, values, files and runs.

It asks the commands themselves and the stored catalogue, so that torch is not imported; and what words name outside of
this package (package.module:function) is never imported by pressing a key.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.cli.completion import paths, words
from cloister.errors import CloisterError
from cloister.runs.choices import PARTS, Catalogue
from cloister.runs.keys import Key, kinds_of


@dataclass(frozen=True)
class Candidate:
    """A whole word, and what it means in a few."""

    value: str
    help: str = ""


_WITH_KEYS = ("run", "plan", "audit", "compare", "tune", "reproduce", "keys", "data show", "federation init")
_RUNS = ("show", "resume", "report", "publish", "predict", "export", "attack", "landscape", "theory", "certificate")
_MOST_BYTES = 2**20
"""Of a config file that is read while somebody waits for a key press."""
_DATA_SETS = ("data list", "data get", "data show")


def candidates(top: Any, before: Sequence[str], word: str) -> list[Candidate]:
    """All that begin like `word`, after the words `before` it (without the program's own name)."""
    name, command, given = _command(top, list(before))
    found = _commands(name, command) if hasattr(command, "commands") else _within(name, command, given, word)
    if name == "keys" and not given:
        found = [*found, Candidate("new", "a pair of keys to sign with"), Candidate("show", "the public one of them")]
    if not word.startswith("-"):
        found = [one for one in found if not one.value.startswith("-")]
    return list({one.value: one for one in found if one.value.startswith(word)}.values())


def _command(top: Any, before: list[str]) -> tuple[str, Any, list[str]]:
    """Which command is being written: its name, itself, and the words after it."""
    name, command = "", top
    while before and hasattr(command, "commands"):
        both = " ".join(before[:2])
        step = both if len(before) > 1 and both in command.commands else before[0]
        if step not in command.commands:
            if not before[0].startswith("-"):
                return name, _Nothing(), []
            before = before[1:]
            continue
        name, command, before = f"{name} {step}".strip(), command.commands[step], before[len(step.split()) :]
    return name, command, before


class _Nothing:
    """In place of a command that does not exist."""

    params: tuple[Any, ...] = ()


def _commands(name: str, group: Any) -> list[Candidate]:
    listed = group.commands if name else {one: group.commands[one] for one in group.list_commands(None)}
    shown = [
        Candidate(one, command.get_short_help_str(60).replace("\\[", "["))
        for one, command in listed.items()
        if not command.hidden and " " not in one
    ]
    return [*shown, *_options(group)]


def _within(name: str, command: Any, given: Sequence[str], word: str) -> list[Candidate]:
    """Inside of a command."""
    if given and given[-1].startswith("--") and "=" not in given[-1]:
        option = _option(command, given[-1])
        if option is not None and not option.is_flag:
            return _values_of_option(name, option, word)
        if option is None and name in _WITH_KEYS and given[-1] != "--help":
            key = given[-1][2:].replace("-", "_")
            start = f"{key}="
            values = _values_of_key(name, key, _chosen(name, given), start + word)
            return [Candidate(one.value.removeprefix(start), one.help) for one in values]
    elif given and (option := _option(command, given[-1])) is not None and not option.is_flag:  # such as -o
        return _values_of_option(name, option, word)
    if word.startswith("-"):
        as_options = name in _WITH_KEYS and word.strip("-")
        keys = [Candidate(f"--{one.value[:-1]}", one.help) for one in _keys(name, given)] if as_options else []
        return [*_options(command), *keys]
    if "=" in word:
        return _values_of_key(name, word.partition("=")[0], _chosen(name, given), word) if name in _WITH_KEYS else []
    return _positional(name, command, given, word)


def _positional(name: str, command: Any, given: Sequence[str], word: str) -> list[Candidate]:
    """Words that are neither options nor their values."""
    first = _first(command, given)
    if name in ("methods", "keys") or name in _DATA_SETS:
        part = "method" if name in ("methods", "keys") else "data"
        names = [] if first is not None else _choices(part)
        more = [Candidate(one) for one in paths.files(word)] if name == "data show" and first is None else []
        return [*names, *more, *(_keys(name, given) if name in _WITH_KEYS else [])]
    if name == "reproduce" and first is None:
        from cloister.studies.papers.files import titles

        return [*(Candidate(*one) for one in titles().items()), *_files(word, ".toml")]
    if name in _WITH_KEYS:
        return [*_keys(name, given), *(_files(word, ".toml") if first is None else [])]
    if name in _RUNS and not (name == "predict" and first is not None):
        found = paths.run_folders(word, unfinished=name == "resume")
        return [Candidate(one, "a run" if not one.endswith("/") else "") for one in found]
    if name == "completion":
        return [Candidate(shell) for shell in ("bash", "zsh", "fish")]
    takes_files = any(_is_path(one) for one in command.params if one.param_type_name == "argument")
    return _files(word) if takes_files or name == "federation status" else []


def _first(command: Any, given: Sequence[str]) -> str | None:
    """The first word that is neither an option, nor the value of one, nor KEY=VALUE."""
    value_next = False
    for one in given:
        if value_next:
            value_next = False
        elif one.startswith("-"):
            option = _option(command, one)
            value_next = "=" not in one and (option is None or not option.is_flag)
        elif "=" not in one:
            return one
    return None


def _options(command: Any) -> list[Candidate]:
    listed = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    found = [Candidate(max(one.opts, key=len), one.help or "") for one in listed]
    return [*found, Candidate("--help", "what this does")]


def _option(command: Any, word: str) -> Any:
    listed = (one for one in command.params if one.param_type_name == "option")
    return next((one for one in listed if word in (*one.opts, *one.secondary_opts)), None)


def _values_of_option(name: str, option: Any, word: str) -> list[Candidate]:
    known = next((words.OPTIONS[name, one] for one in option.opts if (name, one) in words.OPTIONS), None)
    if known is not None:
        return [Candidate(one) for one in known]
    return _files(word) if _is_path(option) else []


def _is_path(parameter: Any) -> bool:
    return getattr(parameter.type, "name", "") in ("path", "file", "directory", "filename")


def _files(word: str, *suffixes: str) -> list[Candidate]:
    return [Candidate(one) for one in paths.files(word, suffixes)]


def _chosen(name: str, given: Sequence[str]) -> dict[str, str]:
    """The keys that are given already: by a config file, as KEY=VALUE and as --KEY VALUE."""
    found: dict[str, str] = {}
    for place, one in enumerate(given):
        if one.startswith("--"):
            key, equals, value = one[2:].partition("=")
            follows = given[place + 1] if place + 1 < len(given) else ""
            found[key.replace("-", "_")] = value if equals else follows
        elif "=" in one:
            key, _, value = one.partition("=")
            found[key] = value
        elif name == "keys" and one in _catalogue().choices["method"]:
            found["method"] = one
        elif name == "data show" and one in _catalogue().choices["data"]:
            found["data"] = one
        elif one.endswith(".toml"):
            found = {**_in_file(one), **found}
    return found


def _in_file(path: str) -> dict[str, str]:
    """The keys of a config file, as far as it can be read."""
    try:
        file = Path(path).expanduser()
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:  # a pipe would keep the shell waiting
            return {}
        held = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, RuntimeError):
        return {}
    return {key: str(value) for key, value in {**held, **_table(held, "shared")}.items() if not isinstance(value, dict)}


def _table(held: dict[str, Any], name: str) -> dict[str, Any]:
    found = held.get(name)
    return found if isinstance(found, dict) else {}


def _catalogue() -> Catalogue:
    from cloister.runs.catalogue import stored

    return stored()


def _choices(part: str) -> list[Candidate]:
    known = _catalogue().choices[part]
    return [Candidate(one, choice.facts.paper if choice.facts else "") for one, choice in known.items()]


def _keys(name: str, given: Sequence[str]) -> list[Candidate]:
    """Keys as `key=`, those that are given left out."""
    chosen = _chosen(name, given)
    parts = ("partition", "model", "cohort", "server", "data", "method")
    listed = [key for key in _known_keys(name, chosen) if key.name not in chosen]
    if name == "keys":  # which tells of choices, and takes no values
        listed = [key for key in listed if key.name in parts]
    if name == "data show":
        own = {key.name for part in ("data", "partition") for key in _of_part(part, chosen)} | {"partition"}
        listed = [key for key in listed if key.name in own]
    return [Candidate(f"{key.name}=", key.help) for key in listed]


def _known_keys(name: str, chosen: dict[str, str]) -> list[Key]:
    """The keys of a run with these choices."""
    from cloister.runs.resolution import keys_by_name

    catalogue = _catalogue()
    known = {part: chosen[part] for part in PARTS if chosen.get(part) in catalogue.choices[part]}
    try:
        keys = keys_by_name(catalogue, known)
    except CloisterError:  # choices that do not go together: whoever presses Enter is told why
        keys = keys_by_name(catalogue, {})
    more = {key.name: key for key in catalogue.plan} if name in ("plan", "audit") else {}
    own = {key.name: key for key in catalogue.own_data} if chosen.get("data") and "data" not in known else {}
    hidden = ("progress", "config")
    return [key for key in {**keys, **more, **own}.values() if key.name not in hidden]


def _of_part(part: str, chosen: dict[str, str]) -> Iterable[Key]:
    known = _catalogue().choices[part]
    option = chosen.get(part, PARTS[part].default)
    return known[option].keys if option in known else ()


def _values_of_key(name: str, key: str, chosen: dict[str, str], word: str) -> list[Candidate]:
    """What may stand behind the equals sign, as KEY=VALUE; of lists, behind the last comma."""
    start, _, value = word.partition("=")
    if key in PARTS:
        found = [Candidate(f"{key}={one.value}", one.help) for one in _choices(key)]
        is_path = key == "data" and ("/" in value or value.startswith("."))
        return [*found, *(Candidate(f"{key}={one}") for one in paths.files(value) if is_path)]
    about = next((one for one in _known_keys(name, chosen) if one.name == key), None)
    if about is None:
        return []
    if about.is_path or key in words.FILES:
        return [Candidate(f"{key}={one}") for one in paths.files(value)]
    known = [*words.KEYS.get(key, ()), *(str(one) for kind in kinds_of(about.kind) for one in _words(kind))]
    several = any(typing.get_origin(kind) is list for kind in kinds_of(about.kind)) or key == "log" or name == "tune"
    begun = value.rpartition(",")[0] + "," if several and "," in value else ""
    taken = begun.split(",")
    return [Candidate(f"{start}={begun}{one}") for one in dict.fromkeys(known) if one not in taken]


def _words(kind: Any) -> tuple[Any, ...]:
    if kind is bool:
        return ("true", "false")
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
