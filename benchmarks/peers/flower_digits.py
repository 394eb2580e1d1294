"""Flower 1.41.0's simulation of federated averaging on the digits, every round timed. It runs in the peer's own
environment:

    .peers/flower/bin/python benchmarks/peers/flower_digits.py [--rounds 10] [--cpus-per-client 0.5]

50 nodes, all of them in every round, each with 50 of scikit-learn's digits (drawn with repetition: speed does not
care), 5 steps of batch 10, SGD 0.1, an MLP 64-32-10, FedAvg, no evaluation, no privacy. A round runs from the end of
one aggregation to the end of the next: sampling, messages, training, averaging.

The last line on stdout is one JSON object with the seconds of every round after the warm-up.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterable
from typing import Any

# Before Flower is imported, which reads them then: nothing is to leave the machine, nor to be looked up. And Ray would
# run its workers at a niceness of 15, at the mercy of whatever else is running.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
os.environ.update(RAY_worker_niceness="0")

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS, SAMPLES, BATCH, LR = 50, 50, 10, 0.1

client = ClientApp()


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Every client's images and labels, loaded once in every worker process."""
    images, labels = load_digits(return_X_y=True)
    rows = torch.randint(len(labels), (CLIENTS, SAMPLES), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32)[rows], torch.tensor(labels)[rows]


@functools.cache
def net() -> nn.Sequential:
    """The model, built once in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's round: one epoch in 5 steps."""
    node = int(context.node_config["partition-id"])
    images, labels = digits()[0][node], digits()[1][node]
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in torch.randperm(SAMPLES).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    trained = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(trained), reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when every aggregation ends, and insists that everybody took part."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        self.marks: list[float] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Average, then look at the clock."""
        replies = list(replies)
        assert len(replies) == CLIENTS
        assert not any(reply.has_error() for reply in replies)
        result = super().aggregate_train(server_round, replies)
        self.marks.append(time.perf_counter())
        return result


def simulate(rounds: int, cpus: int, cpus_per_client: float) -> list[float]:
    """The seconds of every round but the first, which starts Ray's workers too."""
    server, strategy = ServerApp(), Timed()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLWR_HOME"] = folder
        run_simulation(
            server,
            client,
            num_supernodes=CLIENTS,
            backend_config={
                "init_args": {"num_cpus": cpus, "log_to_driver": False, "_temp_dir": folder},
                "client_resources": {"num_cpus": cpus_per_client, "num_gpus": 0.0},
            },
        )
    return [after - before for before, after in itertools.pairwise(strategy.marks)]


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description="Flower's simulation of FedAvg on the digits, every round timed.")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them, at least 1")
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)), help="that Ray may use")
    # On two cores, four workers are faster than two by a sixth, and than one by a third; eight gain nothing more.
    parser.add_argument("--cpus-per-client", type=float, default=0.5, help="one worker process for every so many")
    options = parser.parse_args()
    if options.warmup < 1:
        parser.error("Expected --warmup of at least 1: the first round starts Ray's workers.")
    seconds = simulate(options.warmup + options.rounds, options.cpus, options.cpus_per_client)
    work = {
        "clients": CLIENTS,
        "cohort": CLIENTS,
        "steps": SAMPLES // BATCH,
        "batch": BATCH,
        "lr": LR,
        "parameters": sum(p.numel() for p in net().parameters()),
        "cpus": options.cpus,
        "workers": int(options.cpus / options.cpus_per_client),
    }
    report = {"peer": "Flower 1.41.0", "work": work, "seconds": seconds[options.warmup - 1 :]}
    print(json.dumps({**report, "torch": torch.__version__, "device": "cpu"}))


if __name__ == "__main__":
    # As an importable module, not as __main__: Ray then sends the client's code by name, as `flwr run` would have it,
    # and the caches above outlive a message.
    importlib.import_module("flower_digits").main()
