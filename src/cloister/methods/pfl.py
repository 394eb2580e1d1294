"""PFL: DP-SGD on every client, and the mean of their models.

"Optimal strategies for federated learning maintaining client privacy", arXiv 2501.14453: at a fixed budget of E local
epochs x R rounds, few local epochs and many rounds do best. Its models are in the catalogue: papernot_mnist_cnn and
pfl_mnist_cnn (ReLU or tempered sigmoids), scatter_linear and scatter_cnn on features = "scatter".

The printed algorithm takes one mini-batch an "epoch"; what the authors ran is a full pass (epoch = "pass"). Their
clients' data overlap, which multiplies what a sample loses: partition = "overlapping" has that, and its price.
"""

from __future__ import annotations

from typing import Literal, get_args

from cloister import local, servers, transforms
from cloister.errors import CloisterError, expect_one_of
from cloister.joints import Lots, Method, ServerOptimiser
from cloister.local.optimisers import sgd
from cloister.mechanisms.gaussian import in_steps
from cloister.methods.cards import EVERY_UPDATE, NOBODY, OWN_STEPS, Mode, card, claim

Epoch = Literal["pass", "lot"]


@card(
    "arXiv 2501.14453",
    OWN_STEPS,
    NOBODY,
    published="the same computation; the paper's claim knows nothing of samples that lie with several clients",
    unit="sample",
)
def pfl(
    clip: float = 1.0,
    lr: float = 0.3,
    batch: int = 64,
    epochs: int = 1,
    epoch: Epoch = "pass",
    momentum: float = 0.5,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    lots: Lots = "poisson",
    noise_multiplier: float | None = None,
    mode: Mode = "honest",
    server: ServerOptimiser | None = None,
) -> Method:
    """DP-SGD over local epochs, each a full pass or a single lot; the server averages. Momentum starts anew each round.

    Guarantee: every update of a client is differentially private for any one of its samples, over all rounds, at the
    epsilon that the run's certificate states for it.
    """
    expect_one_of("epoch", epoch, get_args(Epoch), "the authors ran full passes")
    if mode == "as_published" and lots != "poisson":
        raise CloisterError(f"Expected poisson lots, which the authors ran, found {lots}: leave lots out, or mode.")
    steps, passes = (None, epochs) if epoch == "pass" else (epochs, None)
    optimiser = sgd(lr, momentum, weight_decay, lr_decay)
    return Method(
        name="pfl",
        local=local.dp_sgd(local.fixed(clip), optimiser, batch, steps, passes, lots),
        transform=transforms.identity(),
        mechanism=in_steps(noise_multiplier),
        server=server or servers.sgd(),
        unit="sample",
        released=EVERY_UPDATE,
        claims=claim(mode, "poisson_lots"),
    )
