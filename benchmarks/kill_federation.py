"""Servers and nodes killed (kill -9 of real processes) at random instants: nothing is lost, nothing is paid twice.

python benchmarks/kill_federation.py [--server-kills 50] [--node-kills 50] [--seed 0]     writes docs/federation.json

Every federation runs over https with TLS on loopback, in test mode, so that a run that was killed must end with the
very model of one that was not. After each run: every step that the server's history opened is in the server's ledger
(where clients are protected) and in the ledger of every node, once; and the models are the same to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from cloister.deploy.certificates.chain import read_chain
from cloister.deploy.certificates.verification import verify
from cloister.deploy.node import NodeLedger
from cloister.deploy.stored import read_stored
from cloister.privacy.ledger import Ledger
from federations import FORK, Place, one_thread, place

METHODS: dict[str, dict[str, Any]] = {
    "pfl": {"method": "pfl", "clip_norm": 1.0, "lr": 0.5, "batch_size": 16, "epsilon": 4.0, "delta": 1e-3},
    "dp_fedavg": {
        "method": "dp_fedavg",
        "clip_norm": 0.5,
        "lr": 0.5,
        "batch_size": 16,
        "local_steps": 2,
        "epsilon": 8.0,
        "delta": 1e-3,
        "cohort": "poisson",
        "sampling_rate": 0.7,
        "allow_large_delta": True,
    },
    "ddgauss": {
        "method": "ddgauss",
        "clip_norm": 0.5,
        "lr": 0.5,
        "batch_size": 16,
        "local_steps": 2,
        "epsilon": 8.0,
        "delta": 1e-3,
        "cohort": "full",
        "allow_large_delta": True,
    },
}
DOCUMENT = Path(__file__).parent.parent / "docs" / "federation.json"


@dataclass
class Supervisor:
    """Processes of one federation, each started again when it was killed."""

    at: Place
    running: dict[str, BaseProcess] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self, name: str) -> None:
        """The server, or a node."""
        process = FORK.Process(target=_work, args=(self.at, name), daemon=True)
        process.start()
        self.running[name] = process

    def kill(self, name: str) -> bool:
        """kill -9, if it is still at work; then it starts again."""
        process = self.running[name]
        if not process.is_alive() or process.pid is None:
            return False
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            return False
        self.kills["server" if name == "server" else "nodes"] += 1
        self.start(name)
        return True

    def end(self, seconds: float) -> None:
        """Wait for the server; nodes that were killed after their last word have nobody to talk to."""
        until = time.monotonic() + seconds
        while self.running["server"].is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        code = self.running["server"].exitcode
        until = time.monotonic() + 4.0
        for name in self.at.names:
            self.running[name].join(max(0.0, until - time.monotonic()))
            if self.running[name].is_alive():
                self.running[name].kill()
        if code != 0:
            self.running["server"].kill()
            raise SystemExit(f"the server ended with {code}: see {self.at.folder}")


def _work(at: Place, name: str) -> None:
    one_thread()
    log = (at.folder / f"{name}.log").open("a")

    def told(event: Mapping[str, Any]) -> None:
        log.write(json.dumps(dict(event), default=str) + "\n")
        log.flush()

    at.serve(told) if name == "server" else at.join(name, told)


def run(at: Place, who: Sequence[str], kills: int, span: float, chance: random.Random) -> Supervisor:
    """One federation to its end, with kills of these processes at random instants of so many seconds."""
    supervisor = Supervisor(at)
    for name in ("server", *at.names):
        supervisor.start(name)
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 2 * span / (kills + 1)))
        supervisor.kill(chance.choice(list(who)))
    supervisor.end(300.0)
    return supervisor


def expect_sound(at: Place, model: torch.Tensor | None) -> dict[str, Any]:
    """What must hold after any number of kills; what was found."""
    server = at.folder / "server"
    chain = read_chain(server / "history.jsonl")
    opened = [(link["round"], link["what"]) for link in chain.links if link["link"] == "opened"]
    closed = [link for link in chain.links if link["link"] == "closed"]
    assert len(set(opened)) == len(opened) == len(closed), "a step was opened or closed twice"
    assert all(link["released"] for link in closed), "a step was not released though everybody was there"
    ledger = Ledger.open(server / "ledger.jsonl", writable=False)
    charged = Counter((entry.round, entry.what) for entry in ledger.entries)
    if ledger.entries:
        assert charged == Counter(opened), "the server's ledger is not what was opened"
    spent = {}
    for name in at.names:
        own = NodeLedger.open(at.folder / name / "ledger.jsonl", writable=False)
        (name_of_run,) = own.runs
        accounts = own.accounts()
        paid = Counter((e.round, e.what.split("/")[1]) for e in own._ledger.entries if e.unit == "sample")
        assert paid == Counter(opened), f"{name} paid for other steps than were opened, or twice"
        assert accounts["sample"].releases <= len(opened) * 64
        spent[name] = own.spent(1e-3)
        assert name_of_run
    found = read_stored(server / "checkpoint")[1]["w"]
    assert model is None or torch.equal(found, model), "the model is not that of the run that was not killed"
    receipts = [path for name in at.names for path in (at.folder / name).glob("runs/*/receipt.json")]
    compared = verify([server / "certificate.json", *receipts], at.terms)
    assert compared.good, compared.wrong
    return {"steps": len(opened), "epsilon": spent, "model": found}


def campaign(name: str, kills: Mapping[str, int], seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Runs of one method: one that is not killed, and as many others as it takes to kill so often."""
    chance = random.Random(f"{seed} {name}")
    settings: dict[str, Any] = {"nodes": 3, "deadline": 60.0, "min_replies": 3 if name == "ddgauss" else 1}
    values = {**METHODS[name], "rounds": rounds}
    whole = place(folder / name / "whole", values, **settings)
    whole.warm()
    run(whole, ["server"], 0, 0.0, chance)
    times = [json.loads(line)["time"] for line in (whole.folder / "server.log").read_text().splitlines()]
    span = times[-1] - times[0]
    wanted = expect_sound(whole, None)
    done: Counter[str] = Counter()
    runs = 0
    while any(done[kind] < count for kind, count in kills.items()):
        runs += 1
        kind = next(kind for kind, count in kills.items() if done[kind] < count)
        at = place(folder / name / f"killed{runs}", values, **settings)
        at = Place(at.folder, whole.terms, whole.keys, at.tls, at.port, at.rows)
        who = ["server"] if kind == "server" else list(at.names)
        supervisor = run(at, who, min(5, kills[kind] - done[kind]), span, chance)
        found = expect_sound(at, wanted["model"])
        assert found["epsilon"] == wanted["epsilon"], "killed runs cost otherwise"
        done += supervisor.kills
        print(f"{name}: run {runs}, {dict(done)} kills", flush=True)
    return {"runs": runs, "kills": dict(done), "steps": wanted["steps"], "seconds_unkilled": round(span, 2)}


def main() -> None:
    """All methods, with kills shared among them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-kills", type=int, default=50)
    parser.add_argument("--node-kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--folder", type=Path, default=None, help="where runs are kept; by default nowhere")
    parser.add_argument("--no-write", action="store_true", help="leave docs/federation.json as it is")
    chosen = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        found = {}
        for at, name in enumerate(chosen.methods):
            share = {
                "server": _share(chosen.server_kills, at, len(chosen.methods)),
                "nodes": _share(chosen.node_kills, at, len(chosen.methods)),
            }
            found[name] = campaign(name, share, chosen.seed, chosen.rounds, folder)
    total: Counter[str] = Counter()
    for one in found.values():
        total += Counter(one["kills"])
    document = {"kills": dict(total), "methods": found}
    print(json.dumps(document, indent=2))
    if not chosen.no_write:
        known = json.loads(DOCUMENT.read_text()) if DOCUMENT.exists() else {}
        DOCUMENT.write_text(json.dumps({**known, "killed": document}, indent=2) + "\n")


def _share(whole: int, at: int, parts: int) -> int:
    return whole * (at + 1) // parts - whole * at // parts


if __name__ == "__main__":
    main()
