"""The private interface of Flower 1.41 through which an executor works: all that Cloister uses of it is in this file.

Flower's own executors start a process for each message, install the app that was uploaded and run it. This one takes
the message and leaves the app where it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.flower.exchange import Route
from cloister.deploy.transport.flower.records import (
    SUPERLINK_NODE,
    answer_to,
    bytes_of,
    error_of,
    question_to,
    records_of,
)
from cloister.deploy.transport.flower.settings import FlowerAddress

SERVER_APP, CLIENT_APP, AGENT_APP = "flwr-serverapp", "flwr-clientapp", "flwr-agentapp"
_PART_SECONDS, _PART_STEP = 30.0, 0.05


class TaskLost(Unreachable):
    """Flower does not know our task any more: it was restarted, the run was stopped, or its message did not come."""


class Incomplete(Unreachable):
    """A message whose parts do not come: its sender is gone."""


@dataclass(frozen=True)
class Arrival:
    """An answer that came: the identifier of its question, and Flower's list of its parts."""

    question: str
    tree: Any


@dataclass(frozen=True)
class Question:
    """A message to a node: who sent it in which run, and Flower's list of its parts."""

    metadata: Any
    tree: Any


class _Headers:
    """Puts the version and our task's token on each request; Flower's own interceptors end the process on errors."""

    def __init__(self, component: str) -> None:
        self.token = ""
        self._version = dict(RuntimeVersionMetadata.from_local_component(component).as_metadata())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        for name, value in self._version.items():
            context.request.headers[name] = value
        if self.token:
            context.request.headers[TASK_TOKEN_HEADER] = self.token
        response: httpx.Response = call_next(context)
        return response


class Runtime:
    """A SuperLink or a SuperNode, as its executor sees it."""

    def __init__(self, address: FlowerAddress, component: str) -> None:
        self._headers = _Headers(component)
        interceptors: list[object] = [self._headers]
        if address.secret is not None:
            method = "/flwr.proto.Runtime/AcquireTask"
            secret = address.secret.read_bytes()
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={method}))
        self._client = RuntimeHttpClient.from_server_address(
            address.address,
            insecure=address.certificate is None,
            root_certificates=None if address.certificate is None else str(address.certificate),
            interceptors=interceptors,
        )
        self.route = Route(0, 0)

    def acquire(self, *kinds: str) -> bool:
        """Take the next task of these kinds, if there is one."""
        self._headers.token = ""
        answer = self._call("AcquireTask", runtime_pb2.AcquireTaskRequest(supported_task_types=kinds))
        if not answer.HasField("task") or not answer.token:
            return False
        self._headers.token = answer.token
        task = self._call("PullTaskInput", runtime_pb2.PullTaskInputRequest())
        self.route = Route(task.run.run_id, task.context.node_id)
        return True

    def heartbeat(self) -> None:
        """Say that we are there."""
        self._call("SendTaskHeartbeat", runtime_pb2.SendTaskHeartbeatRequest())

    def finish(self, failure: str = "") -> None:
        """The task is done, or refused."""
        status = SubStatus.FAILED if failure else SubStatus.COMPLETED
        self._call("PushTaskOutput", runtime_pb2.PushTaskOutputRequest(sub_status=status, details=failure))
        self._headers.token = ""

    def nodes(self) -> list[int]:
        """The nodes that the SuperLink believes to be there."""
        return [node.node_id for node in self._call("GetNodes", runtime_pb2.GetNodesRequest()).nodes]

    def ask(self, node: int, data: bytes) -> str:
        """Send a question to a node; its identifier."""
        message = make_message(metadata=question_to(self.route.run, node), content=records_of(data))
        return self._push(message, SUPERLINK_NODE)

    def answers(self, questions: Iterable[str]) -> list[Arrival]:
        """The answers that are there, without their contents."""
        answer = self._call("PullMessages", runtime_pb2.PullAppMessagesRequest(message_ids=list(questions)))
        pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [Arrival(message.metadata.reply_to_message_id, tree) for message, tree in pairs]

    def contents(self, arrival: Arrival) -> tuple[bytes | None, str]:
        """What an answer says; no bytes, and why, where Flower or a foreign executor answered."""
        message = self._fetch(arrival.tree, SUPERLINK_NODE)
        return bytes_of(message), error_of(message)

    def question(self) -> Question | None:
        """The message of the task that a node has, without its contents.

        A SuperNode gives a task out before it has put the message there, and then waits for an answer to it, without
        end: whoever has the task must wait for the message, or nothing comes through that SuperNode any more.
        """
        until = time.monotonic() + _PART_SECONDS
        while True:
            answer = self._call("PullMessages", runtime_pb2.PullAppMessagesRequest())
            if answer.messages_list:
                found = message_from_proto(answer.messages_list[0])
                return Question(found.metadata, answer.message_object_trees[0])
            if time.monotonic() > until:
                return None
            time.sleep(_PART_STEP)

    def asked(self, question: Question) -> bytes | None:
        """What a question says; None where it is none of Cloister's, or did not come whole."""
        try:
            return bytes_of(self._fetch(question.tree, self.route.node))
        except Incomplete:
            return None

    def answer(self, question: Question, data: bytes | None) -> None:
        """Answer the message of a node's task; no data: it is refused."""
        if data is None:
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "This executor runs no uploaded app.")
            reply = make_message(metadata=answer_to(question.metadata), error=error)
        else:
            reply = make_message(metadata=answer_to(question.metadata), content=records_of(data))
        self._push(reply, self.route.node)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _push(self, message: Message, node: int) -> str:
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(message), get_all_nested_objects(message)
            request = runtime_pb2.PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(message))], message_object_trees=[tree]
            )
            answer = self._call("PushMessages", request)
            for name in answer.objects_to_push:
                self._call(
                    "PushObject",
                    message_pb2.PushObjectRequest(
                        node=node_pb2.Node(node_id=node),
                        run_id=self.route.run,
                        object_id=name,
                        object_content=objects[name].deflate(),
                        session_id=answer.session_id,
                    ),
                )
        return str(answer.message_ids[0])

    def _fetch(self, tree: Any, node: int) -> Message:
        contents = {one.object_id: self._object(one.object_id, node) for one in iterate_object_tree(tree)}
        where = {"node": node_pb2.Node(node_id=node), "run_id": self.route.run}
        confirm = message_pb2.ConfirmMessageReceivedRequest(message_object_id=tree.object_id, **where)
        self._call("ConfirmMessageReceived", confirm)
        message = inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _object(self, name: str, node: int) -> bytes:
        """A part of a message; it may still be on its way."""
        request = message_pb2.PullObjectRequest(node=node_pb2.Node(node_id=node), run_id=self.route.run, object_id=name)
        until = time.monotonic() + _PART_SECONDS
        while time.monotonic() < until:
            answer = self._call("PullObject", request)
            if answer.object_found and answer.object_available:
                return bytes(answer.object_content)
            if not answer.object_found:
                break
            time.sleep(_PART_STEP)
        raise Incomplete(f"Expected all parts of a message, found that {name[:8]} is missing: it will be sent again.")

    def _call(self, method: str, request: object) -> Any:
        try:
            return getattr(self._client, method)(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            found = f"status {status} from Flower ({error.response.text[:200]})"
            lost = status in (401, 403, 404, 409)
            raise (TaskLost if lost else Unreachable)(f"Expected an answer to {method}, found {found}.") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"Expected Flower's program, found {error!r}: look at its address.") from None
