"""A server without data and three nodes with their own rows: the two halves of a round, as a deployment calls them.

An `Offer` goes out, a `Reply` comes back, and nothing else. Every node adds its own noise, keeps its own ledger and
stops when its budget is spent. Here all are seeded; a real node has `Streams(0, secure=True)` and a ledger on disk.

    python examples/server_and_nodes.py
"""

import torch
from sklearn.datasets import load_digits

import cloister as cl
from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.engine import Loop
from cloister.privacy.unit import sample_account
from cloister.random.streams import Streams
from cloister.round import Federation, Offer, Reply, answer, bind, close_round, open_round

NODES, DELTA = 3, 1e-4
START = torch.zeros(64 * 10 + 10)  # weights and biases of a linear model, the same for all
method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=64, noise_multiplier=4.0)


def federation(population: Population, seed: int) -> Federation:
    """What a party knows: the method, the shapes, and its own rows."""
    blank = torch.zeros(2, 64), torch.zeros(2, dtype=torch.int64)
    objective = objective_of(torch.nn.Linear(64, 10), "cross_entropy", *blank, classes=10)
    return bind(method, cl.full(), objective, population, Streams(seed), START)


class Node:
    def __init__(self, client: int, inputs: torch.Tensor, labels: torch.Tensor, epsilon: float) -> None:
        self.account, self.state = sample_account(client), {}
        self.fed = federation(Population.of_one(inputs, labels, client, NODES), seed=100 + client)
        self.ledger = cl.Ledger.create(None, f"node {client}", {self.account: cl.Budget(epsilon, DELTA)})

    def reply(self, offer: Offer) -> list[Reply]:
        try:
            found = answer(self.fed, self.ledger, offer, Loop(), self.state)
        except cl.BudgetExceededError:
            return []  # refused before anything was computed
        self.state = found.client_state  # what stays at the node
        return [found.reply]


x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
*rows, test = zip((x / 16).float().split(450), y.split(450), strict=True)
nodes = [Node(i, *rows[i], epsilon) for i, epsilon in enumerate([1.0, 1.3, 4.0])]
server = federation(Population.of_none(*test, NODES), seed=0)
w, state, ledger = START, server.method.init(START), cl.Ledger.create(None, "server", {})
for number in range(1, 16):
    offer = open_round(server, ledger, number, w, state)
    replies = [reply for node in nodes for reply in node.reply(offer)]
    w, state = close_round(server, offer, replies, state)
    accuracy = (server.objective.outputs(w, test[0]).argmax(1) == test[1]).float().mean()
    print(f"round {number:2}: {len(replies)} replies, accuracy {accuracy:.3f}")
for node in nodes:
    print(f"{node.account}: epsilon {node.ledger.epsilon(node.account, DELTA):.3f} at delta {DELTA:g}")
