"""Lists of values: which keys are swept, and the combinations.

A key is swept by a list. A key whose own value may be a list (epsilon, one for each client; metrics; ...) is swept by a
list of lists, in which [8.0] stands for 8.0 where the key takes a single value, too.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloister.errors import expect
from cloister.runs.choices import PARTS, Catalogue
from cloister.runs.keys import Key, kinds_of
from cloister.runs.resolution import keys_by_name

Values = dict[str, Any]


def choices_in(values: Mapping[str, Any]) -> list[Values]:
    """The values with one choice for every part (model, data, ...): keys depend on which these are."""
    swept = {part: _several(part, values[part]) for part in PARTS if isinstance(values.get(part), list)}
    return [{**values, **chosen} for chosen in product(swept)]


def keys_of_first(catalogue: Catalogue, values: Mapping[str, Any]) -> tuple[dict[str, Key], Values]:
    """The keys of a run with these values, of which each part is one, and the values with the first of every list."""
    own = {key.name: key for key in catalogue.keys_of("method", catalogue.option("method", values))}
    first = _first(own, values)  # a method that was not registered is made, to see what it says of itself
    keys = keys_by_name(catalogue, first)
    return keys, _first(keys, values)


def swept_in(keys: Mapping[str, Key], values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys with several values."""
    found = {name: values_in(key, values[name]) for name, key in keys.items() if name in values}
    return {name: several for name, several in found.items() if several is not None}


def values_in(key: Key, value: Any) -> list[Any] | None:
    """The values that a list asks for; None where it is one value, as the key takes it.

    >>> lr = Key("lr", "method", float, 0.1, "")
    >>> epsilon = Key("epsilon", "run", float | list[float] | None, None, "")
    >>> values_in(lr, 0.1), values_in(lr, [0.1, 1.0])
    (None, [0.1, 1.0])
    >>> values_in(epsilon, [2.0, 8.0]), values_in(epsilon, [[2.0], [8.0], [2.0, 8.0]])
    (None, [2.0, 8.0, [2.0, 8.0]])
    """
    if not isinstance(value, list):
        return None
    kinds = kinds_of(key.kind)
    if not any(typing.get_origin(kind) is list for kind in kinds):
        return _several(key.name, value)
    if not any(isinstance(one, list) for one in value):
        return None
    _several(key.name, value)
    single = any(kind is not types.NoneType and typing.get_origin(kind) is not list for kind in kinds)
    return [one[0] if single and isinstance(one, list) and len(one) == 1 else one for one in value]


def product(several: Mapping[str, Sequence[Any]]) -> Iterator[Values]:
    """Every combination, the last key changing fastest."""
    for chosen in itertools.product(*several.values()):
        yield dict(zip(several, chosen, strict=True))


def _several(name: str, values: list[Any]) -> list[Any]:
    expect(bool(values), f"at least one value for {name}", values, f"write {name} = [...] with some")
    twice = any(one in values[:place] for place, one in enumerate(values))
    expect(not twice, f"different values for {name}", values, "give each once")
    return values


def _first(keys: Mapping[str, Key], values: Mapping[str, Any]) -> Values:
    return {**values, **{name: several[0] for name, several in swept_in(keys, values).items()}}
