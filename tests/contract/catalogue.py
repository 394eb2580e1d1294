"""Every method, in settings that a toy federation runs in no time; what the contract tests are run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import cloister as cl
from cloister.core import Cohort, Method
from cloister.round.bind import Federation
from conftest import federation, toy_task

CLIP = 0.05  # far below what a toy client sends, so that clipping is always at work

LOCAL: dict[str, Any] = {"lr": 0.5, "batch_size": 4, "local_steps": 3}
USUAL: dict[str, Any] = {"clip_norm": CLIP, **LOCAL, "noise_multiplier": 1.3}
PASSES: dict[str, Any] = {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "local_epochs": 1, "noise_multiplier": 1.3}
FEW: dict[str, Any] = {**USUAL, "local_steps": 2}
WEIGHTS: dict[str, Any] = {"client_weights": "size", "weight_cap": 5.0, "mean_weight": 0.6}
PUBLIC: dict[str, Any] = {"client_weights": "size", "public_sizes": True}
FOLLOWING: dict[str, Any] = {
    "clip_norm": 0.5,
    "lr": 0.1,
    "batch_size": 4,
    "local_steps": 2,
    "noise_decay": 1.0,
    "noise_multiplier": 1.3,
}
SUM: dict[str, Any] = {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "noise_multiplier": 1.3, "trust": "sum"}
WHOLE: dict[str, Any] = {"clip_norm": CLIP, "lr": 0.5, "sample_rate": 1.0, "noise_multiplier": 1.3, "trust": "sum"}
STEADY: dict[str, Any] = {name: value for name, value in FOLLOWING.items() if name != "noise_decay"}


@dataclass(frozen=True)
class Entry:
    """A method under contract: its function, settings for a toy federation, and what is particular about it."""

    make: Callable[..., Method]
    settings: dict[str, Any]
    cohorts: tuple[str, ...] = ()
    """The cohorts over which it is tried; by default the one that it comes with."""
    audited: bool = True
    """Whether `audit.py` can audit a round by itself: not where noise is correlated over rounds, or where nothing is
    proven of the sum. These have tests of their own."""


ALL = ("poisson", "fixed_size", "full", "cyclic")
# By name; a second word tells variations apart.
ENTRIES: dict[str, Entry] = {
    "fedavg": Entry(cl.methods.fedavg, LOCAL, ALL),
    "fedavg epochs": Entry(cl.methods.fedavg, {"lr": 0.5, "batch_size": 4, "local_epochs": 2, "momentum": 0.5}),
    "fedavg weights": Entry(cl.methods.fedavg, {**LOCAL, "client_weights": "size"}),
    "dp_fedavg": Entry(cl.methods.dp_fedavg, USUAL, ALL),
    "dp_fedavg weights": Entry(cl.methods.dp_fedavg, {**USUAL, **WEIGHTS}, ("poisson", "fixed_size")),
    "dp_fedavg epochs": Entry(
        cl.methods.dp_fedavg,
        {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "local_epochs": 2, "momentum": 0.9, "noise_multiplier": 0.6},
    ),
    "dp_fedavg normalize": Entry(cl.methods.dp_fedavg, {**USUAL, "clipping": "normalize"}),
    "dp_fedavg distributed": Entry(cl.methods.dp_fedavg, {**USUAL, "local_steps": 2, "noise": "distributed"}, ALL),
    "dp_fedavg adam": Entry(cl.methods.dp_fedavg, {**USUAL, "local_steps": 2, "server": cl.server.adam()}),
    "dp_fedavg schedule": Entry(
        cl.methods.dp_fedavg,
        {
            **USUAL,
            "lr_schedule": "cosine",
            "lr_warmup": 1,
            "lr_rounds": 4,
            "server": cl.server.sgd(lr_schedule="step", lr_final=0.5, lr_rounds=2),
        },
    ),
    "dp_fedavg as_published": Entry(cl.methods.dp_fedavg, {**USUAL, "mode": "as_published"}),
    "blur": Entry(cl.methods.blur, USUAL),
    "blur as_published": Entry(cl.methods.blur, {**USUAL, "mode": "as_published"}),
    "lus": Entry(cl.methods.lus, USUAL),
    "lus batch": Entry(cl.methods.lus, {**USUAL, "importance": "batch", "ties": "first"}),
    "blur_lus": Entry(cl.methods.blur_lus, {**USUAL, "local_steps": None, "local_epochs": 2}),
    "dp_fedsam": Entry(cl.methods.dp_fedsam, USUAL),
    "dp_fedsam plain": Entry(cl.methods.dp_fedsam, {**USUAL, "sam": "plain"}),
    "dp_fedsam_top_k": Entry(cl.methods.dp_fedsam_top_k, USUAL),
    "dp_fedsam_top_k B": Entry(cl.methods.dp_fedsam_top_k, {**USUAL, "variant": "B"}),
    "dp_fedsam_top_k C": Entry(cl.methods.dp_fedsam_top_k, {**USUAL, "variant": "C"}, ("fixed_size",), audited=False),
    "dp_fedsam_top_k model": Entry(cl.methods.dp_fedsam_top_k, {**USUAL, "scope": "model", "ties": "first"}),
    "dp_fedsam_top_k model B": Entry(cl.methods.dp_fedsam_top_k, {**USUAL, "scope": "model", "variant": "B"}),
    "fed_smp_rand_k": Entry(cl.methods.fed_smp_rand_k, USUAL),
    "fed_smp_rand_k distributed": Entry(cl.methods.fed_smp_rand_k, {**USUAL, "noise": "distributed"}),
    "fed_smp_top_k": Entry(cl.methods.fed_smp_top_k, {**USUAL, "public_steps": 3}),
    "fed_smp_top_k layer": Entry(cl.methods.fed_smp_top_k, {**USUAL, "public_steps": 3, "scope": "layer"}),
    "ddgauss": Entry(cl.methods.ddgauss, USUAL, ("poisson", "full")),
    "ddgauss central": Entry(cl.methods.ddgauss, {**USUAL, "noise": "central"}, ("poisson", "full")),
    "ae_dpfl": Entry(cl.methods.ae_dpfl, {**LOCAL, "noise_multiplier": 1.3, "student_epochs": 2}),
    "adaptive_clipping": Entry(cl.methods.adaptive_clipping, USUAL),
    "adaptive_clipping weights": Entry(cl.methods.adaptive_clipping, {**USUAL, **WEIGHTS}),
    "dp_ftrl": Entry(cl.methods.dp_ftrl, USUAL, audited=False),
    "dp_ftrl tree": Entry(cl.methods.dp_ftrl, {**USUAL, "factorization": "tree"}, audited=False),
    "dp_fedprox": Entry(cl.methods.dp_fedprox, USUAL),
    "pfl": Entry(cl.methods.pfl, PASSES, ("full", "cyclic", "fixed_size")),
    "pfl weights": Entry(cl.methods.pfl, {**PASSES, **PUBLIC}),
    "pfl batch": Entry(
        cl.methods.pfl, {**PASSES, "local_epochs": 2, "local_epoch": "batch", "weight_decay": 0.1, "lr_decay": 0.9}
    ),
    "pfl rounds": Entry(cl.methods.pfl, {**PASSES, "local_epochs": [1, 3, 2]}, ("full",)),
    "pfl exact": Entry(cl.methods.pfl, {**PASSES, "poisson_rate": "exact"}, ("full",)),
    "pfl sum": Entry(cl.methods.pfl, SUM, ("full", "poisson")),
    "pfl sum discrete": Entry(cl.methods.pfl, {**WHOLE, "noise": "discrete", "honest_fraction": 0.7}, ("full",)),
    "fed_spa": Entry(cl.methods.fed_spa, FEW, ("poisson", "fixed_size")),
    "fed_spa coordinate": Entry(cl.methods.fed_spa, {**FEW, "clipping": "coordinate"}),
    "fed_spa quantile": Entry(cl.methods.fed_spa, {**FEW, "bound": "quantile"}),
    "fed_spa median": Entry(cl.methods.fed_spa, {**FEW, "bound": "median"}),
    "fed_spa median coordinate": Entry(cl.methods.fed_spa, {**FEW, "bound": "median", "clipping": "coordinate"}),
    "fed_spa as_published": Entry(cl.methods.fed_spa, {**PASSES, "mode": "as_published"}),
    "dp_fed": Entry(cl.methods.dp_fed, FEW, ("poisson", "fixed_size")),
    "fed_spa sum": Entry(cl.methods.fed_spa, {**SUM, "keep_fraction": 0.75}, ("poisson",)),
    "fed_spa sum discrete": Entry(cl.methods.fed_spa, {**SUM, "noise": "discrete", "clipping": "coordinate"}),
    "dp_fed sum": Entry(cl.methods.dp_fed, {**WHOLE, "sample_rate": 0.6}, ("full",)),
    "adap_dp_fl": Entry(cl.methods.adap_dp_fl, FOLLOWING),
    "adap_dp_fl as_written": Entry(cl.methods.adap_dp_fl, {**FOLLOWING, "threshold": "as_written"}),
    "adap_dp_fl quantile": Entry(cl.methods.adap_dp_fl, {**FOLLOWING, "threshold": "quantile"}),
    "adap_dp_fl fixed": Entry(cl.methods.adap_dp_fl, {**FOLLOWING, "threshold": "fixed"}),
    "adap_dp_fl decay": Entry(cl.methods.adap_dp_fl, {**FOLLOWING, "noise_decay": 0.5}),
    "dp_fl": Entry(cl.methods.dp_fl, STEADY),
    "cpsgd": Entry(cl.methods.cpsgd, {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "noise_multiplier": 20.0}),
    "cpsgd bits": Entry(
        cl.methods.cpsgd, {"clip_norm": CLIP, "levels": 16, "lr": 0.5, "batch_size": 4, "noise_multiplier": 20.0}
    ),
}

METHODS: dict[str, Callable[..., Method]] = {
    name: lambda entry=entry, **more: entry.make(**{**entry.settings, **more}) for name, entry in ENTRIES.items()
}
# Where samples are protected, every message is private by itself: it has audits of its own (`sample_audit.py`), and
# what is said here of one bounded message, and of noise on the sum, is for methods that protect clients.
SAMPLES = {name: make for name, make in METHODS.items() if make().unit == "sample"}
CLIENTS = {name: make for name, make in METHODS.items() if name not in SAMPLES}
PRIVATE = {name: make for name, make in CLIENTS.items() if make().mechanism.noise_multiplier != 0}
AUDITED = {name: make for name, make in PRIVATE.items() if ENTRIES[name].audited}


def _plain(method: Method) -> bool:
    """Whether what is sent is the clipped update of the local rule, and nothing else."""
    transform = method.transform
    return transform.name == "clip_l2" and transform.decode is None and method.bind is None


PLAIN = {name: make for name, make in AUDITED.items() if _plain(make())}

# Where the noise is in the steps, for `sample_audit.py`: momentum, masks and steps of every kind; and Adam in single
# steps, from whose state a gradient can be read. Queries are quiet enough to be seen; batches are empty now and then.
_OWN_STEPS: dict[str, Any] = {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "noise_multiplier": 1.3}
_PART: dict[str, Any] = {**_OWN_STEPS, "keep_fraction": 0.75}
_ADAPTIVE: dict[str, Any] = {**FOLLOWING, "batch_size": 4, "local_steps": 1, "floor": 1e-3, "query_noise": 1.0}
AUDITED_STEPS: dict[str, Method] = {
    "pfl": cl.methods.pfl(**_OWN_STEPS),
    "pfl batch": cl.methods.pfl(**_OWN_STEPS, local_epochs=3, local_epoch="batch", momentum=0.0),
    "pfl passes": cl.methods.pfl(**_OWN_STEPS, local_epochs=2, momentum=0.0),
    "fed_spa": cl.methods.fed_spa(**_PART, local_steps=2),
    "fed_spa coordinate": cl.methods.fed_spa(**_PART, local_steps=1, clipping="coordinate"),
    "fed_spa quantile": cl.methods.fed_spa(**_PART, local_steps=1, bound="quantile", query_noise=1.0),
    "fed_spa median": cl.methods.fed_spa(**_PART, local_steps=1, bound="median", clipping="coordinate"),
    "fed_spa as_published": cl.methods.fed_spa(**_PART, local_steps=3, mode="as_published"),
    "dp_fed": cl.methods.dp_fed(**_OWN_STEPS, local_steps=1),
    "dp_fed median": cl.methods.dp_fed(**_OWN_STEPS, local_steps=1, bound="median"),
    "dp_fed exact": cl.methods.dp_fed(**_OWN_STEPS, local_steps=1, poisson_rate="exact"),
    "dp_fl": cl.methods.dp_fl(**{**STEADY, "local_steps": 1}, poisson_rate="exact"),
    "dp_fed weights": cl.methods.dp_fed(**_OWN_STEPS, **PUBLIC, local_steps=1),
    "adap_dp_fl": cl.methods.adap_dp_fl(**_ADAPTIVE, norm_bound=2.0),
    "adap_dp_fl as_written": cl.methods.adap_dp_fl(**_ADAPTIVE, threshold="as_written"),
    "adap_dp_fl quantile": cl.methods.adap_dp_fl(**_ADAPTIVE, threshold="quantile"),
}

# Where it is in a secure sum, for `sum_audit.py`: unequal rates and equal ones, all samples, a mask, whole numbers.
_IN_SUM: dict[str, Any] = {"clip_norm": CLIP, "noise_multiplier": 1.3, "trust": "sum"}
AUDITED_SUMS: dict[str, Method] = {
    "pfl": cl.methods.pfl(**_IN_SUM, batch_size=4, honest_fraction=0.6),
    "pfl discrete": cl.methods.pfl(**_IN_SUM, batch_size=4, poisson_rate="exact", noise="discrete"),
    "dp_fed": cl.methods.dp_fed(**_IN_SUM, sample_rate=0.3),
    "dp_fed whole": cl.methods.dp_fed(**_IN_SUM, sample_rate=1.0, noise="discrete", honest_fraction=0.5),
    "fed_spa": cl.methods.fed_spa(**_IN_SUM, batch_size=4, keep_fraction=0.75),
}

COHORTS = {"poisson": cl.poisson(0.6), "fixed_size": cl.fixed_size(5), "full": cl.full()}


def cohorts_for(name: str) -> dict[str, Cohort]:
    """The cohorts over which a method is tried."""
    known = {**COHORTS, "cyclic": cl.cyclic(3)}
    if ENTRIES[name].cohorts:
        return {kind: known[kind] for kind in ENTRIES[name].cohorts}
    if name in SAMPLES:  # who takes part is no secret, so every cohort has a price; where two meet, states are kept
        return {"poisson": cl.poisson(0.8)}
    kind = cl.methods.REGISTRY[name.split()[0]].defaults.get("cohort", "poisson")
    return {kind: known[kind]}


PAIRS = [(name, kind) for name in METHODS for kind in cohorts_for(name)]


def quick_pairs(names: Any) -> list[Any]:
    """The pairs of these methods; variations, whose names have a second word, are for `make test-all`."""
    return [
        pytest.param(name, kind, marks=pytest.mark.slow if " " in name else ()) for name, kind in PAIRS if name in names
    ]


def quick(names: Any) -> list[Any]:
    """These methods; variations are for `make test-all`."""
    return [pytest.param(name, marks=pytest.mark.slow if " " in name else ()) for name in names]


def pool() -> tuple[torch.Tensor, torch.Tensor]:
    """Public data like the clients'."""
    people = toy_task(seed=7).population
    return people.inputs[:6], people.labels[:6]


def fed_of(method: Method, cohort: Cohort | None = None, **more: Any) -> tuple[Federation, torch.Tensor]:
    """A toy federation with public data."""
    return federation(method, cohort, public_samples=pool(), **more)
