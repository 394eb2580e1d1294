"""What no file can prove, in words: whoever reads a verification must know where it ends."""

from __future__ import annotations

from cloister.deploy.wire.identity import PublicKey
from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up
from cloister.publication.findings import Findings
from cloister.runs.certificate_file import StoredCertificate

ELSEWHERE = (
    "the epsilon: the ledgers are elsewhere (of a federation with its nodes and server, whose own certificates "
    "`cloister verify` checks; of a private tuning in its folder), so that nothing could be computed again"
)


def headline(c: Certificate) -> str:
    """The certificate in one line."""
    spent = c.prices[0]
    if not c.private or spent.epsilon_pld is None:
        return "NO PRIVACY GUARANTEE"
    promised = f"epsilon {round_up(spent.epsilon_pld)} at delta {spent.delta:g} for each {c.unit}"
    return promised if c.secure_rng else f"{promised}; A SIMULATION, NOT A PRIVATE RELEASE (seeded noise)"


def add(stored: StoredCertificate, signer: PublicKey | None, key: PublicKey | None, found: Findings) -> None:
    """Who signed, and what is only stated."""
    c = stored.certificate
    if signer is not None:
        whose = "the key that you named" if key is not None else "whose key that is, the files cannot prove: see --key"
        found.proven.append(("signature", f"by {signer.text} (fingerprint {signer.fingerprint}), {whose}"))
    else:
        found.warnings.append(_UNSIGNED)
    found.stated += [
        ("execution", _EXECUTED),
        ("all of it", _COMPLETE),
        ("randomness", _SECURE if c.secure_rng else _SEEDED),
        ("people", _PEOPLE[c.unit] if c.unit in _PEOPLE else _PEOPLE["client"]),
        ("trust", f"who must be trusted: {c.trusted}"),
    ]
    if c.rounds_charged < c.rounds_planned:
        rounds = f"{c.rounds_charged:,} of {c.rounds_planned:,} planned rounds are in the ledger"
        early = stored.circumstances is not None and stored.circumstances.ended_early
        decided = "" if early else ", and nothing that was released decided when to stop"
        found.stated.append(("rounds", f"that no more were run{decided}: {rounds}"))
    found.stated.append(("gaps", f"{len(c.not_covered)} points that the guarantee does not cover, in certificate.txt"))


_UNSIGNED = (
    "NOT SIGNED: whoever can write these files can rewrite all of them together, with another model, or a shorter "
    "ledger and the smaller epsilon that follows from it. Nothing here would show it. Compare the SHA-256 below with "
    "one that you have from elsewhere, or ask for a signed publication (cloister publish --key)."
)
_EXECUTED = (
    "that the ledger's releases are what was executed (this clip, this noise, this sampling), that clipping bounded "
    "every contribution, and that model.safetensors came out of it"
)
_COMPLETE = "that nothing else was released from these data: other runs, tuning, metrics, logs"
_SECURE = "that noise and draws came from the operating system's generator, and nobody kept them"
_SEEDED = "nothing: noise was drawn from a seed, so that whoever has it can remove it"
_PEOPLE = {
    "client": "that a client is what must be protected: one person, or one institution, and nobody is two clients",
    "sample": "that a sample is what must be protected: one person has one row, and rows lie where it is described",
}
