"""trust = "sum": sample-level methods as one DP-SGD step that all clients take together, in every round.

    s_i = sum over client i's secret batch of clip(gradient of a sample at w, C)
    sum = sum over members i of (s_i + share_i),   share_i ~ N(0, z^2 C^2 / (h m)) in every coordinate
    w  <- step(w, sum / samples expected in all batches)

Secure aggregation reveals the sum and nothing else, so that the noise of all m members covers what each of them sends:
1/sqrt(m) of the noise that messages need which are private by themselves, and the accuracy of DP-SGD on all data, where
no server is trusted with any.

What is proven. Neighbors differ in one sample x of one client j, which is added or removed, and everything that was
declared (sizes, rates, who takes part) stays. Let q be the rate at which j's samples join its batches.

1. Whose sum it is. Given all other draws (the other members' batches and those of j's other samples, and what is random
   in the model), the sum without noise is a vector s where x is not in the batch, and s + g where it is, with
   |g| <= C: gradients are taken at w, sample by sample, each is clipped by itself, and nothing is divided by what
   depends on the batch. x joins with probability q, independently of all else.
2. Noise. Shares are independent of all data. The members' number m is public: who is asked follows from the cohort's
   draw, who pays from ledgers, whose charges follow from declarations; no sample has a part in it. Take any h m members
   whose shares nobody else knows, j among them. Their shares add up to N(0, z^2 C^2); all further noise, known or not,
   is the same under both neighbors, and post-processing. So a round is one Gaussian release of noise multiplier z over
   Poisson batches of rate q, for x: `PoissonGaussian(z, q)`, or `Gaussian(z)` for q = 1, charged to j's account. By
   joint convexity the mixture over the other draws costs no more. Each client is priced at its own rate; z is the same
   for all, and is what the neediest of them needs.
3. Who is missing. Fewer than h m shares would be less noise than was paid for: a share is made for the m who are known
   to take part, and a sum of fewer than h m messages is not released (a server would refuse it, and secure
   aggregation must be set up not to open it). A client whose account is exhausted drops out before anything is drawn,
   and the others' shares are made for those who are left: wider ones.
4. Who colludes. Against a server that knows the shares of t members, m - t of them are left, and with them a noise
   multiplier of z sqrt((m - t) / (h m)): all of z up to t = (1 - h) m. The certificate says what that comes to.
5. Later rounds. w follows from sums that were paid for; momentum, weight decay, learning rates and the server's step
   are computed from these alone. Rounds compose adaptively.
6. Masks (Fed-SPA). The active coordinates of a round are drawn by the server, from nobody's data, and are the same for
   all clients. Were they each client's own, a coordinate that few clients hold would have the noise of these few.

Discrete noise (`noise = "discrete"`). Secure aggregation adds up whole numbers modulo 2^b, not real ones. A client
rounds s_i to a grid AFTER summing, so that what x moves is not a rounded gradient of its own; `transforms.to_grid`
bounds it all the same, deterministically, by points C + sqrt(numbers). In 1, given all other draws, the rounded sum is
one of two whole vectors that far apart, between which x's coin chooses, and 2 is then the price of that many discrete
Gaussian shares (`privacy/discrete_gaussian.py`, steps 1 to 6; its v is the difference of the two).

One step a round: a second local step would start from a model that nobody has protected yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

from torch import Tensor

from cloister import mechanisms, transforms
from cloister.client.training import Optimizer
from cloister.core import (
    BindContext,
    Context,
    LocalRule,
    Method,
    Sensitivity,
    ServerOptimizer,
    State,
    Transform,
)
from cloister.errors import CloisterError, expect_one_of, expect_probability, expect_share
from cloister.mechanisms.binomial import Trust
from cloister.methods.weighting import PublicWeights, refuse_weights
from cloister.transforms.grid import FINE

SECURE_SUM = "nobody, or secure sum"
UPDATE_OR_SUM = "every client's update by itself, or the sum"
_RELEASED = (
    "the noisy sum of all clients' clipped gradients in every round, and so every model computed from these sums"
)


@dataclass(frozen=True)
class SumTrust:
    """The keys of methods whose clients may rely on secure aggregation."""

    trust: Annotated[Trust, "message (each is private by itself) or sum (secure aggregation, one step a round)"] = (
        "message"
    )
    noise: Annotated[
        Literal["gaussian", "discrete"], "for trust = sum: real noise, or whole numbers that can be summed securely"
    ] = "gaussian"
    sample_rate: Annotated[
        float | None,
        "for trust = sum: with what probability every sample joins a round, in place of batch_size; 1: all of them",
    ] = None
    honest_fraction: Annotated[
        float, "for trust = sum: share of a round's clients whose noise alone is accounted; the others may collude"
    ] = 1.0
    given_as_keywords: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect_one_of("trust", self.trust, get_args(Trust))
        expect_one_of("noise", self.noise, ("gaussian", "discrete"))
        expect_share("honest_fraction", self.honest_fraction, "1 counts on every client of a round", one=True)
        if self.sample_rate is not None:
            expect_probability("sample_rate", self.sample_rate, "1 takes all samples in every round")
        given = {"noise": self.noise != "gaussian", "sample_rate": self.sample_rate is not None}
        for name, is_given in {**given, "honest_fraction": self.honest_fraction != 1}.items():
            if is_given and not self.in_sum:
                raise CloisterError(
                    f"Expected {name} beside trust = sum alone, found it beside trust = message: leave one of them out."
                )

    @property
    def in_sum(self) -> bool:
        """Whether only sums are private, and not every message."""
        return self.trust == "sum"

    def refuse(self, method: str, weighting: PublicWeights, **given: object) -> None:
        """Refuse what would need more than one step a round, other batches, or other weights, where it was given."""
        refuse_weights(weighting.client_weights, f"{method} with trust = sum", _NO_WEIGHTS)
        for name, value in given.items():
            if value is not None:
                beside = "sample_rate" if name == "batch_size" else "trust = sum"
                raise CloisterError(f"Expected no {name} beside {beside}, found {value!r}: {_WHY_NOT[name]}.")


_NO_WEIGHTS = "a sum over samples counts each of them once, wherever it lies"
_ONE_STEP = "a round is one step of all clients together, so leave it out and give more rounds"
_WHY_NOT = {
    "local_epochs": _ONE_STEP,
    "local_steps": _ONE_STEP,
    "local_epoch": _ONE_STEP,
    "batch_sampling": "batches are drawn by Poisson coins, so leave it out",
    "mode": "the paper's messages are private by themselves, so leave one of them out",
    "bound": "its query is for messages that are private by themselves, so use bound = public or public_median",
    "batch_size": "both say how many samples join, so leave one of them out",
}


def in_one_sum(
    name: str,
    keys: SumTrust,
    rule: LocalRule,
    optimizer: Optimizer,
    server: ServerOptimizer,
    noise_multiplier: float | None,
    part: Transform | None = None,
    rule_of: Callable[[BindContext], LocalRule] | None = None,
    notes: tuple[str, ...] = (),
) -> Method:
    """The method whose clients send clipped sums (`client.clipped_sum`), and whose server steps.

    `part` selects coordinates first; `rule_of` is the rule where it depends on the model or on public data.
    """
    sent = transforms.identity() if part is None else transforms.chain(part)

    def bind(method: Method, context: BindContext) -> Method:
        local = method.local if rule_of is None else rule_of(context)
        method = replace(method, local=local)
        z = method.mechanism.noise_multiplier
        assert z is not None
        known = (*method.notes, *_colluding(keys, z, context.expected))
        if keys.noise == "gaussian":
            return replace(method, notes=known)
        assert local.sample_l2 is not None
        size = context.layout.size if part is None else _kept_by(part, context)
        points = FINE * math.sqrt(size) / local.sample_l2
        on_grid = transforms.to_grid(points)
        return replace(
            method,
            transform=on_grid if part is None else transforms.chain(part, on_grid),
            mechanism=mechanisms.sample_shares(z, keys.honest_fraction, "discrete", context.clients),
            notes=(*known, _wraps(size, on_grid)),
            released=_RELEASED.replace("noisy", "noisy modular"),
        )

    return Method(
        name=name,
        local=rule,
        transform=sent,
        mechanism=mechanisms.sample_shares(noise_multiplier, keys.honest_fraction),
        server=steps_at_server(optimizer, server),
        released=_RELEASED,
        bind=bind,
        notes=notes,
    )


def _kept_by(part: Transform, context: BindContext) -> int:
    """How many numbers a transform leaves of the model's."""
    length = part.sensitivity(Sensitivity(length=context.layout.size), context.layout).length
    assert length is not None
    return length


