"""Terms: all that a federation agrees on before it begins, in one file, with one digest.

    method = "pfl"                     # the flat keys of a run, those of data left out
    ...
    [federation]                       # who takes part (`federation_terms.py`)
    [schema] or [samples]              # what rows are (`sample_terms.py`)
    [public]                           # optional: samples that everybody may see, by the SHA-256 of their file

Terms name nothing but what this package has: methods, models, losses and preprocessings by their names in its
catalogues. No code is named, and none is loaded. Every key has its value in the digest, those left out included,
so that a site with other defaults has another digest.
"""

from __future__ import annotations

import hashlib
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from cloister.deploy.terms.federation_terms import FederationTerms
from cloister.deploy.terms.public_terms import PublicTerms
from cloister.deploy.terms.sample_terms import SampleTerms
from cloister.deploy.wire.canonical import canonical, digest_of
from cloister.deploy.wire.identity import PublicKey, Register
from cloister.errors import CloisterError, expect, expect_count, shown
from cloister.models import Adaptation
from cloister.runs import outside
from cloister.runs.config import Parts, parts_of
from cloister.runs.request import Options
from cloister.runs.signatures import introspected

PARTS = ("method", "model", "cohort", "server")
VERSION = 1
TEST_RUN = "test-"
"""How the names of runs in test mode begin."""
MOST_ROUNDS = 10**5
OWN_CHOICE = ("device", "engine", "memory", "precision", "log", "record", "metrics", "monitor")
"""Keys of a run that every site decides for itself, or that have no place in a federation."""
NOT_HERE = {
    "secure_rng": "randomness is the system's, unless test_mode = true says otherwise",
    "rounded_noise": "noise is rounded where that is proven, unless test_mode = true says otherwise",
    "checkpoint_every": "every round is kept",
    "personalize": "each site may do so with the final model",
    "personalize_steps": "each site may do so with the final model",
    "personalize_lr": "each site may do so with the final model",
    "personalize_batch_size": "each site may do so with the final model",
    "weights": "a path is of one machine alone",
    "weights_skip": "a path is of one machine alone",
    "tuned": "it is for simulations",
    **dict.fromkeys(OWN_CHOICE, "every site decides that for itself"),
}


@dataclass(frozen=True)
class Terms:
    """What all parties agree on. Two terms are the same if their digests are."""

    values: Mapping[str, Any]
    """The flat keys of the run, with the defaults of those that were left out."""
    federation: FederationTerms
    samples: SampleTerms
    public: PublicTerms | None = None
    parts: Parts = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        values = dict(self.values)
        _expect_no_code(values)
        for name in values:
            if name in NOT_HERE:
                raise CloisterError(f"Expected no {name} in terms, found {shown(values[name])}: {NOT_HERE[name]}.")
        parts = parts_of(values, PARTS, introspected().run)
        unsaid = set(NOT_HERE) - set(values)
        resolved = {name: value for name, value in parts.resolved.items() if name not in unsaid}
        expect_count("rounds", resolved["rounds"], "a run has at least one round", most=MOST_ROUNDS)
        object.__setattr__(self, "parts", Parts(parts.chosen, parts.resolved))
        object.__setattr__(self, "values", resolved)
        _register_of(self.federation)  # which refuses keys that are none
        canonical(self.to_json())  # which refuses what would not survive the wire

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the terms as canonical JSON: what everybody agrees to."""
        return digest_of(canonical(self.to_json()))

    @cached_property
    def register(self) -> Register:
        """Whose signature is whose."""
        return _register_of(self.federation)

    @property
    def test_mode(self) -> bool:
        """Whether everything is seeded, and nothing private."""
        return self.federation.test_mode

    @property
    def clients(self) -> int:
        """How many nodes there are."""
        return self.federation.clients

    @property
    def rounds(self) -> int:
        """How many rounds are planned."""
        return int(self.values["rounds"])

    @cached_property
    def options(self) -> Options:
        """How a run is computed, as far as all have to agree on it."""
        names = {one.name for one in fields(Options)} & set(self.values)
        return Options(**{name: self.values[name] for name in names}, progress=False, secure_rng=not self.test_mode)

    @cached_property
    def adaptation(self) -> Adaptation:
        """What is done to the model before it is trained."""
        names = {one.name for one in fields(Adaptation)} & set(self.values)
        return Adaptation(**{name: self.values[name] for name in names})

    def run_of(self, nonce: str) -> str:
        """The name of a run under these terms; the nonce is the server's (`new_nonce`). One in test mode is called so,
        for good: whoever finds it in a ledger knows that its noise protected nobody."""
        name = hashlib.sha256(f"cloister run/{self.digest}/{nonce}".encode()).hexdigest()
        return f"{TEST_RUN}{name}" if self.test_mode else name

    def new_nonce(self) -> str:
        """What tells a run from others under the same terms: random, and in test mode always the same."""
        return f"test {self.options.seed}" if self.test_mode else secrets.token_hex(32)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {
            "version": VERSION,
            "values": dict(self.values),
            "federation": self.federation.to_json(),
            "samples": self.samples.to_json(),
        }
        return found if self.public is None else {**found, "public": self.public.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Terms:
        """The inverse; refused where it is of another version, or is no terms."""
        expect(isinstance(value, Mapping), "terms as a JSON object", value, "ask for them again")
        known = {"version", "values", "federation", "samples", "public"}
        version = value.get("version")
        expect(version == VERSION, f"terms of version {VERSION}", version, "install the version that both sides have")
        expect(set(value) <= known, f"{', '.join(sorted(known))} in terms", sorted(set(value) - known), "remove others")
        for name in ("values", "federation", "samples"):
            expect(isinstance(value.get(name), Mapping), f"{name} in the terms", value.get(name), "ask for them again")
        public = value.get("public")
        return cls(
            value["values"],
            FederationTerms.of(value["federation"]),
            SampleTerms.from_json(value["samples"]),
            None if public is None else PublicTerms.of(public),
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Terms:
        """From the content of a TOML file."""
        flat = {name: value for name, value in tables.items() if not isinstance(value, Mapping)}
        unknown = sorted(set(tables) - set(flat) - {"federation", "samples", "schema", "public"})
        expect(not unknown, "tables [federation], [schema] or [samples], and [public]", unknown, "remove the others")
        public = tables.get("public")
        return cls(
            flat,
            FederationTerms.of(tables.get("federation")),
            SampleTerms.of(tables.get("samples"), tables.get("schema")),
            None if public is None else PublicTerms.of(public),
        )

    @classmethod
    def load(cls, path: str | Path) -> Terms:
        """Terms from a TOML file."""
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CloisterError(
                f"Expected readable terms, found {str(path)!r} ({error.strerror}): check the path."
            ) from None
        except (ValueError, RecursionError) as error:
            raise CloisterError(f"Expected valid TOML in {path}, found an error ({error}): fix that line.") from None
        return cls.from_tables(tables)


def _expect_no_code(values: Mapping[str, Any]) -> None:
    """Refuse names of code that is not this package's, before anything looks at them."""
    for part in PARTS:
        if outside.is_outside(values.get(part)):
            raise CloisterError(
                f"Expected {part} to be a name of the catalogue, found {shown(values[part])}: terms name no code, "
                "because a node would run it beside its data."
            )


def _register_of(federation: FederationTerms) -> Register:
    nodes = {name: PublicKey.from_text(key) for name, key in federation.nodes.items()}
    return Register(PublicKey.from_text(federation.server_key), nodes)
