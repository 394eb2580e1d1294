"""A run of Weights & Biases (`pip install cloister[wandb]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloister.errors import expect_package, expect_type
from cloister.runs.callbacks import Callback, Record
from cloister.runs.trackers.settings import certificate_of, settings_of

if TYPE_CHECKING:
    from cloister.privacy.description import RunDescription
    from cloister.runs.result import Run


class WandB(Callback):
    """Metrics by round, settings as the config, the certificate as an artifact."""

    name = "wandb"

    def __init__(self, project: str, more: dict[str, Any]) -> None:
        self.project, self.more = project, more
        self._run: Any = None

    def on_start(self, description: RunDescription) -> None:
        """A new run with the settings."""
        import wandb

        self._run = wandb.init(project=self.project, config=settings_of(description), **self.more)

    def on_round(self, record: Record) -> None:
        """A point of every curve."""
        self._run.log(record.values, step=record.round)

    def on_end(self, run: Run) -> None:
        """The certificate, and that the run has ended."""
        import wandb

        text, digest = certificate_of(run.certificate)
        artifact = wandb.Artifact("certificate", type="certificate", metadata={"sha256": digest})
        with artifact.new_file("certificate.txt") as file:
            file.write(text)
        self._run.log_artifact(artifact)
        self._run.summary["certificate_sha256"] = digest
        self._run.finish()


def wandb(project: str = "cloister", **more: Any) -> WandB:
    """A run in a project of Weights & Biases; further arguments are those of `wandb.init`, such as name or mode.

    A cloister run that is resumed goes on in the same place if you give `id` and `resume="allow"`.
    """
    expect_package("wandb", "for the tracker of that name", "wandb")
    expect_type("project", project, str, "the name of a project", "give a text")
    return WandB(project, more)
