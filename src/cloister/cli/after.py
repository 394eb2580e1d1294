"""After training: `cloister predict` and `cloister export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.output import say

if TYPE_CHECKING:
    from cloister.runs.trained_model import TrainedModel

Run = Annotated[Path, typer.Argument(help="The folder of a run, or one with the published files of it.")]
Model = Annotated[str | None, typer.Option(help="package.module:function that made the model, where it is your own.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]


def predict(
    run: Run,
    data: Annotated[Path, typer.Argument(help="A .csv, .parquet or .npz file, or a folder of images.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="What to write: .csv, .parquet, .npz or .json.")],
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of every class.")] = False,
    force: Force = False,
    model: Model = None,
) -> None:
    """Predict for every row of DATA; where it has labels, also say how good the model is on them."""
    from cloister.runs.files import expect_new_file
    from cloister.runs.prediction_file import WRITERS, predict_file

    expect_new_file(output, tuple(WRITERS), force)  # before anything is read
    trained = _load(run, model)
    rows, scores = predict_file(trained, data, output, proba, force)
    if scores:
        say(", ".join(f"{name} {'undefined' if value is None else f'{value:.4f}'}" for name, value in scores.items()))
    say(f"{rows:,} {'row' if rows == 1 else 'rows'} predicted, kept in {output}")


def export(
    run: Run,
    format: Annotated[str, typer.Option("--format", help="onnx, torchscript or safetensors.")] = "onnx",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="What to write [default: NAME-OF-RUN.SUFFIX].")
    ] = None,
    force: Force = False,
    model: Model = None,
) -> None:
    """Write the model for other programs, with its certificate's hash, epsilon, delta and unit inside."""
    from cloister.privacy.certificate_text import round_up
    from cloister.runs.export import suffix_of

    file = output or Path(f"{run.resolve().name}{suffix_of(format)}")
    trained = _load(run, model)
    trained.export(file, format, force)
    certificate = trained.certificate
    say(f"{format} model of {trained.name}, kept in {file}")
    spent = f"epsilon {round_up(certificate.epsilon)} at delta {certificate.prices[0].delta:g}"
    say(f"{spent}, for each {certificate.unit}; certificate {trained.certificate_sha256}")


def _load(run: Path, model: str | None) -> TrainedModel:
    from cloister.runs.load import load

    return load(run, model)
