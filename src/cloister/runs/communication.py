"""What clients send over a whole run, and what share that is of sending every parameter.

Fed-SPA (Hu, Gong & Guo, IJCAI 2021) counts, for an average agent, p d 32 T r bits: of d parameters a fraction p, each
of 32 bits, in a share r of T rounds. Here it is counted from what was really sent: the numbers that leave the
transforms, the bits that each takes, and the clients that replied in every round. (What the server sends, and what
secure aggregation or a network add, is not counted; nor are masks, which follow from a seed that both sides have.)

Where clients are protected by who is drawn in secret, how many took part is not released, and the expected number
stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloister.privacy.description import RunDescription
from cloister.privacy.unit import ProtectedUnit

_BYTES = {"float32": 4, "float64": 8}


def mean_upload_bits(
    parameters: int, rounds: int, participation: float = 1.0, sent: float = 1.0, bits: float = 32
) -> float:
    """p d b T r: what a client sends on average over a run, in bits.

    The costs in Fed-SPA's Table 1 (MNIST, 21,840 parameters, 45 rounds, r = 0.1), in megabytes:

    >>> [round(mean_upload_bits(21_840, 45, 0.1, p) / 8e6, 4) for p in (0.05, 0.1, 0.4, 1.0)]
    [0.0197, 0.0393, 0.1572, 0.3931]

    Those of Table 2 (CIFAR-10, 537,610 parameters) are of 100 rounds, where the text speaks of 200:

    >>> [round(mean_upload_bits(537_610, rounds, 0.1, 0.4) / 8e6, 2) for rounds in (100, 200)]
    [8.6, 17.2]
    """
    return sent * parameters * bits * rounds * participation


@dataclass(frozen=True)
class Communication:
    """What was sent to the server in a run."""

    upload_bytes: int
    """By a client in a round."""
    dense_bytes: int
    """What that would be if every parameter were sent, in the run's own type."""
    messages: int
    """How many were sent, by all clients in all rounds; expected, where the actual number is not released."""
    clients: int

    @property
    def total_bytes(self) -> int:
        """By all clients in all rounds."""
        return self.upload_bytes * self.messages

    @property
    def mean_bytes(self) -> float:
        """By a client over the whole run, on average over all clients: Fed-SPA's cost."""
        return self.total_bytes / self.clients

    @property
    def share(self) -> float:
        """Of the cost of sending every parameter, as often."""
        return self.upload_bytes / self.dense_bytes

    def __str__(self) -> str:
        """A line for people.

        >>> print(Communication(1092 * 4, 21840 * 4, 450, 100))
        upload: 4.37 kB a client and round, 1.97 MB in all (19.7 kB a client on average), 5 % of sending every parameter
        """
        each, all_of_it, mean = map(in_words, (self.upload_bytes, self.total_bytes, self.mean_bytes))
        percent = f"{100 * self.share:.3g} % of sending every parameter"
        return f"upload: {each} a client and round, {all_of_it} in all ({mean} a client on average), {percent}"


def communication_of(description: RunDescription, history: Iterable[Mapping[str, Any]]) -> Communication:
    """Of a run, from its description and its lines, one for every round: `cohort` is how many clients replied."""
    sizes = [int(line["cohort"]) for line in history]
    private = bool(description.method.mechanism.noise_multiplier) and description.method.unit == ProtectedUnit.CLIENT
    secret = private and description.cohort.name == "poisson"
    return Communication(
        description.upload_bytes,
        description.model.parameters * _BYTES[description.dtype],
        round(description.cohort.settings["sampling_rate"] * description.task.clients * len(sizes))
        if secret
        else sum(sizes),
        description.task.clients,
    )


def in_words(count: float) -> str:
    """Bytes in the unit that people use.

    >>> in_words(260), in_words(31_400), in_words(2.5e6), in_words(7e9)
    ('260 bytes', '31.4 kB', '2.5 MB', '7 GB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} bytes"
