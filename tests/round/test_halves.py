"""A server without data and nodes with their own rows come to the simulator's bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.core import MethodState
from cloister.engine import Loop
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Ledger
from cloister.round import Federation, Offer, Reply, answer, close_round, open_round, run_round
from conftest import toy_model, toy_task
from contract.catalogue import METHODS, SAMPLES, cohorts_for, fed_of

ROUNDS = 3


def books() -> Ledger:
    return Ledger.create(None, "test", {})


class Node:
    """One client: its own rows, its own ledger, and what it keeps from round to round."""

    def __init__(self, fed: Federation, client: int) -> None:
        whole = fed.population
        first, size = int(whole.starts[client]), int(whole.sizes[client])
        mine = slice(first, first + size)
        inputs, labels = whole.inputs[mine].clone(), whole.labels[mine].clone()
        population = Population.of_one(inputs, labels, client, whole.clients)
        self.fed, self.ledger, self.kept = replace(fed, population=population), books(), {}

    def reply(self, offer) -> Reply:
        answered = answer(self.fed, self.ledger, offer, Loop(), self.kept)
        self.kept = answered.client_state
        return answered.reply


def server_of(fed: Federation, task, dtype) -> Federation:
    """The same federation without a sample: its objective was made from zeros of the right shape."""
    zeros = torch.zeros(2, *task.shape, dtype=dtype), torch.zeros(2, dtype=torch.int64)
    objective = objective_of(toy_model(task).to(dtype).train(), task.loss, *zeros, task.classes)
    return replace(fed, population=Population.of_none(*zeros, task.clients), objective=objective)


def deployed(fed: Federation, w: torch.Tensor, task) -> tuple[torch.Tensor, MethodState, list[Node]]:
    server, ledger = server_of(fed, task, w.dtype), books()
    nodes = {client: Node(fed, client) for client in range(task.clients)}
    state = server.method.init(w)
    for number in range(1, ROUNDS + 1):
        offer = open_round(server, ledger, number, w, state)
        replies = [nodes[client].reply(offer) for client in reversed(offer.clients.tolist())]
        w, state = close_round(server, offer, replies, state)
    return w, state, list(nodes.values())


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_server_and_nodes_give_the_bits_of_the_simulator(name, dtype):
    task = toy_task()
    cohort = next(iter(cohorts_for(name).values()))
    fed, start = fed_of(METHODS[name](), cohort, task=task, dtype=dtype)
    w, state, ledger = start, fed.method.init(start), books()
    for number in range(1, ROUNDS + 1):
        w, state, *_ = run_round(fed, ledger, Loop(), number, w, state)
    found, kept, nodes = deployed(fed, start, task)
    assert torch.equal(found, w)
    assert not kept.clients, "what clients keep stays with them"
    for node in nodes:
        for row, (key, table) in enumerate(state.clients.items()):
            (client,) = node.fed.population.here
            if key in node.kept:
                assert torch.equal(node.kept[key][client], table[client]), row


@pytest.mark.parametrize("name", SAMPLES)
def test_who_cannot_pay_sends_nothing(name):
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for("pfl").values())), task=task)
    server, node = server_of(fed, task, w.dtype), Node(fed, 1)
    offer = open_round(server, books(), 1, w, fed.method.init(w))
    node.ledger = Ledger.create(None, "test", {"sample of client 1": Budget(1e-6, 1e-9)})
    with pytest.raises(BudgetExceededError):
        node.reply(offer)
    assert not node.ledger.entries


def opened(name: str = "dp_fedavg"):
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())), task=task)
    fed = replace(fed, cohort=replace(fed.cohort, sample=lambda streams, round, clients: torch.arange(clients)))
    server, state = server_of(fed, task, w.dtype), fed.method.init(w)
    offer = open_round(server, books(), 1, w, state)
    return server, offer, [Node(fed, client).reply(offer) for client in range(3)], state


def spoiled(reply: Reply, message: torch.Tensor) -> Reply:
    return replace(reply, message=message)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: [spoiled(r[0], r[0].message * torch.nan), *r[1:]], "finite"),
        (lambda r: [r[0], spoiled(r[1], r[1].message * 1e6), r[2]], "norm at most"),
        (lambda r: [r[0], spoiled(r[1], r[1].message * 1.001), r[2]], "norm at most"),
        (lambda r: [r[0], spoiled(r[1], r[1].message[:-1]), r[2]], "a message of"),
        (lambda r: [r[0], spoiled(r[1], r[1].message.float()), r[2]], "a message of"),
        (lambda r: [*r, r[1]], "one reply of each"),
        (lambda r: [*r[:2], replace(r[2], clients=torch.tensor([7]))], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], clients=torch.tensor(2))], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], clients=torch.tensor([[2]]))], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], clients=[2])], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], message=r[2].message.to_sparse())], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], message=r[2].message.to("meta"))], "as tensors"),
        (lambda r: [*r[:2], replace(r[2], message=r[2].message.tolist())], "as tensors"),
    ],
    ids=[
        *("NaN", "too long a vector", "a bit too long", "too few numbers", "another type", "twice", "a stranger"),
        *("a number", "a table", "a list", "sparse", "without numbers", "no tensor"),
    ],
)
def test_a_reply_that_is_not_what_it_may_be_is_refused(change, says):
    server, offer, replies, state = opened()
    with pytest.raises(CloisterError, match=says):
        close_round(server, offer, change(replies), state)
    close_round(server, offer, replies, state)


def test_without_a_reply_the_sum_is_smaller_and_the_noise_is_not():
    server, offer, replies, state = opened()
    some, _ = close_round(server, replace(offer, closed=[]), replies[:2], state)
    every, _ = close_round(server, offer, replies, state)
    torch.testing.assert_close((every - some) * server.denominator, replies[2].message)


@pytest.mark.parametrize("name", ["dp_fedavg distributed", "ddgauss"])
def test_noise_of_clients_who_do_not_reply_is_missed(name):
    """Two of three shares are less noise than was accounted."""
    server, offer, replies, state = opened(name)
    with pytest.raises(CloisterError, match="all 3 clients"):
        close_round(server, offer, replies[:2], state)
    close_round(server, offer, replies, state)


def test_a_node_has_its_own_rows_and_no_others():
    task = toy_task(sizes=(4, 5, 6))
    fed, _ = fed_of(METHODS["dp_fedavg"](), task=task)
    node = Node(fed, 1)
    assert len(node.fed.population.labels) == 5
    assert node.fed.population.clients == 3
    with pytest.raises(CloisterError, match="from 0 to 2"):
        Population.of_one(node.fed.population.inputs, node.fed.population.labels, 3, 3)


def test_a_client_that_was_not_asked_is_refused():
    server, offer, replies, state = opened()
    with pytest.raises(CloisterError, match="who were asked"):
        close_round(server, replace(offer, clients=torch.tensor([0, 1]), closed=[]), replies, state)


def test_a_round_is_closed_once():
    """Another sum under the same charge is another release; under the same noise it lays a message bare."""
    server, offer, replies, state = opened()
    close_round(server, offer, replies, state)
    with pytest.raises(CloisterError, match="which was closed"):
        close_round(server, offer, replies[:2], state)


def test_a_message_that_carries_a_graph_leaves_it_behind():
    server, offer, replies, state = opened()
    tainted = replace(replies[0], message=replies[0].message.clone().requires_grad_())
    assert not close_round(server, offer, [tainted, *replies[1:]], state)[0].requires_grad


@pytest.mark.parametrize("clients", [[1, 1, 1], [1, 0], [0, 9], [-1, 1], [[0, 1]], [0.0, 1.0]], ids=str)
@pytest.mark.parametrize("name", ["dp_fedavg", "pfl"])
def test_an_offer_that_names_clients_oddly_is_refused_before_anything_is_paid(name, clients):
    """Found in review: a client that was named three times computed three messages and paid for one."""
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for("pfl").values())), task=task)
    node = Node(fed, 1)
    with pytest.raises(CloisterError, match="rising order, each once"):
        node.reply(Offer(1, torch.tensor(clients), w))
    assert not node.ledger.entries


@pytest.mark.parametrize("name", ["pfl", "adap_dp_fl"])
def test_a_seeded_node_answers_a_round_once(name):
    """Found in review: another model in the same round had the same noise, and cost nothing."""
    task = toy_task(sizes=(4, 5, 6))
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for("pfl").values())), task=task)
    node = Node(fed, 1)
    node.reply(Offer(1, torch.arange(3), w))
    with pytest.raises(CloisterError, match="not answered before"):
        node.reply(Offer(1, torch.arange(3), w + 1))
    node.reply(Offer(2, torch.arange(3), w + 1))
    secure = Node(replace(fed, streams=replace(fed.streams, secure=True)), 1)
    for _ in range(2):
        secure.reply(Offer(1, torch.arange(3), w))
    assert len(secure.ledger.entries) == 2, "new noise, and paid for"


def test_an_offer_leaves_when_the_ledger_is_on_the_disk(tmp_path, monkeypatch):
    fed, w = fed_of(METHODS["dp_fedavg"](), task=toy_task(sizes=(4, 5, 6)))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", "test", {})

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CloisterError, match="reach the disk"):
        open_round(fed, ledger, 1, w, fed.method.init(w))


def test_a_reply_leaves_when_the_ledger_is_on_the_disk(tmp_path, monkeypatch):
    fed, w = fed_of(METHODS["pfl"](), cl.full(), task=toy_task(sizes=(4, 5, 6)))
    offer = open_round(fed, Ledger.create(None, "server", {}), 1, w, fed.method.init(w))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", "test", {})

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CloisterError, match="reach the disk"):
        answer(fed, ledger, offer, Loop(), {})


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_whom_noise_protects_may_be_said_in_a_word(unit):
    """Found in review: a word that equals the unit and is not the unit was charged by neither half."""
    method = METHODS["dp_fedavg" if unit == "client" else "cpsgd"]()
    fed, w = fed_of(method, next(iter(cohorts_for("pfl").values())))
    fed = replace(fed, method=replace(fed.method, mechanism=replace(fed.method.mechanism, unit=unit)))
    ledger = books()
    run_round(fed, ledger, Loop(), 1, w, fed.method.init(w))
    assert ledger.entries
    with pytest.raises(CloisterError, match="unit to be one of client, sample"):
        replace(fed.method.mechanism, unit="anything")
