"""The two halves of a federation: what a server computes without data, what a node computes from its own rows."""

from cloister.deploy.halves.costs import PlannedCost, planned_cost
from cloister.deploy.halves.node_half import NodeHalf, NodeState
from cloister.deploy.halves.own_rows import Rows
from cloister.deploy.halves.plain_words import plain_words
from cloister.deploy.halves.progress import Progress
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.halves.steps import OfferBody, ReplyBody, Step

__all__ = [
    "NodeHalf",
    "NodeState",
    "OfferBody",
    "PlannedCost",
    "Progress",
    "ReplyBody",
    "Rows",
    "ServerHalf",
    "Step",
    "plain_words",
    "planned_cost",
]
