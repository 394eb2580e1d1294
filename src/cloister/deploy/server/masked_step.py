"""A step whose replies are summed under masks: five stages, each kept on disk before the next one is announced.

A server that is killed in between takes the stored messages again and closes the same stages for the same members, so
that everybody is told what it was told before; a node refuses anything else. So at most one sum of a step is opened,
whoever is killed when. Where a message was lost with the disk, the step is given up: charged, not released.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from cloister.deploy.masking import MaskingServer, MaskSettings, NotOpened, Session
from cloister.deploy.server.open_step import OpenStep
from cloister.deploy.stored import make_private, write_bytes
from cloister.deploy.wire.canonical import JSON, canonical
from cloister.deploy.wire.messages import Kind, Message, Opened
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError
from cloister.runs.files import read_json

if TYPE_CHECKING:
    from cloister.deploy.server.server import Server

_FOLDER = "masked-"
STAGES = ("keys", "shares", "masked", "consents", "unmasking")
_KINDS = {
    "keys": Kind.KEYS,
    "shares": Kind.SHARES,
    "masked": Kind.MASKED,
    "consents": Kind.UNMASK,
    "unmasking": Kind.UNMASK,
}
_SENT = {"keys": Kind.ROSTER, "shares": Kind.MAILBOX, "masked": Kind.SURVIVORS, "consents": Kind.SURVIVORS}


class MaskedStep:
    """One masked sum at the server, with its files."""

    def __init__(self, server: Server, opened: OpenStep, settings: MaskSettings) -> None:
        self.server, self.opened = server, opened
        step = opened.step
        self.folder = make_private(server.folder.path / f"{_FOLDER}{step.round}-{step.what.replace(' ', '-')}")
        names = tuple(server.members.by_client(client).name for client in opened.members)
        session = Session(server.folder.run, step.round, step.what, names, settings, opened.told.head)
        self.masking = MaskingServer(session, server.terms.register)
        self.at = 0
        self.told: dict[str, Mapping[str, JSON]] = {}

    @property
    def stage(self) -> str:
        """What is waited for."""
        return STAGES[self.at]

    def take(self, found: Opened, kept: bool = False) -> None:
        """A node's message of the stage that is open; one of an earlier stage is answered again."""
        message = found.message
        name, stage = message.sender, _stage_of(message)
        if message.answers != self.opened.digests.get(name):
            raise Refused(f"Expected {name} to answer this step's offer, found another: it is left out.")
        if STAGES.index(stage) < self.at:
            self._tell(name)
            return
        take: dict[str, Callable[[], None]] = {
            "keys": lambda: self.masking.take_keys(name, message.content),
            "shares": lambda: self.masking.take_shares(name, message.content),
            "masked": lambda: self.masking.take_masked(name, message.content, message.tensors),
            "consents": lambda: self.masking.take_consent(name, message.content),
            "unmasking": lambda: self.masking.take_unmask(name, message.content),
        }
        take[stage]()
        if stage == "keys" and not kept:
            self.server.members[name].spent.discard(self.opened.step.what)
            self.server.folder.write_answer(name, found.data)
        if not kept:
            write_bytes(make_private(self.folder / stage) / name, found.data, durable=False)

    def waiting(self) -> set[str]:
        """Who may still answer in this stage."""
        members = self.server.members
        gone = {members.by_client(client).name for client in self.opened.out}
        gone |= {member.name for member in members.all if member.state == "refused"}
        return set(self.masking.waiting_for()) - gone

    def close(self, came: list[str] | None = None) -> None:
        """End a stage, and tell its members, once it is on the disk who they are."""
        names = came if came is not None else sorted(self._came())
        write_bytes(self.folder / f"{self.at}.json", canonical({"came": names}))
        if self.stage == "keys":
            content = self.masking.roster()
            self.told = dict.fromkeys(names, content)
        elif self.stage == "shares":
            self.told = dict(self.masking.mailboxes())
        elif self.stage == "masked":
            self.told = dict.fromkeys(names, self.masking.survivors())
        elif self.stage == "consents":
            survivors = list(self.told)
            self.told = dict.fromkeys(survivors, self.masking.consents())
        self.at += 1

    def _came(self) -> list[str]:
        folder = self.folder / self.stage
        return [path.name for path in folder.iterdir() if path.name[0] != "."] if folder.exists() else []

    def announce(self) -> None:
        """Tell members what the last stage came to."""
        for name in self.told:
            self._tell(name)

    def _tell(self, name: str) -> None:
        if self.at and name in self.told:
            kind, post = _SENT[STAGES[self.at - 1]], self.server.post
            answers = self.opened.digests[name]
            post.send(name, post.sealed(name, kind, self.opened.step.round, self.told[name], answers=answers))

    def restore(self) -> None:
        """Take stored messages again, and close the stages that were closed."""
        while self.at < len(STAGES) - 1 and (self.folder / f"{self.at}.json").exists():
            came = list(read_json(self.folder / f"{self.at}.json")["came"])
            self._take_stored(came)
            self.close(came)
        self._take_stored(sorted(self._came()))

    def _take_stored(self, names: list[str]) -> None:
        for name in names:
            path = self.folder / self.stage / name
            found = self.server.post.opened(path.read_bytes(), self.server.events) if path.exists() else None
            if found is None:
                raise NotOpened(f"Expected the stored {self.stage} of {name}, found none: the step is given up.")
            self.take(found, kept=True)


