"""Fuzzed ledgers, checkpoints, stored states and messages: what is not as it was written or signed is refused.

Each target has a good content, a way to read it, and a check of what was read from a harmed one: the same as before,
or, of a file of lines that was cut off, its beginning. Messages are also harmed before they are signed, as by a member.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cloister.deploy.certificates.chain import Chain
from cloister.deploy.masking import MaskingNode
from cloister.deploy.node.ledger import NodeLedger, Paid
from cloister.deploy.stored import read_stored, write_stored
from cloister.deploy.terms import Terms
from cloister.deploy.wire.bodies import pack, unpack
from cloister.deploy.wire.canonical import canonical, digest_of, parse_canonical
from cloister.deploy.wire.identity import PrivateKey, Register
from cloister.deploy.wire.messages import FORMAT, Kind, Message, open_message, seal
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.runs import checkpoint
from cloister.runs.folder import RunFolder
from deploy.halves.federations import PFL, terms_of
from masked_sums import key_of, numbers, play, register_of
from torture.campaign import Campaign, Case, Tally
from torture.damage import changed, hostile, with_other_values
from torture.outcomes import Unexpected, of_command, of_library
from torture.tiny_runs import go

SERVER, A, B = (PrivateKey.from_seed(bytes([i]) * 32) for i in range(3))
REGISTER = Register(SERVER.public, {"a": A.public, "b": B.public})
TENSORS = {"update": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}
MESSAGE = Message(Kind.REPLY, "run", 3, "a", "server", "ab" * 32, {"x": [1, 2.5, "é"], "y": {"z": None}}, TENSORS)


@dataclass(frozen=True)
class Target:
    """What is harmed: a good content, what reads one (its result is compared), and whether a beginning is good too."""

    name: str
    good: bytes
    read: Callable[[bytes], Any]
    same: Callable[[Any, Any], bool] = lambda one, other: bool(one == other)


def _prefix(found: list[Any], whole: list[Any]) -> bool:
    return found == whole[: len(found)]


def _anything(found: Any, whole: Any) -> bool:
    return True


def _file(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def from_bytes(content: bytes) -> Any:
        path.write_bytes(content)
        return read(path)

    return from_bytes


def _ledger_target(folder: Path) -> Target:
    path = folder / "ledger.jsonl"
    ledger = Ledger.create(path, "subject", {"client": Budget(9.0, 1e-3)})
    for number in range(1, 6):
        ledger.charge("client", PoissonGaussian(2.0, 0.3), round=number, repeatable=True)
    ledger.close()

    def entries(file: Path) -> list[Any]:
        found = Ledger.open(file, writable=False)
        found.epsilon("client", 1e-3)
        writing = Ledger.open(file)
        writing.close()
        return list(writing.entries) if writing.entries == found.entries else ["writing changed it"]

    return Target("ledger", path.read_bytes(), _file(path, entries), _prefix)


def _node_ledger_target(folder: Path) -> Target:
    path = folder / "node" / "ledger.jsonl"
    path.parent.mkdir()
    ledger = NodeLedger.open(path, Budget(9.0, 1e-3))
    for number in range(1, 4):
        paid = Paid("run", number, "update", "ab" * 32)
        ledger.charge(paid, ProtectedUnit.CLIENT, Charge(PoissonGaussian(2.0, 0.3)))
    ledger.close()

    def entries(file: Path) -> list[Any]:
        found = NodeLedger.open(file, writable=False)
        found.spent(1e-3)
        return list(found._ledger.entries)

    return Target("node ledger", path.read_bytes(), _file(path, entries), _prefix)


def _checkpoint_target(folder: Path) -> Target:
    go("adaptive_clipping", folder / "run")
    run = RunFolder.open(folder / "run")
    configuration = run.description().configuration_hash
    path = folder / "checkpoint.safetensors"

    def facts(file: Path) -> Any:
        found = checkpoint.read(file, configuration)
        at = found.to("cpu")
        return dict(found.facts), at.round, at.w.tolist(), at.hash

    return Target("checkpoint", (folder / "run" / path.name).read_bytes(), _file(path, facts))


def _stored_target(folder: Path) -> Target:
    path = folder / "stored"
    write_stored(path, {"offer": "x", "round": 3, "state": {}}, TENSORS)

    def content(file: Path) -> Any:
        about, tensors = read_stored(file)
        return about, {name: one.tolist() for name, one in tensors.items()}

    return Target("stored reply", path.read_bytes(), _file(path, content))


def _message_target() -> Target:
    return Target("message", seal(MESSAGE, A), lambda data: open_message(data, REGISTER, 10**6).digest)


def _signed_header(header: bytes) -> Any:
    """A message whose header a member signed, whatever it says."""
    body = pack(TENSORS)
    try:
        values = json.loads(header)
        if isinstance(values, dict):
            values["body"] = {"bytes": len(body), "sha256": digest_of(body)}
            header = canonical(values)
    except (ValueError, RecursionError):
        pass
    start = FORMAT + struct.pack("B", 1) + b"a" + struct.pack(">I", len(header))
    return open_message(start + A.sign(FORMAT + header) + header + body, REGISTER, 10**6).message.round


def _signed_target() -> Target:
    good = seal(MESSAGE, A)
    at = len(FORMAT) + 2
    (size,) = struct.unpack(">I", good[at : at + 4])
    return Target("signed header", good[at + 68 : at + 68 + size], _signed_header, _anything)


def _signed_body(body: bytes) -> Any:
    header = canonical(
        {
            "kind": "reply",
            "run": "run",
            "round": 3,
            "sender": "a",
            "recipient": "server",
            "answers": "",
            "content": {},
            "body": {"bytes": len(body), "sha256": digest_of(body)},
        }
    )
    start = FORMAT + struct.pack("B", 1) + b"a" + struct.pack(">I", len(header))
    return sorted(open_message(start + A.sign(FORMAT + header) + header + body, REGISTER, 10**6).message.tensors)


def _masking_target(stage: str) -> Target:
    """What a lying server tells a node in a masked sum."""
    game = play(5).until(stage)
    told = {"shares": "roster", "masked": "mailboxes", "agree": "survivors", "unmask": "consents"}[stage]
    content = game.told[told]["n1"] if stage == "masked" else game.told[told]
    state, vector = game.nodes["n1"].to_bytes(), numbers(game.session)["n1"]

    def read(data: bytes) -> Any:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(given, dict):
            return None
        node = MaskingNode(game.session, "n1", key_of("n1"), register_of(5), state)
        ask = getattr(node, stage)
        answer = ask(given, vector) if stage == "masked" else ask(given)
        return len(answer)

    return Target(f"masking: {stage}", json.dumps(content).encode(), read, _anything)


def _json(read: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    def of_bytes(data: bytes) -> Any:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return read(given)

    return of_bytes


def _terms_target() -> Target:
    good = json.dumps(terms_of(PFL).to_json()).encode()
    return Target("terms", good, _json(lambda given: Terms.from_json(given).digest), _anything)


def _links_target() -> Target:
    chain = Chain.of([{"link": "run", "run": "r"}, {"link": "opened", "round": 1, "what": "update"}])

    def read(given: Any) -> Any:
        links = given if isinstance(given, list) else []
        return chain.told(0, [link for link in links if isinstance(link, dict)]).head

    return Target("history", json.dumps(chain.links).encode(), _json(read), _anything)


def targets(folder: Path) -> list[Target]:
    """All that is harmed."""
    folder.mkdir(parents=True, exist_ok=True)
    verified = folder / "certificate.json"
    return [
        _ledger_target(folder),
        _node_ledger_target(folder),
        _checkpoint_target(folder),
        _stored_target(folder),
        _message_target(),
        _signed_target(),
        Target("signed body", pack(TENSORS), _signed_body, _anything),
        Target("canonical JSON", canonical({"a": [1, 2.5, None], "b": {"c": "é"}}), parse_canonical, _anything),
        Target("tensors", pack(TENSORS), lambda data: sorted(unpack(data)), _anything),
        *(_masking_target(stage) for stage in ("shares", "masked", "agree", "unmask")),
        _terms_target(),
        _links_target(),
        Target(
            "verify",
            (folder / "run" / "certificate.json").read_bytes(),
            _file(verified, lambda file: of_command("verify", file)[0]),
            _anything,
        ),
    ]


def messages(folder: Path, seed: int) -> Case:
    """One harmed content of one target."""
    known = targets(folder / "targets")
    mark = folder / "executed"
    whole = {target.name: target.read(target.good) for target in known}

    def case(number: int, tally: Tally) -> None:
        chance = random.Random(f"{seed} {number}")
        target = known[number % len(known)]
        kind = chance.random()
        if kind < 0.5:
            data = changed(target.good, chance)
        elif kind < 0.75:
            data = with_other_values(target.good, chance)
        else:
            data = hostile(chance, mark)
        try:
            found = of_library(lambda: target.read(data))
        except Exception as error:
            raise Unexpected(f"{target.name}: {type(error).__name__}: {str(error)[:200]}, of {data[:120]!r}") from error
        refused = isinstance(found, CloisterError)
        tally.counts[f"{target.name}: {'refused' if refused else 'read'}"] += 1
        if not refused and not target.same(found, whole[target.name]):
            raise Unexpected(f"{target.name}: something else was read from {data[:200]!r}")
        if mark.exists():
            mark.unlink()
            raise Unexpected(f"{target.name}: code was executed")

    return case


CAMPAIGN = Campaign("messages", "a fuzzed ledger, checkpoint, stored state or message", 10_000, messages, least=40)
