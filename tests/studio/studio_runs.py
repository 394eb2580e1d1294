"""Small runs to look at, and a client that has the cookie."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi.testclient import TestClient

import cloister as cl
from cloister.studio.access import Access
from cloister.studio.app import Studio, app_of
from conftest import toy_task

PORT = 4321
ADDRESS = f"http://127.0.0.1:{PORT}"
ODD = "a <b>run & \"more\" 'quotes' 100 %"


def train(folder: Path, seed: int = 0, **more):
    """Three rounds of a run that ends."""
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.5, local_steps=2, batch_size=4)
    usual = {"rounds": 3, "epsilon": 4.0, "delta": 1e-2, "engine": "loop", "seed": seed}
    return cl.run(method, toy_task(), cohort=cl.full(), folder=folder, **{**usual, **more})


def all_kinds(root: Path) -> Path:
    """Runs, a study, and folders that are neither: root is the folder, and beside it is what must not be shown."""
    runs = root / "runs"
    train(runs / "one", record=["norms", "clipping", "thresholds"])
    train(runs / ODD, seed=1)
    for seed in (0, 1):
        train(runs / "study" / f"seed-{seed}", seed=seed)
    for name in ("damaged", "old", "torn", "altered"):
        train(runs / name, seed=2)
    (runs / "damaged" / "description.json").write_text('{"half')
    old = json.loads((runs / "old" / "description.json").read_text())
    (runs / "old" / "description.json").write_text(json.dumps({**old, "format": 2}))
    with (runs / "torn" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "epsi')
    lines = (runs / "altered" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (runs / "altered" / "metrics.jsonl").write_bytes(lines[0] + lines[2])
    (runs / "empty").mkdir()
    train(root / "secret")
    (runs / "link").symlink_to(root / "secret")
    train(runs / "linked-file", seed=3)
    (runs / "linked-file" / "metrics.jsonl").unlink()
    (runs / "linked-file" / "metrics.jsonl").symlink_to(root / "secret" / "metrics.jsonl")
    return runs


def stranger(folder: Path) -> tuple[TestClient, Access]:
    """A client that has no token, and the access that it lacks."""
    access = Access(app_of(Studio(folder)), PORT)
    return TestClient(access, ADDRESS, follow_redirects=False), access


def owner(folder: Path) -> TestClient:
    """A client that has exchanged the token for the cookie."""
    client, access = stranger(folder)
    assert client.get("/", params={"token": access.token}).status_code == 303
    return client
