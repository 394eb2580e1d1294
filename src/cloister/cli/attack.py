"""`cloister attack`: what runs give away, as pictures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.output import say
from cloister.errors import expect, expect_one_of
from cloister.runs.progress_line import Part, ProgressLine

if TYPE_CHECKING:
    from cloister.studies.attacks.found import Attacks

_KINDS = ("inversion", "membership", "all")


@contextmanager
def _steps(name: str, total: int) -> Iterator[Callable[[], None]]:
    """A line about shadow models and images, as they are done; each takes a while."""
    done = itertools.count(1)
    with ProgressLine(True, max(total, 1), unit="step") as line:

        def tick() -> None:
            number = next(done)
            line.update(number, [Part(f"attacking {name}, step {number}/{total}", f"{number}/{total}", weight=9)])

        line.update(0, [Part(f"attacking {name}", weight=9)])
        yield tick


def attack(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that have ended, without and with privacy, say.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The picture [default: attacks.png in the run's folder].")
    ] = None,
    kind: Annotated[str, typer.Option(help="inversion, membership, or all.")] = "all",
    images: Annotated[int, typer.Option(help="Of so many clients one image is sought.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of an inversion.")] = 400,
    samples: Annotated[int, typer.Option(help="So many members, and as many others.")] = 5000,
    shadows: Annotated[
        int, typer.Option(help="Shadow models to compare with, 32 say: each takes as long as the run.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Attack runs of simulations: images from updates, and members from the final model. NOT PRIVATE.

    Inversion: from what one client sends in the first round, everybody else's part known, an image is sought whose
    gradient points the same way (Geiping et al. 2020). Membership: who was trained on has a smaller loss (Yeom et al.
    2018), and with --shadows is more likely under models that saw it (LiRA, Carlini et al. 2022); beside them stands
    what the certified epsilon and delta allow at most.

    \b
    cloister run experiments/attacks.toml --folder runs/open
    cloister run experiments/attacks.toml method=dp_fedavg clip_norm=0.5 epsilon=1 --folder runs/dp
    cloister attack runs/open runs/dp --shadows 32 -o attacks.png

    Figures go into attacks.json in each folder, and `cloister report` shows them.
    """
    expect_one_of("--kind", kind, _KINDS)
    expect(len(runs) == 1 or output is not None, "-o FILE for several runs", "none", "name the picture")
    picture = output or runs[0] / "attacks.png"
    for path in runs:
        found_there = "a run" if (path / "description.json").is_file() else f"no description.json in {path}"
        expect(found_there == "a run", "the folder of a run", found_there, "check the name")
    from cloister.runs.report import expect_plot
    from cloister.studies.attacks.attack import KINDS
    from cloister.studies.attacks.attack import attack as attack_run
    from cloister.studies.attacks.found import write_attacks
    from cloister.studies.attacks.plots import attacks_plot

    expect_plot(picture)
    found: dict[str, Attacks] = {}
    for path in runs:
        kinds = [one for one in KINDS if kind in (one, "all")]
        with _steps(path.name, shadows * ("membership" in kinds) + images * ("inversion" in kinds)) as tick:
            one = attack_run(
                path, kinds, images=images, steps=steps, samples=samples, shadows=shadows, seed=seed, tick=tick
            )
        name = one.title if one.title not in found else f"{one.title} ({path.name})"
        found[name] = one
        if one.inversion:
            alike = ", ".join(f"{each.correlation:.2f}" for each in one.inversion)
            say(f"{path}: images were found to a correlation of {alike}")
        for curve in one.membership:
            at = ", ".join(f"{value:.4f} at {rate}" for rate, value in curve.at.items())
            say(f"{path}: members are told apart by the {curve.attack}, area {curve.area:.3f}; true positive rate {at}")
        if one.membership:
            say(f"{path}: {one.membership[0].others} members; others are {one.others}")
        say(f"{write_attacks(path, one)}: NOT PRIVATE")
    attacks_plot(found, picture)
    say(f"plot: {picture}")
