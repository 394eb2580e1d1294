"""SIGKILL at random instants of real processes.

One case is a kill: a child process (forked, so that nothing is imported again) begins or resumes a run, and is killed
after a random time. When a run has survived a few kills, or ended before one, it is resumed to its end and compared
with one that was left alone. Every round that leaves is told through a pipe, so that it is known after the kill as
well.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from torture.campaign import Campaign, Case, Tally
from torture.tiny_runs import NAMES, SECURE, Releases, go, reference, uncounted, watched, wrong_end

KILLS = 3
"""After so many a run may end."""


@dataclass
class Victim:
    """A run that is killed now and then."""

    name: str
    folder: Path
    kills: int = 0
    releases: Releases = field(default_factory=Releases)


def kills(folder: Path, seed: int) -> Case:
    """One kill at a random instant; and the end of the run, when it has had enough of them."""
    long: dict[str, float] = {}
    current: list[Victim] = []

    def case(number: int, tally: Tally) -> None:
        chance = random.Random(f"{seed} {number}")
        if not current:
            name = chance.choice(NAMES)
            place = folder / f"run-{number}"
            shutil.rmtree(place, ignore_errors=True)
            current.append(Victim(name, place / "run"))
        victim = current[0]
        if victim.name not in long:
            began = time.perf_counter()
            reference(victim.name, folder)
            go(victim.name, folder / "timed" / victim.name.replace(" ", "-"))
            long[victim.name] = (time.perf_counter() - began) / 2
            shutil.rmtree(folder / "timed")
        ended = attempt(victim, chance.uniform(0, long[victim.name]), tally)
        victim.kills += not ended
        if ended or victim.kills >= KILLS:
            finish(victim, folder, tally)
            current.clear()

    return case


def attempt(victim: Victim, seconds: float, tally: Tally) -> bool:
    """Let a child go on with the run, and kill it after so long; whether it had ended before."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(victim, writing)
    os.close(writing)
    time.sleep(seconds)
    try:
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    except ChildProcessError:
        status = 0
    with os.fdopen(reading, "rb") as pipe:
        for number in pipe.read():
            victim.releases.seen[number] += 1
    if os.WIFSIGNALED(status):
        tally.counts["kills"] += 1
        begun = victim.folder.exists()
        tally.counts["kills before the folder was there" if not begun else "kills of runs under way"] += 1
        if begun:
            _expect(uncounted(victim.name, victim.folder, victim.releases), victim)
        return False
    tally.counts["ended before the kill"] += 1
    if os.WEXITSTATUS(status):
        said = victim.folder.with_suffix(".error")
        raise AssertionError(f"{victim.name}: {said.read_text() if said.exists() else status}")
    return True


def _work(victim: Victim, writing: int) -> None:
    """In the child: begin or resume, and tell of every round."""
    status = 1
    try:
        with watched(Releases(), lambda number: os.write(writing, bytes([number]))):
            go(victim.name, victim.folder, resume=victim.folder.exists())
        status = 0
    except BaseException:
        victim.folder.parent.mkdir(parents=True, exist_ok=True)
        victim.folder.with_suffix(".error").write_text(traceback.format_exc()[-1500:])
    finally:
        os._exit(status)


def finish(victim: Victim, base: Path, tally: Tally) -> None:
    """Resume the run to its end, and compare."""
    resume = victim.folder.exists()
    with watched(victim.releases):
        go(victim.name, victim.folder, resume=resume)
    tally.counts["runs compared"] += 1
    tally.counts["runs compared, secure"] += victim.name.endswith(SECURE)
    _expect(wrong_end(victim.name, victim.folder, base, victim.releases), victim)
    left = [path.name for path in victim.folder.parent.iterdir() if path != victim.folder]
    drafts = [path.name for path in victim.folder.rglob("*.new")]
    _expect([f"{left + drafts} left behind"] if left or drafts else [], victim)
    shutil.rmtree(victim.folder.parent)


def _expect(wrong: list[str], victim: Victim) -> None:
    if wrong:
        raise AssertionError(f"{victim.name}, {victim.kills} kills: {'; '.join(wrong)}")


CAMPAIGN = Campaign("kills", "SIGKILL at a random instant", 1600, kills, least=4)
