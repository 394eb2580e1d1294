"""Events for TensorBoard (`pip install cloister[tensorboard]`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import expect, expect_package, expect_type
from cloister.runs.callbacks import ABOUT, Callback, Record
from cloister.runs.trackers.settings import certificate_of, settings_of

if TYPE_CHECKING:
    from cloister.privacy.description import RunDescription
    from cloister.runs.result import Run


class TensorBoard(Callback):
    """Scalars by round; settings and certificate as texts. A resumed run hides the rounds that it computes again."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings: dict[str, str] = {}
        self._writer: Any = None

    def on_start(self, description: RunDescription) -> None:
        """The settings, which are written with the first round."""
        self._settings, self._writer = settings_of(description), None

    def on_round(self, record: Record) -> None:
        """A point of every curve."""
        writer = self._open(record.round)
        for name, value in record.values.items():
            writer.add_scalar(name, value, record.round)
        writer.flush()

    def on_end(self, run: Run) -> None:
        """The certificate as a text."""
        writer, (text, digest) = self._open(0), certificate_of(run.certificate)
        writer.add_text("certificate", f"```\n{text}```\nSHA-256 {digest}", len(run.history))
        writer.close()

    def _open(self, number: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            make: Any = SummaryWriter
            self._writer = make(str(self.folder), purge_step=number or None)
            self._writer.add_text("settings", f"```\n{json.dumps(self._settings, indent=2)}\n```", number)
            self._writer.add_text("about", ABOUT, number)
        return self._writer


def tensorboard(folder: str | Path) -> TensorBoard:
    """Events in a folder, for `tensorboard --logdir`."""
    expect_package("tensorboard", "for the tracker of that name", "tensorboard")
    expect_type("folder", folder, (str, Path), "the path of a folder", "give a text or a pathlib.Path")
    expect(not Path(folder).is_file(), "a folder for events", str(folder), "choose another name")
    return TensorBoard(Path(folder))
