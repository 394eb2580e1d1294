"""A server without data and nodes with their own rows come to the simulator's bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.core import MethodState
from cloister.engine import Loop
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.ledger import Budget, Ledger
from cloister.round import Federation, Reply, answer, close_round, open_round, run_round
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
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
        (lambda r: [r[0], spoiled(r[1], r[1].message[:-1]), r[2]], "a message of"),
        (lambda r: [r[0], spoiled(r[1], r[1].message.float()), r[2]], "a message of"),
        (lambda r: [*r, r[1]], "one reply of each"),
        (lambda r: [*r[:2], replace(r[2], clients=torch.tensor([7]))], "who were asked"),
    ],
    ids=["NaN", "too long a vector", "too few numbers", "another type", "twice", "a stranger"],
)
def test_a_reply_that_is_not_what_it_may_be_is_refused(change, says):
    server, offer, replies, state = opened()
    close_round(server, offer, replies, state)
    with pytest.raises(CloisterError, match=says):
        close_round(server, offer, change(replies), state)


def test_without_a_reply_the_sum_is_smaller_and_the_noise_is_not():
    server, offer, replies, state = opened()
    some, _ = close_round(server, offer, replies[:2], state)
    every, _ = close_round(server, offer, replies, state)
    torch.testing.assert_close((every - some) * server.denominator, replies[2].message)


@pytest.mark.parametrize("name", ["dp_fedavg distributed", "ddgauss"])
def test_noise_of_clients_who_do_not_reply_is_missed(name):
    """Two of three shares are less noise than was accounted."""
    server, offer, replies, state = opened(name)
    close_round(server, offer, replies, state)
    with pytest.raises(CloisterError, match="all 3 clients"):
        close_round(server, offer, replies[:2], state)


def test_a_node_has_its_own_rows_and_no_others():
    task = toy_task(sizes=(4, 5, 6))
    fed, _ = fed_of(METHODS["dp_fedavg"](), task=task)
    node = Node(fed, 1)
    assert len(node.fed.population.labels) == 5
    assert node.fed.population.clients == 3
    with pytest.raises(CloisterError, match="from 0 to 2"):
        Population.of_one(node.fed.population.inputs, node.fed.population.labels, 3, 3)
