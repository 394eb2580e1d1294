"""Secure aggregation: the server learns the sum of what nodes send, and nothing else.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, Figure 4 (against a
server that lies), over the full graph of at most 100 nodes. Pure state machines: contents are JSON, vectors tensors.
Keys, shares, masked and unmask are the four messages of the paper; the signed list of survivors goes out and back
between the last two, as small as it is.

    session = Session(run, round, "update", asked, MaskSettings(length, bits, threshold, least_survivors), about)
    node = MaskingNode(session, name, key, register)          server = MaskingServer(session, register)

        KEYS       node.keys()                  ->  server.take_keys(name, content)
        ROSTER     node.shares(content)         <-  server.roster()
        SHARES     what it returned             ->  server.take_shares(name, content)
        MAILBOX    node.masked(content, x)      <-  server.mailboxes()[name]
        MASKED     what it returned             ->  server.take_masked(name, content, tensors)
        SURVIVORS  node.agree(content)          <-  server.survivors()
        UNMASK     what it returned             ->  server.take_consent(name, content)
        SURVIVORS  node.unmask(content)         <-  server.consents()
        UNMASK     what it returned             ->  server.take_unmask(name, content)
                                                    server.finish() -> total, survivors, accused

Both sides make the session for themselves, from terms and offer. A step has one session: once a masked vector has left
a node, another sum of the same reply among others would tell the difference of the two.
"""

from cloister.deploy.masking.node import MaskingNode
from cloister.deploy.masking.server import MaskedSum, MaskingServer
from cloister.deploy.masking.session import MaskSettings, NotOpened, Session, modulus_bits, threshold_for
from cloister.deploy.masking.trust import NOT_CHECKED, protects_against_a_lying_server, trust_in, whom_to_trust

__all__ = [
    "NOT_CHECKED",
    "MaskSettings",
    "MaskedSum",
    "MaskingNode",
    "MaskingServer",
    "NotOpened",
    "Session",
    "modulus_bits",
    "protects_against_a_lying_server",
    "threshold_for",
    "trust_in",
    "whom_to_trust",
]
