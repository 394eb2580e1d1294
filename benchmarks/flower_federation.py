"""What a round costs over Flower: three nodes as processes, a SuperLink with TLS, SuperNodes with keys, on loopback.

    make .venv-flower/.installed
    .venv-flower/bin/python benchmarks/flower_federation.py --json docs/federation-flower.json

A round is timed by the server from its offer to its close. The first rounds are left out: they wait for imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cloister.deploy.node import join
from cloister.deploy.operation.flower_programs import FlowerNetwork, flower_network
from cloister.deploy.server import serve
from cloister.deploy.transport.flower.settings import flower_node, flower_server
from federations import FORK, Place, one_thread, place

NODES = 3
LEFT_OUT = 2
BARS = {"plain": 8.0, "masked": 25.0}
_COMMON: dict[str, Any] = {"clip_norm": 0.5, "lr": 0.5, "batch_size": 16, "epsilon": 8.0, "delta": 1e-3}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "pfl", **_COMMON},
    "masked": {"method": "ddgauss", **_COMMON, "local_steps": 2, "cohort": "full", "allow_large_delta": True},
}


@dataclass(frozen=True)
class Site:
    """A federation and Flower's programs."""

    place: Place
    network: FlowerNetwork

    def node(self, name: str) -> None:
        """A node, to its end."""
        one_thread()
        at, place = self.network.at(name), self.place
        transport = flower_node(at, name, place.keys[name], place.terms.register.server)
        rows, folder = place.data(name), place.folder / name
        join(place.terms, place.keys[name], transport, rows, folder, None, lambda agreement: True)
        transport.close()

    def seconds(self) -> list[float]:
        """How long each round took."""
        opened: dict[int, float] = {}
        took: list[float] = []

        def listen(event: Mapping[str, Any]) -> None:
            if event["event"] == "step opened":
                opened[event["round"]] = time.monotonic()
            elif event["event"] == "step closed":
                took.append(time.monotonic() - opened[event["round"]])

        nodes = [FORK.Process(target=self.node, args=(name,)) for name in self.place.names]
        for node in nodes:
            node.start()
        place = self.place
        transport = flower_server(self.network.link, place.terms.register, place.keys["server"])
        try:
            serve(place.terms, place.keys["server"], transport, place.folder / "server", on_event=listen)
            for node in nodes:
                node.join(60)
        finally:
            transport.close()
            for node in nodes:
                node.kill()
        return took


def measure(kind: str, rounds: int) -> dict[str, Any]:
    """A federation of one kind, from nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = {**METHODS[kind], "rounds": rounds + LEFT_OUT}
        where = place(folder / "federation", values, NODES, deadline=120.0, test_mode=False)
        (folder / "flower").mkdir()
        where.warm()
        with flower_network(folder / "flower", where.names) as network:
            took = Site(where, network).seconds()[LEFT_OUT:]
    median = statistics.median(took)
    print(f"{kind}: median round {median:.2f} s of {len(took)}, from {min(took):.2f} to {max(took):.2f} s", flush=True)
    return {"median_s": round(median, 2), "least_s": round(min(took), 2), "most_s": round(max(took), 2)}


def main() -> None:
    """Measure, print, and write down if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    one_thread()
    load = os.getloadavg()[0]
    found = {kind: {**measure(kind, given.rounds), "bar_s": bar} for kind, bar in BARS.items()}
    machine = {"cores": os.cpu_count(), "load_before": round(load, 1), "python": platform.python_version()}
    about = {"nodes": NODES, "rounds": given.rounds, "flwr": version("flwr"), "torch": version("torch"), **machine}
    if given.json is not None:
        given.json.write_text(json.dumps({**about, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
