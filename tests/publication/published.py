"""Two runs, and what was published of them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

import cloister as cl
from cloister.deploy.wire.identity import PrivateKey
from cloister.publication.publish import publish

NAMES = (
    "Universitätsspital Zürich",
    "東京大学病院",
    "<script>alert('x')</script> & Söhne",
    "서울병원",
    "Klinik \u202eA",
)
KEY = PrivateKey.from_seed(bytes(range(32)))


def hospitals() -> cl.data.Task:
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(NAMES)), [30, 60, 40, 25, 50])
    labels = random.integers(0, 3, len(owner))
    inputs = (random.normal(size=(len(owner), 6)) + labels[:, None]).astype("float32")
    return cl.data.from_arrays(inputs, labels, np.array(NAMES)[owner], test=(inputs[:20], labels[:20]), classes=3)


@cache
def place() -> Path:
    """Runs `clients` (simulated), `samples` (secure) and `open` (no privacy), and each published twice."""
    place = Path(tempfile.mkdtemp(prefix="cloister-published-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    usual = {"rounds": 3, "delta": 1e-3, "progress": False}
    fedavg = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=1)
    cl.run(fedavg, hospitals(), epsilon=4.0, allow_large_delta=True, folder=place / "clients", **usual)
    pfl = cl.methods.pfl(clip_norm=1.0, lr=0.2)
    cl.run(pfl, hospitals(), epsilon=[1.0, 2.0, 3.0, 4.0, 0.5], secure_rng=True, folder=place / "samples", **usual)
    cl.run(cl.methods.fedavg(lr=0.1, local_steps=1), hospitals(), folder=place / "open", **usual)
    for name in ("clients", "samples", "open"):
        publish(place / name, place / f"{name}-unsigned")
        publish(place / name, place / f"{name}-signed", KEY)
    return place


def copied(name: str, target: Path) -> Path:
    """A copy of one of them, to be tampered with."""
    return Path(shutil.copytree(place() / name, target))
