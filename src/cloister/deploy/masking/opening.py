"""Opening a masked sum: secrets from shares, each compared with what its owner signed, and masks taken away."""

from __future__ import annotations

from collections.abc import Mapping

from cloister.deploy.masking import agreement, masks, shamir
from cloister.deploy.masking.contents import Keys
from cloister.deploy.masking.session import NotOpened, Session

Held = Mapping[str, Mapping[str, bytes]]
"""Shares by owner of the secret and by the member that revealed them."""


def secrets_of(session: Session, kind: str, roster: Mapping[str, Keys], shares: Held) -> dict[str, bytes]:
    """The owners' secrets: seeds of own masks, or keys behind shared ones. Raises `NotOpened` with names.

    All shares are those that their owner committed to, so a secret that is not the one it signed is the owner's doing.
    """
    found, missing, wrong = {}, [], []
    for owner, held in shares.items():
        if len(held) < session.threshold:
            missing.append(owner)
            continue
        some = sorted(held, key=session.point_of)[: session.threshold]
        secret = shamir.combine({session.point_of(name): held[name] for name in some})
        if secret is None or not _is_signed(session, kind, owner, roster[owner], secret):
            wrong.append(owner)
        else:
            found[owner] = secret
    if wrong:
        raise NotOpened(
            f"Expected shares of what they signed from {', '.join(wrong)}, found shares of something else: the sum "
            "stays closed; go on without them.",
            tuple(wrong),
        )
    if missing:
        raise NotOpened(
            f"Expected {session.threshold} members to reveal their shares of {', '.join(missing)}, found fewer: the "
            "sum stays closed."
        )
    return found


def _is_signed(session: Session, kind: str, owner: str, keys: Keys, secret: bytes) -> bool:
    if kind == "key":
        return agreement.KeyPair(secret).public == keys.mask_key
    return agreement.commitment(session, ["seed", owner], secret) == keys.seed_commitment.hex()


def take_away_own(total: masks.Vector, session: Session, seeds: Mapping[str, bytes]) -> None:
    """Survivors' own masks."""
    for name, seed in seeds.items():
        masks.add_mask(total, agreement.own_mask_key(session, name, seed), subtract=True)


def take_away_shared(
    total: masks.Vector,
    session: Session,
    roster: Mapping[str, Keys],
    survivors: tuple[str, ...],
    private: Mapping[str, bytes],
) -> None:
    """Masks that survivors share with members whose vectors did not come; those among survivors cancel."""
    for lost, secret in private.items():
        pair, there = agreement.KeyPair(secret), session.point_of(lost)
        for name in survivors:
            mask = agreement.pair_mask_key(session, pair, lost, name, roster[name].mask_key)
            masks.add_mask(total, mask, subtract=session.point_of(name) < there)
