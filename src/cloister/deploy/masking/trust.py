"""What certificates say of masks: whom one must trust, and what nobody could check."""

from __future__ import annotations

from cloister.deploy.masking.session import Session, threshold_for

NOT_CHECKED = (
    "under masks the server sees the sum alone: it could not check the norm of single messages, whether they were "
    "finite before rounding, or whether a node followed its terms; one node can spoil a sum, and is not found",
    "that a node's numbers stay within its bound is what the node itself computed: the guarantee of every honest node "
    "holds whatever others send, as it rests on the noise of honest ones",
)
"""Sentences for certificates."""


def protects_against_a_lying_server(asked: int, threshold: int) -> bool:
    """Whether more than two thirds are needed to open a sum (Bonawitz et al. 2017, against active adversaries)."""
    return 3 * threshold > 2 * asked


def whom_to_trust(asked: int, least_survivors: int, wanted: int = 0) -> tuple[str, ...]:
    """Sentences on who must be honest for single messages to stay hidden, from what the terms state.

    >>> print(whom_to_trust(3, 2, wanted=2)[0])
    a sum opens with 2 of 3 nodes: single messages stay hidden from a server that follows the protocol, as long as \
none of the nodes tells it what it knows; a server that lies could open them, which takes a threshold of 3 to prevent
    """
    threshold = threshold_for(asked, least_survivors, asked, wanted)
    least = max(threshold, least_survivors)
    opens = f"a sum opens with {threshold} of {asked} nodes: single messages stay hidden"
    if protects_against_a_lying_server(asked, threshold):
        first = f"{opens} even from a server that lies, as long as {_tell(min((asked - 1) // 3, least - 2))}"
    else:
        first = (
            f"{opens} from a server that follows the protocol, as long as {_tell(min(threshold - 1, least - 2))}; a "
            f"server that lies could open them, which takes a threshold of {2 * asked // 3 + 1} to prevent"
        )
    return (
        first,
        f"no sum of fewer than {least} messages is opened, so it has at least the noise of that many; nodes that tell "
        "others their own noise take it away from what protects the rest",
        "the nodes' keys come from the terms that every node agreed to, not from the server; where the server chooses "
        "who is asked, all this counts among those who are asked",
    )


def trust_in(session: Session) -> tuple[str, ...]:
    """The same of one session."""
    return whom_to_trust(len(session.asked), session.settings.least_survivors, session.settings.threshold)


def _tell(nodes: int) -> str:
    """So many nodes may collude that messages of two others are still in every sum."""
    if nodes == 0:
        return "none of the nodes tells it what it knows"
    return f"at most {nodes} of the nodes {'tells it what it knows' if nodes == 1 else 'tell it what they know'}"