def run_masked(server: Server, opened: OpenStep, settings: MaskSettings) -> bool:
    """The step to its end: whether a sum was opened, and the model moved on."""
    step = opened.step
    try:
        masked = MaskedStep(server, opened, settings)
        server.on_masked = masked.take
        for client in opened.members:
            opened.sealed(server.post, server.members, client, server.terms.federation.deadline)
        if opened.restarted:
            masked.restore()
        if masked.at == 0:
            server.send_offers(opened)
        else:
            masked.announce()
        while masked.stage != "unmasking":
            _wait(server, masked)
            masked.close()
            masked.announce()
        _wait(server, masked)
        found = masked.masking.finish()
    except NotOpened as error:
        server.events.tell("masked sum not opened", "warning", round=step.round, what=step.what, reason=str(error))
        server.half.skip(step)
        return False
    for name, why in found.accused.items():
        server.events.tell("node accused", "warning", node=name, round=step.round, reason=why)
    survivors = tuple(server.members[name].client for name in found.survivors)
    for client in survivors:
        server.members.by_client(client).replies += 1
    server.status.steps[0].replies = len(survivors)
    for client in set(opened.members) - set(survivors) - set(opened.out):
        server.members.by_client(client).missed += 1
    return _close(server, opened, found.total, survivors)


def _close(server: Server, opened: OpenStep, total: Tensor, survivors: tuple[int, ...]) -> bool:
    step = opened.step
    try:
        server.half.close_masked(step, opened.body, total, survivors)
    except CloisterError as error:
        server.events.tell("sum refused", "warning", round=step.round, what=step.what, reason=str(error))
        server.half.skip(step)
        return False
    return True


def _wait(server: Server, masked: MaskedStep) -> None:
    """Until everybody answered who may, or the deadline."""
    seconds = server.terms.federation.deadline
    deadline, interval = time.monotonic() + seconds, max(0.5, seconds / 4)
    again = time.monotonic() + interval
    while masked.waiting() and time.monotonic() < deadline:
        server.listen(min(deadline, again))
        if time.monotonic() > again:
            again = time.monotonic() + interval
            for name in sorted(masked.waiting()):
                if masked.at == 0:
                    server.offer(masked.opened, server.members[name].client)
                else:
                    masked._tell(name)


def _stage_of(message: Message) -> str:
    """Which stage a message belongs to."""
    if message.kind is Kind.UNMASK:
        return "consents" if "signature" in message.content else "unmasking"
    found = next((stage for stage, kind in _KINDS.items() if kind is message.kind), None)
    if found is None:
        raise Refused(f"Expected a message of a masked sum, found {message.kind}: it is left out.")
    return found


def clear_masked(folder: Path) -> None:
    """Steps are closed: what was stored of them is no longer needed."""
    for path in folder.glob(f"{_FOLDER}*"):
        shutil.rmtree(path, ignore_errors=True)
