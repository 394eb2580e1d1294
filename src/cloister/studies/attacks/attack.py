"""Attacks on the run in a folder. They look at training samples: for simulations alone, and marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from cloister.core.arguments import flat_arguments
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_count, expect_one_of
from cloister.privacy.events import Adjacency
from cloister.runs.config import build
from cloister.runs.config_file import load as load_config
from cloister.runs.folder import RunFolder
from cloister.runs.load import load
from cloister.runs.prepare import Ready, prepare
from cloister.runs.request import Request
from cloister.studies.attacks import likelihood
from cloister.studies.attacks import shadows as shadow_models
from cloister.studies.attacks.candidates import Candidates, candidates
from cloister.studies.attacks.found import Attacks, Membership
from cloister.studies.attacks.inversion import STEPS, several
from cloister.studies.attacks.membership import BY_LOSS, BY_RATIO, membership

Kind = Literal["inversion", "membership"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_OF_RUNS = ("folder", "resume", "callbacks")


def attack(
    folder: str | Path,
    kinds: Sequence[Kind] = KINDS,
    *,
    images: int = 4,
    steps: int = STEPS,
    samples: int = 5000,
    shadows: int = 0,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Attacks:
    """Attack the run in a folder: invert what some clients send in the first round, and guess from the final model who
    its members are. With shadows, which take as long as so many runs, membership is also guessed by comparing with
    them. A run with secure randomness is not attacked: it would be a release that nothing pays for."""
    for kind in kinds:
        expect_one_of("kind", kind, KINDS)
    expect_count("images", images, "of as many clients one image is sought", most=64)
    expect_count("steps", steps, "400 are usual")
    expect_count("samples", samples, "members, and as many others", least=10)
    fine = shadows == 0 or (isinstance(shadows, int) and 4 <= shadows <= 10_000 and shadows % 2 == 0)
    expect(fine, "an even number of shadows, 4 or more, or 0", shadows, "16 are enough to see something")
    path = Path(folder)
    run = RunFolder.open(path)
    if run.description().secure_rng:
        raise CloisterError(
            "Expected a simulation to attack, found a run with secure randomness: what an attack shows of its training "
            "samples would be a release that nothing pays for."
        )
    ready, start, values = _made_again(path, run)
    task = start.args[1]
    certificate = run.certificate()
    private = certificate.private and certificate.epsilon != float("inf")
    guessed, others = [], ""
    if "membership" in kinds:
        pairs = candidates(values, task, samples, seed)
        guessed, others = _members(path, start, pairs, shadows, seed, tick), pairs.others
    return Attacks(
        path.resolve().name,
        certificate.epsilon if private else None,
        certificate.prices[0].delta if private else None,
        str(ready.fed.unit),
        1 if certificate.adjacency.startswith(str(Adjacency.REPLACE_ONE.value)) else 2,
        several(ready, task, images, steps, seed, tick) if "inversion" in kinds else [],
        guessed,
        others,
    )


def _made_again(path: Path, run: RunFolder) -> tuple[Ready, Any, dict[str, Any]]:
    """The federation of a run as it stood before the first round, on the data with which it was trained; what starts
    the run; and its keys."""
    if not (path / "config.toml").is_file():
        raise CloisterError(
            f"Expected config.toml in {path}, found none: attacks are for runs that were started by the command line."
        )
    values = load_config(path / "config.toml")
    start: Any = build(values).start
    options = {name: value for name, value in start.keywords.items() if name not in _OF_RUNS}
    request = flat_arguments(Request)(*start.args, **options)
    same = request.task.fingerprint() == run.checkpoint().facts["data"]
    expect(same, f"the data with which {path} was trained", "others", "restore them")
    ready = prepare(request, run.description())
    if ready.asks_first:
        raise CloisterError(
            f"Expected a run that asks nothing before its first round, found {path}, which does: attacks do not know "
            "what it was told."
        )
    return ready, start, values


def _members(
    path: Path, start: Any, pairs: Candidates, count: int, seed: int, tick: Callable[[], None]
) -> list[Membership]:
    """By the loss, which confidence turns around; and by the likelihood ratio, if there are shadows."""
    task: Task = start.args[1]
    model = load(path, loss=task.loss, preprocessing=task.preprocessing)
    target = shadow_models.confidences(model.module, task, pairs)
    middle = len(pairs.rows)
    found = [membership(BY_LOSS, target[:middle], target[middle:])]
    if count:
        known, saw = shadow_models.train(start, task, pairs, count, seed, tick)
        ratio = likelihood.scores(target, known, saw)
        found.append(membership(BY_RATIO, ratio[:middle], ratio[middle:], count))
    return found
