"""The CIFAR-10 benchmark of pfl-research 0.6.0, every round timed. It runs in the peer's own environment:

    .peers/pfl/bin/python benchmarks/peers/pfl_cifar.py [--cohort 50] [--rounds 10] [--no-dp] [--device cuda] ...

Settings are those of pfl's own suite: 1000 users x 50 images, one local epoch in batches of 10, SGD 0.1, server SGD
1.0, a CNN of 1,626,442 parameters, L2 clipping to 0.4 and central Gaussian noise. The images are made up, because
speed does not depend on them. pfl gets what makes it fast: all data on the device ahead of time, cached batches, no
metrics printed, no evaluation in the timed rounds (pfl insists on one in round 0, hence a warm-up of at least one
round) and, as its guide to fast simulations advises, `--processes` that share the machine or the GPU.

The last line on stdout is one JSON object with the seconds of every round after the warm-up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

USERS, IMAGES, BATCH, LR, SERVER_LR, CLIP, PARAMETERS = 1000, 50, 10, 0.1, 1.0, 0.4, 1_626_442
NOISE = 0.05  # Any value costs the same; this one keeps the weights finite, so that the arithmetic stays ordinary.


class Net(nn.Module):
    """pfl's `simple_cnn`, less its transposition: the images come channels first, as PyTorch wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(14 * 14 * 64, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.layers(images)
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What pfl minimizes, always with dropout."""
        if not self.training:
            self.train()
        return F.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """What pfl reports about a user, in round 0 alone."""
        from pfl.metrics import Weighted

        self.eval()
        return {"loss": Weighted(F.cross_entropy(self(images), labels, reduction="sum").item(), len(images))}


def train(options: argparse.Namespace) -> list[float]:
    """Run pfl; the seconds of every round, warm-up included."""
    if options.processes > 1:
        # pfl would take NCCL wherever there is CUDA, and NCCL refuses two processes on one GPU.
        join = torch.distributed.init_process_group
        torch.distributed.init_process_group = lambda **given: join(**{**given, "backend": "gloo"})
    # Here and not above: on being imported, pfl joins the processes named in the environment.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    marks: list[float] = []

    def mark() -> None:
        if options.device == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    class Clock(TrainingProcessCallback):
        """Notes when training starts and when every round ends."""

        def on_train_begin(self, *, model: Any) -> Any:
            mark()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            mark()
            return False, Metrics()

    warnings.filterwarnings("ignore", module="pfl")  # It calls what PyTorch has deprecated since.
    torch.manual_seed(0)
    np.random.seed(0)
    images = torch.randint(0, 256, (USERS * IMAGES, 3, 32, 32), dtype=torch.uint8).to(options.device)
    images = images.float().sub_(127.5).div_(73.9)  # the mean and standard deviation of such pixels
    labels = torch.randint(0, 10, (USERS * IMAGES,)).to(options.device)
    users = [Dataset(data) for data in zip(images.split(IMAGES), labels.split(IMAGES), strict=True)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", range(USERS)))

    net = Net()
    assert sum(p.numel() for p in net.parameters()) == PARAMETERS
    if options.compile:
        net.compile()  # pfl's own `use_torch_compile` never reaches `loss`, which calls the module underneath.
    net.to(options.device)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), SERVER_LR))
    privacy = [CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))] if options.dp else []
    rounds = options.warmup + options.rounds
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=options.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [WeightByUser(), *privacy]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=None),
        [Clock()],
        send_metrics_to_platform=False,
    )
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    return [after - before for before, after in itertools.pairwise(marks)]


def launch(processes: int) -> int:
    """Start this script once per process, as pfl's guide has it; the first one reports."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    addresses = ",".join(f"localhost:{port + rank}" for rank in range(processes))
    environment = {**os.environ, "PFL_WORKER_ADDRESSES": addresses}
    workers = [
        subprocess.Popen([sys.executable, *sys.argv], env={**environment, "PFL_WORKER_RANK": str(rank)})
        for rank in range(processes)
    ]
    while any(worker.poll() is None for worker in workers):
        if any(worker.poll() for worker in workers):  # One has failed, and the others would wait for it.
            for worker in workers:
                worker.terminate()
        time.sleep(0.1)
    return max(abs(worker.returncode) for worker in workers)


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description="The CIFAR-10 benchmark of pfl-research, every round timed.")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them, at least 1")
    parser.add_argument("--dp", action=argparse.BooleanOptionalAction, default=True, help="clip and add noise")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=0, help="that share a cohort (0: one a core, or one a GPU)")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch in every process (0: share the cores)")
    parser.add_argument("--compile", action="store_true", help="compile the module with torch.compile")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, help="(default: PyTorch's own choice)")
    options = parser.parse_args()
    if options.warmup < 1:
        parser.error("Expected --warmup of at least 1: pfl evaluates every user of round 0.")
    cores = len(os.sched_getaffinity(0))
    # On two cores, two processes of one thread each take three quarters of the time of one process of two threads.
    options.processes = options.processes or (min(cores, options.cohort) if options.device == "cpu" else 1)
    if options.processes > 1 and "PFL_WORKER_RANK" not in os.environ:
        sys.exit(launch(options.processes))

    os.environ["PFL_PYTORCH_DEVICE"] = options.device
    torch.set_num_threads(options.threads or max(1, cores // options.processes))
    if options.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
    seconds = train(options)[options.warmup :]
    if os.environ.get("PFL_WORKER_RANK", "0") != "0":
        return
    work = {
        "users": USERS,
        "cohort": options.cohort,
        "steps": IMAGES // BATCH,
        "batch": BATCH,
        "lr": LR,
        "server_lr": SERVER_LR,
        "clip_norm": CLIP if options.dp else None,
        "parameters": PARAMETERS,
        "processes": options.processes,
        "threads": torch.get_num_threads(),
        "compile": options.compile,
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32},
    }
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    report = {"peer": "pfl-research 0.6.0", "work": work, "seconds": seconds}
    print(json.dumps({**report, "torch": torch.__version__, "device": device}))


if __name__ == "__main__":
    main()
