"""A node's end over Flower: the executor of its SuperNode, which lives as long as the node does.

It loads no app. A task is a question of the server, signed for this run and this node; the answer is what the node
has to say. Tasks of anybody else are refused, whatever app they name.
"""

from __future__ import annotations

import logging
import queue
import threading
import time

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.flower.exchange import Batch, open_batch, seal_batch
from cloister.deploy.transport.flower.line import Line
from cloister.deploy.transport.flower.runtime import AGENT_APP, CLIENT_APP, Runtime, TaskLost
from cloister.deploy.transport.flower.settings import FlowerAddress
from cloister.deploy.wire.identity import SERVER, PrivateKey, PublicKey
from cloister.deploy.wire.refused import Refused, accept_if

_log = logging.getLogger(__name__)

_STEP, _MOST_STEP = 0.1, 0.25
_MOST_HOLD = 10.0
_SENDING = 10


class FlowerNode:
    """A node's end. One thread works for the SuperNode; the others leave and find messages here."""

    def __init__(
        self, address: FlowerAddress, name: str, key: PrivateKey, server: PublicKey, patience: float = 30.0
    ) -> None:
        self._name, self._key, self._server, self._patience = name, key, server, patience
        self._runtime = Runtime(address, "flwr-clientapp")
        self._changed = threading.Condition()
        self._line = Line()
        self._inbox: queue.Queue[bytes | None] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"flower node {name}", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Give a message to the server; returns when the server has it.

        `Unreachable` when the server did not ask for it within our patience; once it is on its way, ten times that.
        """
        start = time.monotonic()
        with self._changed:
            number = self._line.put(data)
            self._changed.notify_all()
            while self._line.holds(number) and not self._closed.is_set():
                patience = self._patience * (_SENDING if self._line.is_on_its_way(number) else 1)
                left = start + patience - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            if not self._line.holds(number):
                return
            self._line.drop(number)
        raise Unreachable(
            f"Expected the server to take a message within {self._patience:g} s, found that it did not: look at the "
            "SuperNode's log, and send it again."
        )

    def receive(self, timeout: float) -> bytes | None:
        """The next message of the server."""
        if self._closed.is_set():
            return None
        try:
            return self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._inbox.put(None)
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout=30)
        self._runtime.close()

    def _work(self) -> None:
        pause = _STEP
        while not self._closed.wait(pause):
            try:
                worked = self._turn()
                pause = _STEP if worked else min(_MOST_STEP, pause * 1.1)
            except TaskLost as error:  # of a run that ended while its question was on the way to the SuperNode
                _log.info("a task of Flower is gone: %s", error)
                pause = _STEP
            except Unreachable as error:
                _log.warning("%s", error)
                pause = min(5.0, 2 * max(pause, 0.25))
            except Exception:  # Flower's insides may fail in their own ways; the server still waits for us
                _log.exception("a task of Flower failed")
                pause = 5.0

    def _turn(self) -> bool:
        """Take a task and answer it, if there is one."""
        if not self._runtime.acquire(CLIENT_APP, AGENT_APP):
            return False
        question = self._runtime.question()
        if question is None:
            self._runtime.finish("Expected a message, found none.")
            return True
        try:
            answer: bytes | None = self._answer(self._runtime.asked(question))
        except Refused as error:
            _log.warning("a task of Flower was refused: %s", error)
            answer = None
        self._runtime.answer(question, answer)
        self._runtime.finish("" if answer else "This executor runs no uploaded app.")
        return True

    def _answer(self, data: bytes | None) -> bytes:
        accept_if(data is not None, "a question of Cloister", "another", "this executor runs no uploaded app")
        opened = open_batch(data or b"", self._runtime.route, self._key_of)
        batch = opened.batch
        accept_if(batch.recipient in ("", self._name), f"a question to {self._name}", batch.recipient, "it is not ours")
        with self._changed:
            self._deliver(batch)
            self._changed.wait_for(lambda: self._line.ready or self._closed.is_set(), min(batch.hold, _MOST_HOLD))
            reply = self._line.batch(self._runtime.route, self._name, SERVER, answers=opened.digest)
        return seal_batch(reply, self._key)[0]

    def _deliver(self, batch: Batch) -> None:
        for data in self._line.accept(batch) if batch.recipient else []:
            self._inbox.put(data)
        self._changed.notify_all()

    def _key_of(self, sender: str) -> PublicKey:
        accept_if(sender == SERVER, "a question of the server", sender, "no other node may ask")
        return self._server
