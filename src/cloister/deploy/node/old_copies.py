"""Old copies of a ledger: what was spent since would be forgotten, so a node that can know it refuses to go on.

It can know by what lies beside the ledger (a stored answer that the ledger has not paid for, a certificate that names
one of its lines), and by what the server gives back when a node greets it: the newest answer that this node has signed
in this run. A server that keeps that to itself, and a copy of the whole folder from before this run, leave no trace.
"""

from __future__ import annotations

from pathlib import Path

from cloister.deploy.node.folder import NodeFolder
from cloister.deploy.node.replies import ReplyStore
from cloister.deploy.wire.identity import Register
from cloister.deploy.wire.messages import Kind, open_header
from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import Corrupted
from cloister.runs.files import read_json

ANSWERS = (Kind.REPLY, Kind.ABSENT, Kind.KEYS)
"""Messages of a node that only follow upon a payment: the first ones that leave it for an offer."""
_REMEDY = (
    "it is an old copy, so restore the newest one; where that is lost, nobody knows what these data have spent, and "
    "they should take part no more"
)


class OldLedger(Corrupted):
    """A ledger that lacks something which it must have had."""


def expect_newest(folder: NodeFolder) -> None:
    """Refuse a ledger that is older than what lies beside it."""
    for path in sorted((folder.path / "runs").glob("*")):
        stored = ReplyStore(path / "replies").about() if (path / "replies").is_dir() else None
        if stored is not None and not folder.ledger.has_paid(path.name, stored["offer"]):
            raise OldLedger(
                f"Expected the ledger in {folder.path} to have paid for the answer to round {stored['round']} in "
                f"{path}, found that it has not: {_REMEDY}."
            )
        head = _certified(path / "certificate.json")
        if head is not None and not folder.ledger.knows(head):
            raise OldLedger(
                f"Expected the ledger in {folder.path} to have the line {head[:12]}, which {path / 'certificate.json'} "
                f"names, found it missing: {_REMEDY}."
            )


def _certified(path: Path) -> str | None:
    """The line of the ledger that a certificate names."""
    if not path.exists():
        return None
    found = read_json(path).get("ledger")
    return str(found["head"]) if isinstance(found, dict) and "head" in found else None


def expect_remembered(folder: NodeFolder, run: str, name: str, register: Register, told: str) -> None:
    """Refuse a ledger that has not paid for an answer which this node has signed: `told` is that answer's header, in
    hexadecimal digits, as the server gave it back; nothing is proven by an empty one."""
    if not told:
        return
    try:
        data = bytes.fromhex(told)
    except ValueError:
        raise Refused("Expected an answer in hexadecimal digits, found another text: it is left out.") from None
    message = open_header(data, register)
    own = message.sender == name and message.run == run and message.kind in ANSWERS
    accept_if(own, f"an answer of {name} in this run", f"{message.kind} of {message.sender}", "leave it out")
    if not folder.ledger.has_paid(run, message.answers):
        raise OldLedger(
            f"Expected the ledger in {folder.path} to have paid for this node's answer in round {message.round}, which "
            f"the server holds with this node's signature, found that it has not: {_REMEDY}."
        )
