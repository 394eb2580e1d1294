"""What a federation costs beyond training: over https with TLS and keys, on loopback, nodes as processes or threads.

python benchmarks/federation.py [FIGURE...]     writes docs/federation.json

small     3 nodes, logistic regression: the median round
masked    the same under masks (ddgauss)
many      100 nodes as threads, a small model, 10 % of the nodes lost in each round, 20 rounds
large     3 nodes, 11 million parameters: what a round takes beyond its training
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloister.deploy.certificates.chain import read_chain
from cloister.deploy.halves import ServerHalf
from cloister.deploy.wire.messages import Kind, open_message
from federations import FORK, Place, one_thread, place
from kill_federation import DOCUMENT, METHODS

FEDAVG = {**METHODS["dp_fedavg"], "cohort": "full"}
del FEDAVG["sampling_rate"]


def processes(at: Place) -> list[dict[str, Any]]:
    """A federation whose members are processes; the events of its server."""
    nodes = [FORK.Process(target=_join, args=(at, name), daemon=True) for name in at.names]
    for node in nodes:
        node.start()
    events: list[dict[str, Any]] = []
    result = at.serve(lambda event: events.append(dict(event)))
    assert result.state == "finished", result
    for node in nodes:
        node.join(20)
    return events


def _join(at: Place, name: str) -> None:
    one_thread()
    with (at.folder / f"{name}.log").open("w") as log:
        at.join(name, lambda event: log.write(json.dumps(dict(event), default=str) + "\n"))


def trained(at: Place) -> list[float]:
    """How long the slowest node computed, round by round."""
    slowest: dict[int, float] = {}
    for name in at.names:
        for line in (at.folder / f"{name}.log").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "offer answered":
                slowest[event["round"]] = max(slowest.get(event["round"], 0.0), event["seconds"])
    return [slowest[number] for number in sorted(slowest)]


def seconds_of(events: list[dict[str, Any]], skip: int = 2) -> list[float]:
    """How long the rounds took from the opening to the disk; the first ones import and compile."""
    closed = [event for event in events if event["event"] == "step closed" and event["released"]]
    return [float(event["seconds"]) for event in closed][skip:]


def small(folder: Path) -> dict[str, Any]:
    """Three nodes and a logistic regression."""
    return _median(place(folder, {**METHODS["pfl"], "rounds": 32}, nodes=3), bar=0.5)


def masked(folder: Path) -> dict[str, Any]:
    """The same under masks."""
    return _median(place(folder, {**METHODS["ddgauss"], "rounds": 32}, nodes=3), bar=2.0)


def _median(at: Place, bar: float) -> dict[str, Any]:
    at.warm()
    found = seconds_of(processes(at))
    assert found, "no round was released"
    return {
        "rounds": len(found),
        "median_seconds": round(statistics.median(found), 4),
        "slowest_seconds": round(max(found), 4),
        "bar_seconds": bar,
    }


class Lossy:
    """A node's transport that loses all of its replies to some rounds, chosen in advance."""

    def __init__(self, inner: Any, at: Place, lost: set[int]) -> None:
        self.inner, self.register, self.lost = inner, at.terms.register, lost

    def send(self, data: bytes) -> None:
        """Unless the round is one of those."""
        message = open_message(data, self.register).message
        if message.kind is not Kind.REPLY or message.round not in self.lost:
            self.inner.send(data)

    def receive(self, timeout: float) -> bytes | None:
        """As it is."""
        found: bytes | None = self.inner.receive(timeout)
        return found

    def close(self) -> None:
        """As it is."""
        self.inner.close()


def many(folder: Path, nodes: int = 100, rounds: int = 20, deadline: float = 8.0) -> dict[str, Any]:
    """As many nodes as threads, of which a tenth is lost in every round."""
    values = {**FEDAVG, "rounds": rounds}
    at = place(folder, values, nodes=nodes, rows=16, min_replies=nodes * 8 // 10, deadline=deadline)
    at.warm()
    chance, lost = random.Random(0), {name: set[int]() for name in at.names}
    for number in range(1, rounds + 1):
        for name in chance.sample(at.names, nodes // 10):
            lost[name].add(number)
    stop = threading.Event()
    threads = []
    for name in at.names:
        transport = Lossy(at.node_transport(name), at, lost[name])
        work = threading.Thread(target=at.join, args=(name, None, stop), kwargs={"transport": transport}, daemon=True)
        threads.append(work)
    server: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    main = threading.Thread(target=lambda: server.update(found=at.serve(lambda event: events.append(dict(event)))))
    began = time.monotonic()
    main.start()
    for work in threads:
        work.start()
    main.join()
    took = time.monotonic() - began
    stop.set()
    result = server["found"]
    closed = [event for event in events if event["event"] == "step closed"]
    assert result.state == "finished"
    released = sum(bool(event["released"]) for event in closed)
    least = at.terms.federation.fewest
    assert all(event["released"] for event in closed if event["replies"] >= least), "a round with enough was lost"
    price = result.certificate["price"]
    assert price["epsilon"] <= values["epsilon"], "beyond the budget"
    links = read_chain(at.folder / "server" / "history.jsonl").links
    assert sum(link["link"] == "opened" for link in links) == rounds
    return {
        "nodes": nodes,
        "rounds": rounds,
        "released": released,
        "fewest_replies": min(event["replies"] for event in closed),
        "most_replies": max(event["replies"] for event in closed),
        "epsilon": price["epsilon"],
        "budget": values["epsilon"],
        "deadline_seconds": deadline,
        "seconds": round(took, 1),
    }


def large(folder: Path) -> dict[str, Any]:
    """Eleven million parameters: what a round takes beyond what its slowest node computes."""
    values = {**FEDAVG, "model": "mlp", "hidden": 10_600, "rounds": 8, "local_steps": 1}
    at = place(folder, values, nodes=3, rows=16, classes=10, shape=(1024,), deadline=300.0)
    rounds = seconds_of(processes(at), skip=0)
    pairs = list(zip(rounds, trained(at), strict=True))[2:]
    size = ServerHalf.of(at.terms, "size").progress.w.numel()
    return {
        "parameters": size,
        "rounds": len(pairs),
        "round_seconds": round(statistics.median(whole for whole, _ in pairs), 2),
        "training_seconds": round(statistics.median(training for _, training in pairs), 2),
        "overhead_seconds": round(statistics.median(whole - training for whole, training in pairs), 2),
        "bar_seconds": 3.0,
    }


FIGURES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "small": small,
    "masked": masked,
    "many": many,
    "large": large,
}


def main() -> None:
    """The figures that are asked for; the others stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], help="which; all without any")
    parser.add_argument("--no-write", action="store_true", help="leave docs/federation.json as it is")
    chosen = parser.parse_args()
    one_thread()
    for name in chosen.figures or FIGURES:
        load = round(os.getloadavg()[0], 1)
        with tempfile.TemporaryDirectory() as temporary:
            found = FIGURES[name](Path(temporary))
        print(name, json.dumps(found), flush=True)
        if not chosen.no_write:
            known = json.loads(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
            processor = platform.processor() or platform.machine()
            machine = {"processor": processor, "python": platform.python_version(), "load_before": load}
            DOCUMENT.write_text(json.dumps({**known, name: {**found, **machine}}, indent=2) + "\n")


if __name__ == "__main__":
    main()
