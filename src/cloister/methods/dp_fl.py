"""DP-FL: DP-Adam on every client, with a clip and noise that stay as they are, and the mean of their models.

Zheng, Chen, Long & Su, "Federated f-differential privacy", AISTATS 2021, as Adap DP-FL runs it for its baseline (Fu,
Chen & Han, TrustCom 2022, Figs 3 to 5): a step by Adam in every round, whose state stays with the client.

    g = (sum over the batch of clip(gradient of a sample, C) + N(0, z^2 C^2)) / expected size of the batch

Nothing adapts, so nothing is asked beside the gradient, and no public samples are needed.
"""

from __future__ import annotations

from typing import Annotated

from cloister import client, transforms
from cloister.client.training import BatchSize, LearningRate
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import Schedule
from cloister.mechanisms.gaussian import in_steps
from cloister.methods.arguments import BatchSampling, NoiseMultiplier, PoissonRate, SampleClipNorm, Server
from cloister.methods.registry import EVERY_UPDATE, NOBODY, OWN_STEPS, register
from cloister.methods.weighting import PublicWeights
from cloister.server import optimizers


@register("Zheng, Chen, Long & Su, AISTATS 2021", OWN_STEPS, NOBODY, unit="sample")
@flat_arguments
def dp_fl(
    clip_norm: SampleClipNorm = 1.0,
    lr: LearningRate = 0.002,
    batch_size: BatchSize = 78,
    local_steps: Annotated[int, "local steps in a round"] = 1,
    batch_sampling: BatchSampling = "poisson",
    poisson_rate: PoissonRate = "pass",
    noise_multiplier: NoiseMultiplier = None,
    server: Server = None,
    *,
    schedule: Schedule,
    weighting: PublicWeights,
) -> Method:
    """Adap DP-FL's baseline: Adam with a constant clip and constant noise. `adap_dp_fl` adapts both.

    Guarantee: every update of a client is differentially private for any one of its samples, over all rounds that it
    took part in, at the epsilon that the run's certificate states for it.
    """
    rule = client.dp_sgd(
        client.fixed(clip_norm),
        client.adam(lr, schedule=schedule),
        batch_size,
        local_steps,
        batch_sampling=batch_sampling,
        memory="kept",
        poisson_rate=poisson_rate,
    )
    return Method(
        name="dp_fl",
        local=rule,
        transform=weighting.after(transforms.identity()),
        mechanism=in_steps(noise_multiplier),
        server=server or optimizers.sgd(),
        released=EVERY_UPDATE,
        notes=weighting.notes,
        public_sizes=weighting.public_sizes,
    )
