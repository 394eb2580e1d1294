"""From keys to what they mean: which choice each part is, and the value of every key. Others are refused.

It asks a catalogue (`choices.py`) and nothing else, so that slips can be found before anything heavy is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloister.data.defaults import defaults_of
from cloister.errors import CloisterError, nearest
from cloister.runs.choices import PARTS, Catalogue, MethodFacts
from cloister.runs.keys import Key, converted, in_groups


@dataclass(frozen=True)
class Resolved:
    """Which option was chosen for each part, and the value of every key that has one."""

    chosen: dict[str, str]
    values: dict[str, Any]


def resolve(
    catalogue: Catalogue, values: Mapping[str, Any], among: Iterable[str] = PARTS, more: Iterable[Key] = ()
) -> Resolved:
    """Some parts of a run with these keys, where `more` are keys that belong to none of them."""
    chosen = _chosen(catalogue, values, catalogue.part_names(values, among))
    keys = [key for part, option in chosen.items() for key in catalogue.keys_of(part, option)] + list(more)
    _refuse_unknown(catalogue, values, {key.name for key in keys}, chosen)
    return Resolved(chosen, {**chosen, **values_of(keys, values)})


def method_facts(catalogue: Catalogue, values: Mapping[str, Any]) -> MethodFacts:
    """What is known of the method that is chosen here; one that was not registered is made, to see what it says."""
    name = catalogue.option("method", values)
    known = catalogue.choice("method", name).facts
    if known is not None:
        return known
    from cloister.runs.config import facts_when_made

    return facts_when_made(name, values)


def keys_by_name(catalogue: Catalogue, values: Mapping[str, Any]) -> dict[str, Key]:
    """The keys of a run with these values: which choices it has, those of each choice, and those of every run."""
    chosen = _chosen(catalogue, values, catalogue.part_names(values))
    keys = [Key(part, "choice", str, option, PARTS[part].help) for part, option in chosen.items()]
    keys += [key for part, option in chosen.items() for key in catalogue.keys_of(part, option)]
    return {key.name: key for key in (*keys, *catalogue.run)}


def grouped_keys(catalogue: Catalogue, values: Mapping[str, Any]) -> dict[str, list[Key]]:
    """The keys of a run in which these are given, by heading: the choices, those of each choice, and of every run."""
    names = catalogue.part_names(values)
    try:
        chosen = _chosen(catalogue, values, names)
    except CloisterError:  # a method of another package says what it comes with only when it is made
        chosen = {part: catalogue.option(part, values) for part in names}
    groups = {"choices": [Key(part, "choice", str, option, PARTS[part].help) for part, option in chosen.items()]}
    own = _defaults(values)  # of the data set
    for part, option in chosen.items():
        keys = catalogue.keys_of(part, option)
        groups[f"{part} {option}"] = [replace(key, default=own.get(key.name, key.default)) for key in keys]
    groups |= {f"every run: {group}": keys for group, keys in in_groups(catalogue.run).items()}
    _refuse_unknown(catalogue, values, {key.name for keys in groups.values() for key in keys}, chosen)
    return {heading: keys for heading, keys in groups.items() if keys}


def _chosen(catalogue: Catalogue, values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Which option each part is: the one asked for, the method's or the data set's own, or the default."""
    defaults = {**_defaults(values), **(method_facts(catalogue, values).defaults if "method" in names else {})}
    return {part: catalogue.name_of(part, values.get(part, defaults.get(part, PARTS[part].default))) for part in names}


def _defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return defaults_of(str(values.get("data", PARTS["data"].default)), values)


def values_of(keys: Iterable[Key], values: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every key that has one: the one given, the data set's own, or the default."""
    defaults, resolved = _defaults(values), {}
    for key in keys:
        if key.name in values:
            resolved[key.name] = converted(key, values[key.name])
        elif key.default is inspect.Parameter.empty:
            meaning = f" ({key.help})" if key.help else ""
            raise CloisterError(
                f"Expected a value for {key.name}{meaning}, found none: {key.owner} needs it, so "
                f"add {key.name} = ... to the config or {key.name}=... to the command."
            )
        elif key.default is not None:
            resolved[key.name] = defaults.get(key.name, key.default)
    return resolved


def _refuse_unknown(
    catalogue: Catalogue, values: Mapping[str, Any], known: set[str], chosen: Mapping[str, str]
) -> None:
    for name in values:
        if name in known or name in chosen:
            continue
        owners = dict.fromkeys(key.owner for key in catalogue.all_keys() if key.name == name)
        part = next(iter(owners), "").partition(" ")[0]
        if part in chosen:
            first, *others = [owner.partition(" ")[2] for owner in owners if owner.startswith(f"{part} ")]
            more = f" and {len(others)} more" if len(others) > 1 else f" and {others[0]}" if others else ""
            choose = f"{part} = {first}" if not others else f"one of these as {part}"
            raise CloisterError(
                f"Expected keys of {part} {chosen[part]}, found {name!r}, which belongs to {part} {first}{more}: "
                f"remove it, or choose {choose}."
            )
        if name in PARTS:
            raise CloisterError(f"Expected no choice but {', '.join(chosen)} here, found {name!r}: remove it.")
        raise CloisterError(f"Expected a known key, found {name!r}: {nearest(name, known | set(chosen))}.")
