"""Bytes as messages of Flower, and back."""

from __future__ import annotations

import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.metadata import Metadata

SUPERLINK_NODE = 1
_RECORD = "cloister"
_PART_BYTES = 2 * 2**20
_TIME_TO_LIVE = 3600.0


def question_to(run: int, node: int) -> Metadata:
    """What Flower must know of a question to a node."""
    return Metadata(
        run_id=run,
        message_id="",
        src_node_id=SUPERLINK_NODE,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=_TIME_TO_LIVE,
        message_type="query",
    )


def answer_to(asked: Metadata) -> Metadata:
    """What Flower must know of an answer."""
    return Metadata(
        run_id=asked.run_id,
        message_id="",
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=time.time(),
        ttl=max(1.0, asked.created_at + asked.ttl - time.time()),
        message_type=asked.message_type,
    )


def records_of(data: bytes) -> RecordDict:
    """Bytes as Flower's records, each of which is one object on its way."""
    parts = [data[at : at + _PART_BYTES] for at in range(0, max(1, len(data)), _PART_BYTES)]
    return RecordDict({f"{_RECORD}-{at}": ConfigRecord({"bytes": part}) for at, part in enumerate(parts)})


def bytes_of(message: Message) -> bytes | None:
    """The bytes in a message of Cloister; None where it is not one."""
    if not message.has_content():
        return None
    records = message.content.config_records
    parts = [records.get(f"{_RECORD}-{at}", {}).get("bytes") for at in range(len(records))]
    return b"".join(parts) if parts and all(isinstance(part, bytes) for part in parts) else None


def error_of(message: Message) -> str:
    """Why there is no answer; empty where there is one."""
    return str(message.error.reason) if message.has_error() else ""
