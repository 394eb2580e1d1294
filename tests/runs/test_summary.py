"""The end of a run: everything is said, in a frame on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

import cloister as cl
from cloister.runs import report
from cloister.runs.folder import RunFolder
from cloister.runs.report.runs import scores_text
from conftest import toy_task


def summary(path, **options):
    keywords = {"clip_norm": 1.0, "lr": 0.1, "local_steps": 1, **options.pop("method", {})}
    run = cl.run(cl.methods.dp_fedavg(**keywords), toy_task(), rounds=3, folder=path, **options)
    folder = RunFolder.open(path)
    return run, report.summary_rows(run, folder), report.next_commands(run, folder, "cloister")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return summary(tmp_path_factory.mktemp("runs") / "mine", epsilon=4.0, delta=1e-2)


def printed(rows, commands, width: int, terminal: bool, title: str = "mine") -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    report.print_summary(console, title, rows, commands)
    return file.getvalue()


def said(rows) -> dict[str, str]:
    found: dict[str, str] = {}
    for label, text in rows:
        found[label] = f"{found.get(label, '')} {text}".strip()
    return found


def test_a_private_run_says_what_it_reached_spent_and_promises(ended):
    run, rows, commands = ended
    found = said(rows)
    assert found["reached"].startswith("accuracy ")
    assert "after 3 of 3 rounds" in found["reached"]
    assert re.match(
        r"epsilon [34]\.\d{3} of a budget of 4, at delta 0\.01 epsilon \d+\.\d{3} at delta 1e-05$", found["spent"]
    )
    assert found["protects"].startswith("any one client as a whole (add or remove one client")
    assert found["trusted"] == run.certificate.trusted
    assert "seed" in found["noise"], "a simulation must not look like a release"
    assert found["kept in"] == str(run.folder)
    assert [command.split()[1] for command, _ in commands] == ["show", "publish", "report"]


def test_a_run_without_privacy_promises_nothing(tmp_path):
    _, rows, commands = summary(tmp_path / "open", method={"noise_multiplier": 0.0})
    found = said(rows)
    assert found["spent"] == "without bound: no guarantee was asked for"
    assert found["protects"] == "nobody"
    assert "the server" not in found["trusted"]
    assert [command.split()[1] for command, _ in commands] == ["show", "report"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_has_a_frame_that_fits(ended, width):
    _, rows, commands = ended
    page = re.sub(r"\x1b\[[0-9;]*m", "", printed(rows, [("cloister show runs/mine", "")], width, True))
    lines = page.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("╭─ mine ─")
    assert lines[-1].startswith("╰─")
    assert "next" in page
    assert "cloister show runs/mine" in page
    assert "\x1b[" in printed(rows, commands, width, True)


def test_a_command_is_never_broken(ended):
    _, rows, _ = ended
    long = f"cloister show runs/{'x' * 80}"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(rows, [(long, "")], 60, True)).split("\n")
    assert long in lines
    assert long in printed(rows, [(long, "the certificate")], 60, False)


def test_elsewhere_lines_are_plain(ended):
    _, rows, commands = ended
    page = printed(rows, commands, 80, False)
    assert page.isprintable() or page.replace("\n", "").isprintable()
    assert "\x1b" not in page
    assert "│" not in page
    for label in ("reached:", "spent:", "protects:", "trusted:", "kept in:", "next:"):
        assert f"\n{label}" in f"\n{page}"


def test_brackets_in_names_are_names(ended):
    _, rows, _ = ended
    rows = [*rows, ("kept in", "runs/[bold]x[/bold]")]
    for terminal in (True, False):
        assert "runs/[bold]x[/bold]" in printed(rows, [], 100, terminal, "[red]a")


def test_a_path_with_a_space_can_be_copied(tmp_path):
    _, _, commands = summary(tmp_path / "my run", epsilon=4.0, delta=1e-2)
    assert commands[0][0] == f"cloister show '{tmp_path}/my run'"


def test_why_a_run_stopped_is_said(tmp_path):
    class Enough(cl.Callback):
        def on_round(self, record):
            return cl.StopTraining("it was enough")

    _, rows, _ = summary(tmp_path / "short", epsilon=4.0, delta=1e-2, callbacks=[Enough()])
    found = said(rows)
    assert found["stopped"] == "it was enough"
    assert "after 1 of 3 rounds" in found["reached"]


def test_updates_that_were_no_numbers_are_told():
    """They count as zero: a learning rate that is far too large looks like a model that learns nothing."""
    lines = [{"round": 1, "cohort": 4, "nonfinite_updates": 3, "monitor": "mae", "mae": 2.0, "loss": 4.0}]
    folder = SimpleNamespace(metrics=lambda: lines, checkpoint=lambda: SimpleNamespace(best_round=1))
    assert "75% of the updates were not finite, and counted as zero" in scores_text(folder)
    lines[0]["nonfinite_updates"] = 0
    assert scores_text(folder) is None