def steps_at_server(optimizer: Optimizer, server: ServerOptimizer) -> ServerOptimizer:
    """A client's optimizer, whose steps are rounds: what it makes of the mean gradient is the server's mean update.

    Momentum goes on from round to round. All of it is computed from what was released.
    """

    def init(w: Tensor) -> State:
        return {"steps": {**optimizer.init(w), "rounds": w.new_zeros(()).double()}, "server": server.init(w)}

    def update(w: Tensor, mean: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        kept = dict(state["steps"])
        rounds = kept.pop("rounds") + 1
        new = optimizer.step({"w": w, **kept}, -mean, rounds)
        moved = new.pop("w") - w
        w, after = server.update(w, moved, state.get("server", {}), context)
        return w, {"steps": {**new, "rounds": rounds}, "server": after}

    settings = {"step": {"name": optimizer.name, **optimizer.settings}, **server.settings}
    return ServerOptimizer(f"{server.name}, {optimizer.name} steps", settings, init, update, server.takes_updates)


def _colluding(keys: SumTrust, z: float, members: float) -> tuple[str, ...]:
    """What is left of the noise against a server that knows some members' shares."""
    if not z:
        return ()
    some = sorted({max(1, round(part * members)) for part in (0.0, 1 / 3, 1 / 2) if round(part * members) < members})
    left = [min(z, z * math.sqrt((members - t) / (keys.honest_fraction * members))) for t in some]
    several = ", ".join(
        f"{one:.4g} if it knows the shares of {t} of {members:g}" for t, one in zip(some, left, strict=True)
    )
    honest = "all members" if keys.honest_fraction == 1 else f"{keys.honest_fraction:g} of the members"
    return (
        "a server that colludes with members of a round, or members among themselves: they know their own shares of "
        f"the noise, and of the noise multiplier {z:.4g} there is left against them {several}; the epsilon above holds "
        f"as long as {honest} keep theirs secret",
    )


def _wraps(size: int, on_grid: Transform) -> str:
    samples = 2 ** (on_grid.settings["bits"] - 1) / (FINE * math.sqrt(size))
    return (
        f"modular sums: a coordinate wraps around only where clipped gradients of some {samples:,.0f} samples point "
        "along it and nowhere else; that spoils the model, never privacy"
    )
