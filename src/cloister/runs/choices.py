"""What a run is made of, as far as words tell: the parts that are chosen by name, and the keys of every choice.

A `Catalogue` holds these words. One is read from the functions themselves (`signatures.introspected`), by which runs
are built; another from a file (`catalogue.stored`), by which help is written and slips are refused, without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.data.paths import expect_there, folders_here, is_path
from cloister.errors import CloisterError, nearest, shown
from cloister.runs import outside
from cloister.runs.keys import Key, refuse_several


@dataclass(frozen=True)
class Part:
    """A part of a run that is chosen by name."""

    help: str
    default: str
    prefix: str = ""
    supplied: tuple[str, ...] = ()
    """Arguments that do not come from keys but from the other parts."""
    may_be_outside: bool = False
    common: tuple[str, ...] = ()
    """What a short list names after the default."""


_COMMON_METHODS = ("pfl", "fedavg", "dp_ftrl", "adaptive_clipping", "adap_dp_fl")
PARTS = {
    "method": Part("what is run", "dp_fedavg", "", ("server",), True, _COMMON_METHODS),
    "data": Part("what is learned from", "digits", "", ("partition",), may_be_outside=True),
    "partition": Part("how samples are dealt to clients", "iid"),
    "model": Part("what is trained", "logistic", "", ("shape", "classes"), True),
    "cohort": Part("who takes part in a round", "poisson"),
    "server": Part("how the server uses the mean update", "sgd", "server_"),
}
TAKEN_BY = {"server": "method", "partition": "data"}
"""Parts that are there only where another one takes them."""


@dataclass(frozen=True)
class MethodFacts:
    """What is known of a method (`methods/registry.py`), without the function that makes it."""

    paper: str
    unit: str
    trust: str
    proven: str
    published: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """One option of a part."""

    keys: tuple[Key, ...]
    takes: tuple[str, ...] = ()
    """Which of the other parts."""
    text: str = ""
    """Of a method: what its module and its function say."""
    facts: MethodFacts | None = None
    """Of a method that was registered."""


@dataclass(frozen=True)
class Catalogue:
    """Every choice of every part, and the keys that belong to none."""

    choices: Mapping[str, Mapping[str, Choice]]
    """By part and name."""
    own_data: tuple[Key, ...]
    """Keys of tables at a path."""
    run: tuple[Key, ...]
    """Keys of every run."""
    plan: tuple[Key, ...]
    """Keys of every plan."""
    plan_help: tuple[Key, ...]
    """Those of them that the help of a plan lists."""
    model_input: tuple[Key, ...]
    """What a model has to know of data that are not given."""

    def choice(self, part: str, option: str) -> Choice:
        """What there is to say of an option that exists; what is not in the catalogue is looked at itself."""
        if option in self.choices[part]:
            return self.choices[part][option]
        from cloister.runs.signatures import described

        return described(part, option)

    def name_of(self, part: str, option: Any) -> str:
        """The name of an option that exists; others are refused."""
        spec, known = PARTS[part], self.choices[part]
        if isinstance(option, list):
            refuse_several(part, option)
        if isinstance(option, str) and option in known:
            return option
        if part == "data" and is_path(option):
            expect_there(option)
            return str(Path(option).absolute())  # so that the run can be resumed from anywhere
        if spec.may_be_outside and outside.is_outside(option):
            outside.load(part, option)
            return str(option)
        more = ", a path of your own data" if part == "data" else ""
        otherwise = "choose one of them" + (f"{more}, or name a package.module:function" if spec.may_be_outside else "")
        beside = folders_here() if part == "data" else []
        close = nearest(str(option), [*known, *beside], otherwise)
        nor = ", which is no folder here either" if part == "data" else ""
        raise CloisterError(f"Expected {part} to be one of {', '.join(known)}, found {shown(option)}{nor}: {close}.")

    def keys_of(self, part: str, option: str) -> list[Key]:
        """The keys of one choice."""
        return list(self.choice(part, option).keys)

    def method_keys(self, name: str) -> list[Key]:
        """The keys of one method; a name that does not exist is refused."""
        return self.keys_of("method", self.name_of("method", name))

    def all_keys(self) -> list[Key]:
        """Every key of every choice, for hints."""
        keys = [Key(name, "choice", str, part.default, part.help) for name, part in PARTS.items()]
        for known in self.choices.values():
            keys += [key for choice in known.values() for key in choice.keys]
        return [*keys, *self.own_data, *self.run]

    def part_names(self, values: Mapping[str, Any], among: Iterable[str] = PARTS) -> tuple[str, ...]:
        """The parts of a run with these keys: some methods bring their server, and some data are dealt already."""
        owners = {
            part: self.choice(owner, self.option(owner, values)) for part, owner in TAKEN_BY.items() if part in among
        }
        return tuple(part for part in among if part not in owners or part in owners[part].takes)

    def option(self, part: str, values: Mapping[str, Any]) -> str:
        """Which option a part is, as far as these keys say it."""
        return self.name_of(part, values.get(part, PARTS[part].default))
