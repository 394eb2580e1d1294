"""Whom a method protects: the one value that pricing, accounts, certificates and rounds go by."""

from __future__ import annotations

from enum import StrEnum


class ProtectedUnit(StrEnum):
    """What neighboring data sets differ in, and so who has an account in the ledger.

    CLIENT: a client and all its data; all clients share one account, because nobody is to know who took part.
    SAMPLE: any one sample of a client; every client has an account of its own for its samples.
    """

    CLIENT = "client"
    SAMPLE = "sample"


def sample_account(client: int) -> str:
    """The name of the account for any one sample of a client."""
    return f"sample of client {client}"
