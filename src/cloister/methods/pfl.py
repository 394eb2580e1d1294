"""PFL: DP-SGD on every client, and the mean of their models.

"Optimal strategies for federated learning maintaining client privacy", arXiv 2501.14453: at a fixed budget of E local
epochs x R rounds, few local epochs and many rounds do best. Its models are in the catalogue: papernot_mnist_cnn and
pfl_mnist_cnn (ReLU or tempered sigmoids), scatter_linear and scatter_cnn on features = "scatter", and those of the
authors' code, pfl_scatter_linear and pfl_scatter_cnn.

    g = (sum over the batch of clip(gradient of a sample, C) + N(0, z^2 C^2 I)) / expected size of the batch
    w <- mean over clients of their models after E local epochs

The printed algorithm takes one mini-batch an "epoch"; what the authors ran is a full pass (local_epoch = "pass"). Their
clients' data overlap, which multiplies what a sample loses: partition = "overlapping" has that, and its price.

With trust = "sum" a round is one DP-SGD step of all clients together, whose noise is in their secure sum.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from cloister import client, transforms
from cloister.client.training import BatchSize, LearningRate, LearningRateDecay, Momentum, WeightDecay, sgd_optimizer
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.errors import CloisterError, expect_one_of
from cloister.mechanisms.gaussian import in_steps
from cloister.methods.arguments import BatchSampling, NoiseMultiplier, PoissonRate, SampleClipNorm, Server
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import EVERY_UPDATE, register
from cloister.methods.secure_sum import SECURE_SUM, UPDATE_OR_SUM, SumTrust, in_one_sum
from cloister.methods.weighting import PublicWeights
from cloister.server import optimizers

LocalEpoch = Literal["pass", "batch"]
_BATCH_SIZE = 64


@register(
    "arXiv 2501.14453, 2025",
    UPDATE_OR_SUM,
    SECURE_SUM,
    published="the same computation; the paper's claim knows nothing of samples that lie with several clients",
    unit="sample",
)
@flat_arguments
def pfl(
    clip_norm: SampleClipNorm = 1.0,
    lr: LearningRate = 0.3,
    batch_size: BatchSize = _BATCH_SIZE,
    local_epochs: Annotated[
        int | list[int] | None, "local epochs in a round (by default 1), or a list of one number for each round"
    ] = None,
    local_epoch: Annotated[
        LocalEpoch, "what counts as a local epoch: a full pass of steps, or a single batch"
    ] = "pass",
    momentum: Momentum = 0.5,
    weight_decay: WeightDecay = 0.0,
    lr_decay: LearningRateDecay = 1.0,
    batch_sampling: BatchSampling = "poisson",
    poisson_rate: PoissonRate = "pass",
    noise_multiplier: NoiseMultiplier = None,
    mode: Mode = "sound",
    server: Server = None,
    *,
    schedule: Schedule,
    weighting: PublicWeights,
    secure: SumTrust,
) -> Method:
    """DP-SGD over local epochs, each a full pass or a single batch; the server averages. Momentum starts anew each
    round. Epochs may differ by round, as in the paper's Algorithm 1: `local_epochs = [1, 1, 2, 4]` is for 4 rounds.

    With `trust = "sum"` every client sends the sum of its batch's clipped gradients and a share of the noise, and the
    server takes one step a round, with this lr, momentum (over rounds) and weight decay: the accuracy of DP-SGD on all
    data. `sample_rate` gives every sample of every client the same chance to join.

    Guarantee: every update of a client (or, with trust = "sum", every secure sum of all clients) is differentially
    private for any one of its samples, over all rounds, at the epsilon that the run's certificate states for it.
    """
    expect_one_of("local_epoch", local_epoch, get_args(LocalEpoch), "the authors ran full passes")
    if mode == "as_published" and batch_sampling != "poisson":
        raise CloisterError(
            f"Expected poisson batches, as the authors ran, found {batch_sampling}: leave batch_sampling out, or mode."
        )
    optimizer = sgd_optimizer(lr, momentum, weight_decay, lr_decay, schedule)
    if secure.in_sum:
        secure.refuse(
            "pfl",
            weighting,
            local_epochs=local_epochs,
            local_epoch=None if local_epoch == "pass" else local_epoch,
            batch_sampling=None if batch_sampling == "poisson" else batch_sampling,
            mode=mode if as_published(mode) else None,
            batch_size=None if secure.sample_rate is None or batch_size == _BATCH_SIZE else batch_size,
        )
        rule = client.clipped_sum(clip_norm, batch_size, poisson_rate, secure.sample_rate)
        return in_one_sum("pfl", secure, rule, optimizer, server or optimizers.sgd(), noise_multiplier)
    local_epochs = 1 if local_epochs is None else local_epochs
    steps, passes = (None, local_epochs) if local_epoch == "pass" else (local_epochs, None)
    return Method(
        name="pfl",
        local=client.dp_sgd(
            client.fixed(clip_norm), optimizer, batch_size, steps, passes, batch_sampling, poisson_rate=poisson_rate
        ),
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.sgd(),
        released=EVERY_UPDATE,
        claims=claim(mode, "poisson_batches"),
        notes=weighting.notes,
        public_sizes=weighting.public_sizes,
    )
