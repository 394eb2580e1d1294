"""A node of a federation: its loop, its ledger, its stored replies."""

from cloister.deploy.node.agreement import Agreement
from cloister.deploy.node.join import NodeResult, join, name_of
from cloister.deploy.node.ledger import NodeLedger

__all__ = ["Agreement", "NodeLedger", "NodeResult", "join", "name_of"]
