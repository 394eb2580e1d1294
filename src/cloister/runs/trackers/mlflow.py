"""A run of MLflow (`pip install cloister[mlflow]`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import expect_package, expect_type
from cloister.runs.callbacks import ABOUT, Callback, Record
from cloister.runs.trackers.settings import certificate_of, settings_of

if TYPE_CHECKING:
    from cloister.privacy.description import RunDescription
    from cloister.runs.result import Run

_LONGEST = 250
"""Characters of a parameter, which some stores limit."""


class MLflow(Callback):
    """Metrics by round, settings as parameters, the certificate as an artifact; nothing global is touched."""

    name = "mlflow"

    def __init__(self, experiment: str, tracking_uri: str | None, run_id: str | None, run_name: str | None) -> None:
        self.experiment, self.tracking_uri, self.run_id, self.run_name = experiment, tracking_uri, run_id, run_name
        self._client: Any = None

    def on_start(self, description: RunDescription) -> None:
        """A new run, or the one that is named, with the settings."""
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            place = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            self.run_id = str(self._client.create_run(place, run_name=self.run_name).info.run_id)
        for name, value in settings_of(description).items():
            if name != "about":
                self._client.log_param(self.run_id, name, value[:_LONGEST])
        self._client.set_tag(self.run_id, "about", ABOUT)

    def on_round(self, record: Record) -> None:
        """A point of every curve."""
        for name, value in record.values.items():
            self._client.log_metric(self.run_id, name, value, step=record.round)

    def on_end(self, run: Run) -> None:
        """The certificate, and that the run has ended."""
        text, digest = certificate_of(run.certificate)
        self._client.log_text(self.run_id, text, "certificate.txt")
        self._client.set_tag(self.run_id, "certificate_sha256", digest)
        self._client.set_terminated(self.run_id)


def mlflow(
    experiment: str = "cloister",
    tracking_uri: str | None = None,
    run_id: str | None = None,
    run_name: str | None = None,
    folder: str | Path | None = None,
) -> MLflow:
    """A run in an experiment of MLflow, at its own tracking URI or at one of yours.

    Args:
        run_id: of a run that exists, to go on with it: for a run that is resumed.
        folder: where to keep it if neither you nor MLFLOW_TRACKING_URI say where.
    """
    expect_package("mlflow", "for the tracker of that name", "mlflow")
    for name, value in (("tracking_uri", tracking_uri), ("run_id", run_id), ("run_name", run_name)):
        expect_type(name, value, (str, type(None)), "a text", "give one, or leave it out")
    expect_type("experiment", experiment, str, "the name of an experiment", "give a text")
    if folder is not None and tracking_uri is None and "MLFLOW_TRACKING_URI" not in os.environ:
        tracking_uri = Path(folder).absolute().as_uri()
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files are all that its small package can write
    return MLflow(experiment, tracking_uri, run_id, run_name)
