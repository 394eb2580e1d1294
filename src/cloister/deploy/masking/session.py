"""What one masked sum is about: both sides make the same value of it from the terms and the offer, and sign its digest.

Nothing here comes from a message of the server's about the masking itself. A server that tells nodes different things
(another model, another cohort, another threshold) has them in different sessions, whose keys do not fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cloister.deploy.wire.canonical import canonical, digest_of
from cloister.deploy.wire.identity import Register
from cloister.errors import CloisterError, expect, expect_count

PROTOCOL = "cloister masking 1"
MOST_NODES = 100
"""Every node shares a mask with every other one: beyond this many, costs grow that nobody has measured."""
MOST_BITS = 64


class NotOpened(CloisterError):
    """A masked sum stays closed: too few answered, or shares were wrong. What was charged stays charged."""

    def __init__(self, sentence: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.names = names
        """The nodes that it is due to, as far as they are known."""


@dataclass(frozen=True)
class MaskSettings:
    """How numbers are summed under masks; follows from the terms, on both sides."""

    length: int
    bits: int
    """The sum is known modulo 2^bits (`modulus_bits`, where the method itself is not modular)."""
    threshold: int = 0
    """As the terms state it; 0: more than two thirds of those who are asked."""
    least_survivors: int = 2
    """How many messages the accounted noise takes."""

    def __post_init__(self) -> None:
        expect_count("length", self.length, "how many numbers are summed", most=2**36)
        expect_count("bits", self.bits, "see modulus_bits", most=MOST_BITS)
        expect_count("threshold", self.threshold, "0 takes more than two thirds", least=0)
        expect_count("least_survivors", self.least_survivors, "a sum of one message is that message", least=2)


def threshold_for(nodes: int, least_survivors: int, asked: int | None = None, wanted: int = 0) -> int:
    """How many members must help to open a sum: the one rule, for the server and for nodes.

    It is the terms' number (`wanted`), or more than two thirds of those who are asked, and in any case more than half
    of them: then no two groups that are large enough are without a common member. `least_survivors` is a limit of its
    own (`Session.needed`), and must be within reach.

    >>> [threshold_for(n, 2) for n in (2, 3, 4, 10, 20, 100)]
    [2, 3, 3, 7, 14, 67]
    >>> threshold_for(3, 2, wanted=2), threshold_for(20, 2, asked=10, wanted=2)
    (2, 6)
    """
    members = nodes if asked is None else asked
    expect(2 <= members <= nodes, f"2 to {nodes} nodes to be asked", members, "a masked sum needs two of the register")
    expect(members <= MOST_NODES, f"at most {MOST_NODES} nodes under masks", members, "ask a smaller cohort")
    expect(
        2 <= least_survivors <= members,
        f"least_survivors from 2 to the {members} who are asked",
        least_survivors,
        "ask more nodes, or account for noise of fewer",
    )
    threshold = max(wanted or 2 * members // 3 + 1, members // 2 + 1)
    remedy = "ask more nodes, or state a smaller threshold in the terms"
    expect(threshold <= members, f"a threshold within the {members} who are asked", threshold, remedy)
    return threshold


def modulus_bits(largest: int, asked: int) -> int:
    """Bits in which the sum of numbers from -largest to largest, of all who are asked, cannot wrap around.

    >>> modulus_bits(127, 1), modulus_bits(128, 1), modulus_bits(2**31 - 1, 4)
    (8, 9, 34)
    """
    expect_count("asked", asked, "how many nodes send numbers")
    expect(largest >= 0, "largest >= 0", largest, "give the largest absolute value")
    bits = (asked * largest).bit_length() + 1
    expect(bits <= MOST_BITS, f"sums of at most {MOST_BITS} bits", bits, "use a coarser grid, or ask fewer nodes")
    return bits


@dataclass(frozen=True)
class Session:
    """One masked sum: of which run, round and step, among whom, under which settings, about which offer."""

    run: str
    round: int
    step: str
    """What is summed in the round: the update, or a query's name."""
    asked: tuple[str, ...]
    """In the order of the register. A member's point for shares is its position here, counted from 1."""
    settings: MaskSettings
    about: str
    """Digest of what all who are asked were told (model, keys of broadcasts, who is asked), the same for all.

    Without it a server could give every node another model, and read one node's reply in the sum.
    """

    def __post_init__(self) -> None:
        expect(bool(self.run and self.step and self.about), "a run, a step and an offer's digest", self, "name them")
        expect_count("round", self.round, "rounds count from 0", least=0)
        unique = len(set(self.asked)) == len(self.asked)
        expect(unique, "every node to be asked once", self.asked, "name it once")

    def expect_in(self, register: Register) -> None:
        """Whoever is asked is in the register, in its order, and the limits are within reach.

        Raises `NotOpened` where a cohort is too small for them, as one that was drawn may be.
        """
        known = tuple(name for name in register.names if name in set(self.asked))
        expect(self.asked == known, "the asked in the order of the register", self.asked, "ask nodes that are in it")
        least, wanted = self.settings.least_survivors, self.settings.threshold
        try:
            threshold_for(len(register.names), least, len(self.asked), wanted)
        except CloisterError as error:
            raise NotOpened(str(error)) from None

    @cached_property
    def threshold(self) -> int:
        """How many shares open a secret, and how many must sign a list of survivors."""
        asked = len(self.asked)
        return threshold_for(asked, self.settings.least_survivors, asked, self.settings.threshold)

    @cached_property
    def needed(self) -> int:
        """With fewer members no stage goes on: too few for the threshold, or less noise than was accounted."""
        return max(self.threshold, self.settings.least_survivors)

    @cached_property
    def digest(self) -> str:
        """All of it in one text, which every signature and every key of this sum is bound to."""
        settings = self.settings
        about = [self.run, self.round, self.step, list(self.asked), self.about]
        limits = [settings.length, settings.bits, self.threshold, settings.least_survivors]
        return digest_of(canonical([PROTOCOL, *about, *limits]))

    def point_of(self, name: str) -> int:
        """Where a member's shares are taken."""
        return self.asked.index(name) + 1
