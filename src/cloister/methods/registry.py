"""What is known of each method: whose it is, whom it protects from whom, what is proven, and what it comes with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloister.core import Method
from cloister.errors import CloisterError

SERVER_OR_SECURE_SUM = "server or secure sum"
NOBODY = "nobody"
NOISY_SUM = "noisy sum of each round"
OWN_STEPS = "every client's update by itself"
EVERY_UPDATE = "every client's update in every round, each private by itself, and so every model computed from them"


@dataclass(frozen=True)
class MethodInfo:
    """A line of `cloister methods`, and the function that makes the method."""

    function: Callable[..., Method]
    paper: str
    unit: str
    trust: str
    proven: str
    published: str = ""
    """What mode = as_published replicates, where there is one."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The cohort and the server that it comes with, where they are not those of other methods."""

    @property
    def year(self) -> int:
        """The paper's; what has none comes last."""
        found = re.findall(r"\b(?:19|20)\d\d\b", self.paper)
        return int(found[-1]) if found else 9999


REGISTRY: dict[str, MethodInfo] = {}
"""By the method's name; where its function is not in this package, by `package.module:function`."""


def register(
    paper: str,
    proven: str,
    trust: str = SERVER_OR_SECURE_SUM,
    published: str = "",
    unit: str = "client",
    cohort: str | None = None,
    server: str | None = None,
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Say what is known of the method that a function makes; `cloister methods` and the config file find it by this."""

    def keep(function: Callable[..., Method]) -> Callable[..., Method]:
        defaults = _defaults(unit, cohort, server)
        name, info = _name(function), MethodInfo(function, paper, unit, trust, proven, published, defaults)
        if name in REGISTRY and REGISTRY[name].function.__module__ != function.__module__:
            places = f"{REGISTRY[name].function.__module__} and {function.__module__}"
            raise CloisterError(f"Expected one method of the name {name}, found it in {places}: rename one of them.")
        REGISTRY[name] = info
        return function

    return keep


def info_of(function: Callable[..., Method], method: Method) -> MethodInfo:
    """What is known of a method; of one that was not registered, what the method itself says."""
    for info in REGISTRY.values():
        if info.function is function:
            return info
    private = method.mechanism.noise_multiplier is None or method.mechanism.noise_multiplier > 0
    trust = method.trust or method.mechanism.trust
    unit = method.unit if private else "nobody"
    return MethodInfo(function, "not registered", unit, trust, method.released, defaults=_defaults(unit, None, None))


def _defaults(unit: str, cohort: str | None, server: str | None) -> dict[str, str]:
    """Who takes part hides no sample, so that methods which protect samples come with full cohorts."""
    cohort = cohort or ("full" if unit == "sample" else None)
    return {part: option for part, option in (("cohort", cohort), ("server", server)) if option}


def _name(function: Callable[..., Method]) -> str:
    ours = function.__module__.startswith(f"{__package__}.")
    return function.__name__ if ours else f"{function.__module__}:{function.__name__}"
