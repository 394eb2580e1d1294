"""What a masked sum costs: processor seconds of all nodes and of the server, from the first key to the sum.

    python benchmarks/secure_aggregation.py [--runs 5] [--json docs/secure-aggregation.json]

All members are in one process, one after the other, on one thread; every content passes through its JSON text as on the
wire, but nothing is sent. The vectors are made before the clock starts, and the sum is compared with that of the plain
vectors. Nodes are lost after keys (nobody misses them), after shares (their masks must be taken away), or after their
vectors (they only do not help to open the sum). Each figure is the median over runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloister.deploy.masking import MaskingNode, MaskingServer, MaskSettings, Session
from cloister.deploy.wire.canonical import canonical
from cloister.deploy.wire.identity import PrivateKey, Register

BAR = 5.0


@dataclass(frozen=True)
class Work:
    """A sum, and how many nodes are lost before they deal, mask and open."""

    nodes: int
    length: int
    bits: int
    lost: tuple[int, int, int] = (0, 0, 0)
    bar: float | None = None


WORKS = (
    Work(3, 2**20, 16),
    Work(20, 2**20, 16),
    Work(20, 2**20, 16, (0, 2, 0), BAR),
    Work(20, 2**20, 16, (2, 2, 0), BAR),
    Work(20, 2**20, 16, (0, 2, 2), BAR),
    Work(20, 2**20, 32, (0, 2, 0)),
    Work(100, 2**10, 16, (0, 10, 0)),
    Work(100, 2**20, 16, (0, 10, 0)),
)


class Clock:
    """Processor seconds by who spent them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"nodes": 0.0, "server": 0.0}
        self.bytes = 0

    def __call__(self, who: str, work: Callable[..., Any], *arguments: Any) -> Any:
        before = time.process_time()
        result = work(*arguments)
        self.seconds[who] += time.process_time() - before
        return result

    def wire(self, content: Any) -> Any:
        """A content as the other side reads it."""
        return json.loads(canonical(content))

    def upload(self, content: Any) -> Any:
        """The same, from a node to the server."""
        self.bytes += len(canonical(content))
        return self.wire(content)


def play(work: Work) -> Clock:
    """One sum."""
    keys = {f"node{number}": PrivateKey.generate() for number in range(work.nodes)}
    register = Register(PrivateKey.generate().public, {name: key.public for name, key in keys.items()})
    settings = MaskSettings(work.length, work.bits)
    session = Session("benchmark", 1, "update", register.names, settings, "offer")
    reach = 2 ** (work.bits - 1)
    vectors = {name: torch.randint(-reach, reach, (work.length,)) for name in keys}
    clock = Clock()
    server: MaskingServer = clock("server", MaskingServer, session, register)
    nodes: dict[str, MaskingNode] = {
        name: clock("nodes", MaskingNode, session, name, key, register) for name, key in keys.items()
    }
    names = list(nodes)
    before, between, after = work.lost
    dealing = names[before:]
    masking = dealing[: len(dealing) - between]
    opening = masking[after:]

    def stage(who: Sequence[str], answer: Callable[[str], Any], take: Callable[..., None]) -> None:
        for name in who:
            clock("server", take, name, clock.upload(clock("nodes", answer, name)))

    stage(names, lambda name: nodes[name].keys(), server.take_keys)
    roster = clock.wire(clock("server", server.roster))
    stage(dealing, lambda name: nodes[name].shares(roster), server.take_shares)
    boxes = clock.wire(clock("server", server.mailboxes))
    for name in masking:
        _, tensors = clock("nodes", nodes[name].masked, boxes[name], vectors[name])
        clock.bytes += tensors["masked"].nbytes
        clock("server", server.take_masked, name, {}, tensors)
    survivors = clock.wire(clock("server", server.survivors))
    stage(opening, lambda name: nodes[name].agree(survivors), server.take_consent)
    consents = clock.wire(clock("server", server.consents))
    stage(opening, lambda name: nodes[name].unmask(consents), server.take_unmask)
    total, _, _ = clock("server", server.finish)
    expect_sum(total, [vectors[name] for name in masking], work.bits)
    return clock


def expect_sum(total: Tensor, vectors: Sequence[Tensor], bits: int) -> None:
    """The sum is that of the plain vectors, to the bit."""
    plain = torch.stack(list(vectors)).sum(dim=0)
    half = 2 ** (bits - 1)
    if not torch.equal(total, torch.remainder(plain + half, 2 * half) - half):
        raise SystemExit("The masked sum is not the sum of the vectors.")


def row(work: Work, runs: int) -> dict[str, Any]:
    """Medians of several sums."""
    clocks = [play(work) for _ in range(runs)]
    nodes, server = (statistics.median(clock.seconds[who] for clock in clocks) for who in ("nodes", "server"))
    total = statistics.median(sum(clock.seconds.values()) for clock in clocks)
    return {
        "nodes": work.nodes,
        "length": work.length,
        "bits": work.bits,
        "lost before shares, before masking, before opening": list(work.lost),
        "all nodes, CPU s": round(nodes, 3),
        "one node, CPU s": round(nodes / work.nodes, 4),
        "server, CPU s": round(server, 3),
        "in all, CPU s": round(total, 3),
        "sent by all nodes, MB": round(clocks[0].bytes / 1e6, 2),
        "bar, CPU s": work.bar,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    play(Work(3, 2**10, 16))
    rows = []
    for work in WORKS:
        rows.append(row(work, options.runs))
        print(json.dumps(rows[-1]), flush=True)
    found = {
        "command": f"benchmarks/secure_aggregation.py --runs {options.runs} --json docs/secure-aggregation.json",
        "software": {name: version(name) for name in ("torch", "numpy", "cryptography")},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "rows": rows,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
