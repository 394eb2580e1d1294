"""AE-DPFL: clients vote on the labels of public samples, and a student learns from the noisy majority.

Zhu, Yu, Tsai, Pittaluga, Faraki, Chandraker & Wang, "Voting-based approaches for differentially private federated
learning", 2020, after PATE (Papernot et al., ICLR 2017).

    each client trains a model of its own from the round's; e_i(x) = one-hot of its label for public x
    V(x) = sum_i e_i(x) + N(0, s^2);  the student is trained on (x, argmax V(x))

One round is the method; the pool is set aside from the training data, and so disjoint from the test set. No sampling
of clients is needed, and none helps beyond what the cohort's own price says. The data-independent price: a client
casts one vote a query, so Q queries cost Q Gaussian releases of sensitivity 1, which is one of sensitivity sqrt(Q).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import BindContext, Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import ScheduleName
from cloister.errors import CloisterError, expect_count
from cloister.methods.arguments import NoiseMultiplier, NoisePlace
from cloister.methods.registry import register
from cloister.methods.weighting import ClientWeights, refuse_weights
from cloister.server import optimizers


@dataclass(frozen=True)
class _Training(LocalSGD):
    # Over rounds, and one round is the method.
    lr_decay: float = field(default=1.0, init=False)
    lr_schedule: ScheduleName = field(default="constant", init=False)
    lr_warmup: int = field(default=0, init=False)
    lr_final: float = field(default=0.0, init=False)
    lr_rounds: int | None = field(default=None, init=False)


@register("Zhu et al., 2020", "noisy votes on public samples")
@flat_arguments
def ae_dpfl(
    queries: Annotated[int | None, "public samples that are voted on (by default all)"] = None,
    *,
    training: _Training,
    student_lr: Annotated[float, "learning rate of the student"] = 0.1,
    student_epochs: Annotated[int, "the student's passes over the public samples"] = 20,
    student_batch_size: Annotated[int, "public samples in the student's mini-batch"] = 32,
    student_momentum: Annotated[float, "momentum of the student"] = 0.5,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    client_weights: ClientWeights = "equal",
) -> Method:
    """Local teachers, noisy votes on public samples (all, or the first `queries`), and a student.

    Guarantee: all noisy votes together are differentially private for a client and all its data, at the epsilon that
    the run's certificate states. `noise_multiplier` is the noise on a count divided by sqrt(queries).
    """
    refuse_weights(client_weights, "ae_dpfl", _NO_WEIGHTS)
    if queries is not None:
        expect_count("queries", queries, "the number of public samples that are voted on")

    def bind(method: Method, context: BindContext) -> Method:
        if context.public_samples is None or (queries or 1) > len(context.public_samples[1]):
            found = "none" if context.public_samples is None else f"{len(context.public_samples[1])} samples"
            raise CloisterError(
                f"Expected public samples to vote on ({queries or 'some'}), found {found}: set some aside from the "
                "training data, such as public_samples = 500."
            )
        return replace(method, transform=transforms.votes(queries or len(context.public_samples[1])))

    return Method(
        name="ae_dpfl",
        local=client.sgd(training=training),
        transform=transforms.votes(queries or 1),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=optimizers.student(student_lr, student_epochs, student_batch_size, student_momentum),
        released="the noisy votes of the clients on public samples, and so every model trained on them",
        bind=bind,
        trust="the server, which sees every vote and adds the noise" if noise == "central" else None,
        notes=("the public samples: they are protected by nothing, and count as public",),
    )


_NO_WEIGHTS = "a client casts one vote, and a vote has no weight"
