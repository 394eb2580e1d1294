"""The line that is shown while work is under way: on terminals of several widths, and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cloister.cli.output import say
from cloister.runs import progress_line
from cloister.runs.progress import Progress
from cloister.runs.progress_line import KEPT_FREE, Part, ProgressLine, Rate, fitted
from cloister.studies.progress import CellProgress


class Terminal(io.StringIO):
    """What a terminal is to those who write to it."""

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line_of(number: int, accuracy: float | None = 0.9123, epsilon: float = 0.8301) -> dict:
    score = {} if accuracy is None else {"accuracy": accuracy}
    return {"round": number, "epsilon": epsilon, **score}


def progress_of(stream: io.StringIO, show: bool | None = True, rounds: int = 60) -> tuple[Progress, Clock]:
    clock = Clock()
    made = Progress(show, rounds, "dp_fedavg", 2.0, stream=stream, clock=clock)
    made.begin(0)
    return made, clock


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "dp_fedavg  round 12/60  accuracy 0.912  epsilon 0.84 of 2  2.0 rounds/s  0:24 left"),
        (80, "round 12/60  accuracy 0.912  epsilon 0.84 of 2  2.0 rounds/s  0:24 left"),
        (60, "round 12/60  accuracy 0.912  epsilon 0.84 of 2  0:24 left"),
        (40, "round 12/60  0.912  epsilon 0.84  0:24"),
        (25, "12/60  epsilon 0.84"),
    ],
)
def test_what_matters_least_is_left_out_on_narrow_terminals(width, expected):
    made, clock = progress_of(io.StringIO())
    for number in range(1, 13):
        clock.now += 0.5
        made.advance(line_of(number))
    drawn = made.drawn(width - KEPT_FREE).plain
    assert len(drawn) <= width - KEPT_FREE
    assert drawn.lstrip("━─ ") == expected
    assert drawn.startswith("━") == (width >= 100)


def test_a_terminal_shows_one_line_that_is_drawn_over(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    made, clock = progress_of(terminal, None)
    with made:
        for number in range(1, 6):
            clock.now += 1
            made.advance(line_of(number))
    written = terminal.getvalue()
    assert written.count("\n") <= 2, "one line when it ends, and none on the way"
    assert "\x1b[" in written
    assert "round 5/60" in written


def test_colors_follow_no_color(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    colored = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    for value, expected in ((None, True), ("1", False)):
        monkeypatch.delenv("NO_COLOR", raising=False)
        if value is not None:
            monkeypatch.setenv("NO_COLOR", value)
        terminal = Terminal()
        with progress_of(terminal)[0] as made:
            made.advance(line_of(3))
        assert bool(colored.search(terminal.getvalue())) == expected


def test_elsewhere_lines_are_plain_and_sparse():
    file = io.StringIO()
    made, clock = progress_of(file, rounds=1000)
    with made:
        for number in range(1, 1001):
            clock.now += 0.1
            made.advance(line_of(number))
    lines = file.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "dp_fedavg, round 100/1000, accuracy 0.912, epsilon 0.84 of 2, 10 rounds/s, 1:30 left"
    assert lines[-1].endswith("in 1:40")
    assert "\x1b" not in file.getvalue()


def test_a_slow_run_is_heard_of_every_half_minute_and_a_quick_one_not_at_all():
    slow, quick = io.StringIO(), io.StringIO()
    for file, seconds in ((slow, 7.0), (quick, 0.001)):
        made, clock = progress_of(file, rounds=100)
        for number in range(1, 20):
            clock.now += seconds
            made.advance(line_of(number))
    assert [line.split(", ")[1] for line in slow.getvalue().splitlines()] == [f"round {n}/100" for n in (5, 10, 15)]
    assert quick.getvalue() == ""


@pytest.mark.parametrize(("show", "terminal"), [(False, True), (False, False), (None, False)])
def test_nothing_is_shown_to_those_who_do_not_want_it(show, terminal):
    stream = Terminal() if terminal else io.StringIO()
    made, clock = progress_of(stream, show)
    with made:
        clock.now += 100
        made.advance(line_of(30))
    assert stream.getvalue() == ""


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    made, clock = progress_of(stream)
    with made:
        clock.now += 100
        made.advance(line_of(30))
    assert stream.getvalue().startswith("dp_fedavg, round 30/60")
    assert "\x1b" not in stream.getvalue()


def test_a_run_without_privacy_says_so_and_a_list_of_budgets_its_largest():
    made, _ = progress_of(io.StringIO())
    made.advance(line_of(3, epsilon=float("inf")))
    assert "no privacy" in made.text()
    assert "epsilon" not in made.text()
    several = Progress(True, 9, "pfl", [1.0, 4.0], stream=io.StringIO())
    several.advance(line_of(3))
    assert "epsilon 0.84 of 4" in several.text()


def test_the_last_score_stays_between_evaluations():
    made, _ = progress_of(io.StringIO())
    made.advance(line_of(3))
    made.advance(line_of(4, accuracy=None))
    assert "accuracy 0.912" in made.text()


def test_the_rate_forgets_the_first_step_and_old_ones():
    rate = Rate(0.0, 0)
    assert rate.per_second is None
    rate.add(20.0, 1)  # with all that comes before the first round
    assert rate.left(11, 20.0) == pytest.approx(200)
    for second in range(1, 11):
        rate.add(20.0 + second, 1 + second)
    assert rate.per_second == pytest.approx(1.0)
    assert rate.left(21, 31.0) == pytest.approx(9.0), "a second has gone since the last round"
    for step in range(1, 11):
        rate.add(30.0 + 10 * step, 11 + step)
    assert rate.per_second == pytest.approx(0.1), "what was half a minute ago no longer counts"


def test_a_resumed_run_counts_from_where_it_was():
    clock = Clock()
    made = Progress(True, 100, "dp_fedavg", None, stream=io.StringIO(), clock=clock)
    made.begin(50)
    for number in (51, 52, 53):
        clock.now += 1
        made.advance(line_of(number))
    assert "1.0 rounds/s, 0:47 left" in made.text()


@pytest.mark.parametrize("width", range(1, 130, 7))
def test_a_line_never_is_longer_than_its_terminal(width):
    parts = [Part("a" * 30, weight=1), Part("round 1000/10000", "1000/10000", weight=9), Part("b" * 9, "b", weight=6)]
    line = ProgressLine(True, 10, stream=io.StringIO())
    line.update(3, parts)
    assert len(line.drawn(width).plain) <= width
    said = fitted(parts, width)
    assert sum(len(text) for _, text in said) + 2 * max(len(said) - 1, 0) <= width


def test_a_terminal_without_these_characters_has_a_bar_of_others():
    line = ProgressLine(True, 4, stream=io.StringIO())
    line.update(2, [Part("half")])
    assert re.match(r"#+\.+  half", line.drawn(60, ascii_only=True).plain)
    assert line.drawn(60, ascii_only=True).plain.isascii()


class Cell:
    """As much of a cell as a line needs."""

    def __init__(self, folder: str, rounds: int, epsilon: float | None) -> None:
        self.folder = folder
        self.experiment = type("Experiment", (), {"values": {"rounds": rounds, "epsilon": epsilon}})


def test_a_study_says_where_its_present_run_is():
    cells = [Cell("open", 10, None), Cell("private", 10, 2.0)]
    file, clock = io.StringIO(), Clock()
    made = CellProgress(True, cells, (), 1, stream=file, clock=clock)
    made.at(cells[0], line_of(10, epsilon=float("inf")))
    made.ended(cells[0], False)
    clock.now += 5
    made.at(cells[1], line_of(5))
    assert file.getvalue().startswith("1/2 runs, private, round 5/10, accuracy 0.912, epsilon 0.84 of 2, ")
    made.ended(cells[1], True)
    assert made.text().startswith("1/2 runs, 1 failed")
    several = CellProgress(True, cells, (), 2, stream=io.StringIO(), clock=clock)
    several.at(cells[0], line_of(5))
    assert several.text().startswith("0/2 runs, 2 at a time")
    assert "accuracy" not in several.text(), "of two runs at a time it would be now the one's, now the other's"


def test_the_line_keeps_room_for_an_interruption(monkeypatch):
    """A terminal that shows ^C at the end of a full line would begin another one."""
    monkeypatch.setattr(progress_line, "LONGEST_BAR", 1000)
    line = ProgressLine(True, 4, stream=io.StringIO())
    line.update(2, [Part("half")])
    console = Console(file=io.StringIO(), width=60)
    with console.capture() as shown:
        console.print(line, end="")
    assert len(shown.get().rstrip("\n")) == 60 - KEPT_FREE


def test_what_is_said_meanwhile_has_a_line_of_its_own(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_of(terminal)[0] as made:
        made.advance(line_of(3))
        say("note: something to know", err=True)
    before, _, after = terminal.getvalue().partition("note: something to know")
    left = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", before.rpartition("\x1b[2K")[2])
    assert left == "", "the line is wiped first"
    assert after.startswith("\n")
    assert "round 3/60" in after, "and drawn again"
