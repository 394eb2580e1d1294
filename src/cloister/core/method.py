"""A federated method: one choice for each of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from cloister.core.cohort import Cohort
from cloister.core.context import BindContext
from cloister.core.first_query import FirstQuery
from cloister.core.local_rule import LocalRule
from cloister.core.mechanism import Mechanism
from cloister.core.server_optimizer import ServerOptimizer
from cloister.core.state import MethodState, State
from cloister.core.transform import Transform
from cloister.errors import expect_one_of, expect_type
from cloister.privacy.unit import ProtectedUnit

AverageOver = Literal["expected", "actual"]
RELEASED = "the noisy sum of the clients' updates in every round, and so every model computed from these sums"


@dataclass(frozen=True, repr=False)
class Method:
    """A federated method: one choice for each part but the cohort.

    `bind(method, context)` completes a method whose parts depend on the model, the cohort or public data, once its
    noise is known. `claims` is set where a paper's own choices are replicated: the certificate then shows what the
    paper would claim, by that arithmetic (`privacy/published_claims.py`). `local_only`: nothing is proven of the sum,
    only of single messages. `notes` go into the certificate. `noise_schedule(state of the server optimizer)` is a
    factor on the noise multiplier of the next round, computed from what was released before.

    `public_sizes`: whoever runs it declares that the numbers of the clients' samples are public, and stay as they are
    when a sample is added or removed. `average_over`: where clients are protected, a round's sum is divided by the
    cohort's expected size, a constant, or by its actual size, which is then released and priced (`round/charges.py`).
    """

    name: str
    local: LocalRule
    transform: Transform
    mechanism: Mechanism
    server: ServerOptimizer
    released: str = RELEASED
    bind: Callable[[Method, BindContext], Method] | None = None
    claims: str | None = None
    local_only: bool = False
    notes: tuple[str, ...] = ()
    trust: str | None = None  # who must be trusted, where it is not what the mechanism says
    adjacency: str | None = None  # what the price is about, where it is not what the cohort says
    noise_schedule: Callable[[State], float] | None = None
    public_sizes: bool = False
    average_over: AverageOver = "expected"
    first_query: FirstQuery | None = None
    """What is asked of the data before the first round, and paid for."""

    def __post_init__(self) -> None:
        """Refuse what is no part: a name, a function that was not called, a class of torch's."""
        for part, (kind, example) in _PARTS.items():
            expect_type(part, getattr(self, part), kind, f"a {kind.__name__} such as cloister.{example}")
        expect_one_of("average_over", self.average_over, get_args(AverageOver))

    def __repr__(self) -> str:
        """One line: whom it protects, and by what."""
        noise = self.mechanism.noise_multiplier
        shown = "calibrated" if noise is None else f"multiplier {noise:g}"
        if self.mechanism.place == "nowhere" or noise == 0:
            return f"<Method {self.name}: protects nobody, {self.local.name}, server {self.server.name}>"
        by = f"{self.mechanism.name} noise, {shown}"
        return f"<Method {self.name}: protects a {self.unit}, {by}, {self.local.name}, server {self.server.name}>"

    @property
    def unit(self) -> ProtectedUnit:
        """Whom the method protects: its noise decides."""
        return self.mechanism.unit

    def divided_by(self, expected: float) -> str:
        """What a round's sum over cohorts of an expected size is divided by, in words; nothing where that is the usual:
        a constant or, where samples are protected, how many took part."""
        if self.local.sample_l2 is not None:
            return "the samples that batches of those who took part are expected to have: rates times declared sizes"
        weighting, actual = self.transform.weighting, self.average_over == "actual"
        size = "how many clients were drawn" if actual else f"{expected:g}, constant"
        return weighting.denominator(size) if weighting is not None else size if actual else ""

    def init(self, w: Tensor) -> MethodState:
        """What is kept from round to round, at the start."""
        return MethodState(transform=self.transform.init(w) if self.transform.init else {}, server=self.server.init(w))


_PARTS: dict[str, tuple[type, str]] = {
    "local": (LocalRule, "client.sgd(lr=0.1, local_steps=5)"),
    "transform": (Transform, "transforms.clip_l2(1.0)"),
    "mechanism": (Mechanism, "mechanisms.gaussian()"),
    "server": (ServerOptimizer, "server.sgd()"),
}


def describe(part: LocalRule | Transform | Mechanism | ServerOptimizer | Cohort) -> dict[str, Any]:
    """A part as plain values, for configuration hashes, certificates and people."""
    described: dict[str, Any] = {"name": part.name, **part.settings}
    if isinstance(part, Transform) and part.parts:
        described["parts"] = [describe(one) for one in part.parts]
    return described
