"""Who takes part in a federation, by which keys, and what counts as enough of them: the table [federation]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cloister.errors import CloisterError, expect, expect_count, expect_one_of, expect_positive, nearest, shown

SERVER = "server"
"""The name under which the server signs."""
Participation = Literal["server", "node"]


@dataclass(frozen=True)
class FederationTerms:
    """The table [federation] of terms.

    `nodes` are names with public keys (as text); their order is that of the client numbers. `min_replies`: a round with
    fewer replies is charged and not released; where clients share the noise, their shares are so wide that those of so
    many are all that is accounted (by default, all of them). `sizes` are the nodes' numbers of rows, where these are
    declared public: some methods and queries need them. `largest_norm` bounds replies that carry noise of their own,
    of which the method knows no bound.
    """

    name: str
    server_key: str
    nodes: Mapping[str, str]
    url: str = ""
    min_replies: int | None = None
    deadline: float = 60.0
    participation: Participation = "server"
    threshold: int | None = None
    test_mode: bool = False
    sizes: tuple[int, ...] | None = None
    largest_norm: float = 1e4
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("name", "server_key", "url"):
            value = getattr(self, name)
            expect(isinstance(value, str), f"{name} of [federation] to be a text", value, "put it in quotes")
        expect(bool(self.name.strip()), "a name for the federation", self.name, "say what people call it")
        nodes = self.nodes
        expect(isinstance(nodes, Mapping) and len(nodes) > 0, "[federation.nodes]", nodes, 'list them: name = "key"')
        for name, key in nodes.items():
            fine = isinstance(name, str) and 0 < len(name) <= 64 and name.isprintable() and name == name.strip()
            expect(fine and name != SERVER, "nodes with short names, none of them server", name, "rename it")
            expect(isinstance(key, str), f"the public key of {name} as a text", key, "see `cloister keys show`")
        object.__setattr__(self, "nodes", dict(nodes))
        object.__setattr__(self, "names", tuple(nodes))
        if self.min_replies is not None:
            expect_count("min_replies", self.min_replies, "fewer replies are not released", most=len(nodes))
        if self.threshold is not None:
            expect_count("threshold", self.threshold, "so many nodes open a sum together", most=len(nodes))
        expect_positive("deadline", self.deadline, "seconds in which replies to a round have to come")
        expect_positive("largest_norm", self.largest_norm, "replies of a larger norm are refused")
        expect_one_of("participation", self.participation, get_args(Participation))
        expect(isinstance(self.test_mode, bool), "test_mode to be true or false", self.test_mode, "choose one")
        object.__setattr__(self, "deadline", float(self.deadline))
        object.__setattr__(self, "largest_norm", float(self.largest_norm))
        self._expect_sizes()

    def _expect_sizes(self) -> None:
        if self.sizes is None:
            return
        sizes = self.sizes
        counts = isinstance(sizes, (list, tuple)) and all(type(size) is int and size > 0 for size in sizes)
        fine = counts and len(sizes) == len(self.nodes)
        expect(fine, f"sizes: the number of rows of each of {len(self.nodes)} nodes", sizes, "give all, in their order")
        object.__setattr__(self, "sizes", tuple(sizes))

    @property
    def clients(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @property
    def fewest(self) -> int:
        """The smallest number of replies whose shares of the noise add up to what is accounted."""
        return self.clients if self.min_replies is None else self.min_replies

    def client_of(self, node: str) -> int:
        """The client number of a node."""
        if node not in self.nodes:
            raise CloisterError(
                f"Expected one of the nodes {', '.join(self.nodes)}, found {shown(node)}: "
                f"{nearest(node, self.nodes, 'ask for terms that list it')}."
            )
        return self.names.index(node)

    def to_json(self) -> dict[str, Any]:
        """Plain values. Nodes are in a list, since their order counts and that of a JSON object may get lost."""
        found: dict[str, Any] = {
            "name": self.name,
            "server_key": self.server_key,
            "nodes": [[name, key] for name, key in self.nodes.items()],
            "url": self.url,
            "min_replies": self.min_replies,
            "deadline": self.deadline,
            "participation": self.participation,
            "threshold": self.threshold,
            "test_mode": self.test_mode,
            "sizes": None if self.sizes is None else list(self.sizes),
            "largest_norm": self.largest_norm,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def of(cls, table: Any) -> FederationTerms:
        """From plain values, as a TOML file or JSON has them; keys that are not known are refused."""
        expect(isinstance(table, Mapping), "a table [federation] in the terms", table, "say who takes part")
        values = dict(table)
        nodes = values.get("nodes")
        if isinstance(nodes, (list, tuple)):
            pairs = all(isinstance(one, (list, tuple)) and len(one) == 2 for one in nodes)
            expect(pairs, "nodes as pairs of name and key", nodes, "give both of each")
            different = len({str(one[0]) for one in nodes}) == len(nodes)
            expect(different, "nodes of different names", [one[0] for one in nodes], "rename one")
            values["nodes"] = {one[0]: one[1] for one in nodes}
        for name in ("name", "server_key", "nodes"):
            expect(name in values, f"{name} in the table [federation]", "none", "add it")
        for name in values:
            known = set(cls.__dataclass_fields__) - {"names"}
            if name not in known:
                raise CloisterError(f"Expected a key of [federation], found {shown(name)}: {nearest(name, known)}.")
        return cls(**values)
