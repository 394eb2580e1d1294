"""A run folder's files vouch for one another: what was altered, cut short or put back is refused, in one sentence."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import cloister as cl
from cloister.errors import CloisterError, Corrupted, RepeatedRounds
from cloister.privacy.accountant import epsilon as price
from cloister.privacy.events import PoissonGaussian
from cloister.runs import files, training
from cloister.runs.folder import RunFolder
from conftest import Killed, killed_in_round, look_whole

TASK = cl.data.digits(clients=40)
METHOD = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0)


def go(folder: Path, **more):
    settings = {
        "rounds": 9,
        "delta": 1e-3,
        "cohort": cl.poisson(0.5),
        "engine": "vectorized",
        "progress": False,
        **more,
    }
    return cl.run(METHOD, TASK, folder=folder, **settings)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "ended"
    go(folder, checkpoint_every=4)
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """Stopped in round 7, before the first checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=8):
        go(folder, secure_rng=True, checkpoint_every=100)
    return folder


@pytest.fixture
def copy(request, tmp_path) -> Path:
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "copy"))


def epsilon(folder: Path) -> float:
    return RunFolder.open(folder).certificate().epsilon


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("copy", ["interrupted"], indirect=True)
def test_a_ledger_loses_nothing_that_was_reported(copy):
    before = epsilon(copy)
    ledger = copy / "ledger.jsonl"
    os.truncate(ledger, ledger.stat().st_size - 1)
    assert epsilon(copy) == before, "the newline alone"
    ledger.write_bytes(b"".join(lines_of(ledger)[:1]))
    with pytest.raises(Corrupted, match=r"ledger.*round 1 of metrics.jsonl remembers.*lines were removed"):
        epsilon(copy)
    with pytest.raises(Corrupted, match="lines were removed"):
        go(copy, secure_rng=True, resume=True)


@pytest.mark.parametrize("keep_fraction", range(1, 7))
@pytest.mark.parametrize("copy", ["interrupted"], indirect=True)
def test_every_line_that_some_round_remembers_must_be_there(copy, keep_fraction):
    (copy / "ledger.jsonl").write_bytes(b"".join(lines_of(copy / "ledger.jsonl")[:keep_fraction]))
    with pytest.raises(Corrupted, match="lines were removed"):
        epsilon(copy)


def test_ledger_and_checkpoint_that_were_put_back_together_are_refused(ended, tmp_path):
    """An earlier state of the same run, beside the certificate of its end."""
    folder = tmp_path / "copy"
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=6):
        go(folder, checkpoint_every=4)
    earlier = {
        name: (folder / name).read_bytes() for name in ("ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl")
    }
    go(folder, checkpoint_every=4, resume=True)
    assert epsilon(folder) == epsilon(ended)
    for names in (
        ["ledger.jsonl", "checkpoint.safetensors"],
        ["ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl"],
        ["checkpoint.safetensors"],
        ["checkpoint.safetensors", "metrics.jsonl"],
        ["metrics.jsonl"],
        ["ledger.jsonl"],
    ):
        now = {name: (folder / name).read_bytes() for name in names}
        for name in names:
            (folder / name).write_bytes(earlier[name])
        with pytest.raises(Corrupted):
            epsilon(folder)
        with pytest.raises(Corrupted):
            go(folder, checkpoint_every=4, resume=True)
        for name in names:
            (folder / name).write_bytes(now[name])
    assert epsilon(folder) == epsilon(ended)


ALL = ["description.json", "ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl"]
RESULTS = ["model.safetensors", "model.json", "certificate.json", "certificate.txt"]


@pytest.mark.parametrize("name", [*ALL, *RESULTS])
@pytest.mark.parametrize("copy", ["ended"], indirect=True)
def test_a_changed_byte_or_a_missing_file_is_found_out(copy, name):
    path = copy / name
    whole = path.read_bytes()
    for place in {0, 1, len(whole) // 3, len(whole) // 2, 2 * len(whole) // 3, len(whole) - 2}:
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(CloisterError):
            epsilon(copy)
    for shorter in (whole[:-5], whole[: len(whole) // 2], b"", whole + b"{}\n"):
        path.write_bytes(shorter)
        with pytest.raises(CloisterError):
            epsilon(copy)
    path.unlink()
    if name == "certificate.json":  # then the run has not ended, and ending it writes the same again
        go(copy, resume=True)
        assert json.loads(path.read_text()) == json.loads(whole)
    else:
        with pytest.raises(CloisterError):
            epsilon(copy)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("copy", ["interrupted"], indirect=True)
def test_so_it_is_in_a_run_that_has_not_ended(copy, name):
    path = copy / name
    whole = path.read_bytes()
    for broken in (whole[:10] + b"\x00" + whole[11:], whole + b"{}\n", whole + b"\xff\n", b"[]\n", b""):
        if name == "metrics.jsonl" and broken == b"":
            continue  # nothing remembers them: the checkpoint is that of the start
        path.write_bytes(broken)
        for look in (lambda: epsilon(copy), lambda: go(copy, secure_rng=True, resume=True)):
            with pytest.raises(CloisterError) as found:
                look()
            assert str(found.value).startswith("Expected ")


def test_a_certificate_for_less_than_was_spent_is_found_out(ended, tmp_path):
    folder = Path(shutil.copytree(ended, tmp_path / "copy"))
    path = folder / "certificate.json"
    stored = json.loads(path.read_text())
    stored["prices"][0]["epsilon_pld"] /= 2
    path.write_text(look_whole(stored))
    with pytest.raises(Corrupted, match="prices"):
        epsilon(folder)


def rewritten(folder: Path, tmp_path: Path, change) -> Path:
    """A copy of a run whose certificate was changed, with the hashes that make it look whole."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    stored = json.loads((copy / "certificate.json").read_text())
    change(copy, stored)
    for name in stored["files"]:
        stored["files"][name] = hashlib.sha256((copy / name).read_bytes()).hexdigest()
    (copy / "certificate.json").write_text(look_whole(stored))
    return copy


def other_software(copy: Path, stored: dict) -> None:
    stored["versions"]["scipy"] = "0.1"
    stored["prices"][0]["epsilon_pld"] = 0.01


def other_words(copy: Path, stored: dict) -> None:
    stored["versions"]["scipy"] = "99"  # which has no say in them
    stored["trusted"] = "nobody"


def other_facts(copy: Path, stored: dict) -> None:
    stored["versions"]["cloister"] = "99"
    stored["secure_rng"] = True


def other_text(copy: Path, stored: dict) -> None:
    path = copy / "certificate.txt"
    path.write_text(path.read_text().replace("(PLD)", "or less (PLD)"))


def other_model(copy: Path, stored: dict) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize("change", [other_software, other_words, other_facts, other_text, other_model])
def test_a_change_with_hashes_to_match_is_found_out(ended, tmp_path, change):
    with pytest.raises(Corrupted):
        epsilon(rewritten(ended, tmp_path, change))


def test_a_certificate_by_other_software_is_read(ended, tmp_path):
    def newer(copy: Path, stored: dict) -> None:
        stored["versions"]["cloister"] = "99"
        stored["trusted"] = "in other words"

    assert epsilon(rewritten(ended, tmp_path, newer)) == epsilon(ended)


@pytest.mark.parametrize("name", ["description.json", "certificate.json", "metrics.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("copy", ["ended"], indirect=True)
def test_files_that_are_nested_without_end_are_one_sentence(copy, name):
    (copy / name).write_text("[" * 200_000)
    with pytest.raises(CloisterError):
        epsilon(copy)


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("copy", ["ended"], indirect=True)
def test_nothing_is_torn_once_a_run_has_ended(copy, name):
    with (copy / name).open("a") as file:
        file.write("x")
    with pytest.raises(Corrupted):
        epsilon(copy)


def test_a_run_that_is_stopped_before_it_has_computed_anything_ends_in_order(tmp_path):
    """Resumed with secure noise, it cannot pay for what was charged in vain."""
    folder, settings = tmp_path / "r", {"rounds": 7, "checkpoint_every": 5, "secure_rng": True}
    budget = price(PoissonGaussian(3.0, 0.5), 7, 1e-3) + 1e-6
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=7):
        go(folder, epsilon=budget, **settings)
    with pytest.warns(RepeatedRounds):
        run = go(folder, epsilon=budget, resume=True, **settings)
    assert len(run.history) == 6
    assert run.stopped
    assert epsilon(folder) == run.epsilon <= budget
    again = go(folder, epsilon=budget, resume=True, **settings)
    assert again.epsilon == run.epsilon


def test_what_comes_out_with_other_bits_after_all_is_paid_for(tmp_path, monkeypatch):
    """No list of what decides how sums are rounded is complete: the model of before is what tells."""
    folder = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=7):
        go(folder, checkpoint_every=100)  # rounds 1 to 6 charged; lines of rounds 1 to 5 written
    real, rounds = training.run_round, []

    def otherwise(*args):
        rounds.append(args[3])
        outcome = real(*args)
        return outcome._replace(w=outcome.w + 1e-7 if rounds == [1, 2, 3] else outcome.w)

    monkeypatch.setattr(training, "run_round", otherwise)
    with pytest.warns(RepeatedRounds, match=r"rounds 3 to 6.*came out with other bits"):
        run = go(folder, checkpoint_every=100, resume=True)
    assert rounds == [1, 2, 3, *range(3, 10)]
    charged = [entry.round for entry in RunFolder.open(folder).ledger().entries]
    assert charged == [1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8, 9]
    assert epsilon(folder) == run.epsilon
    assert [line["round"] for line in run.history] == list(range(1, 10))


def test_a_renewal_on_the_way_survives_another_crash(tmp_path, monkeypatch):
    folder = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=7):
        go(folder, checkpoint_every=100)
    real, rounds = training.run_round, []

    def otherwise(*args):
        rounds.append(args[3])
        if len(rounds) == 5:
            raise Killed
        outcome = real(*args)
        return outcome._replace(w=outcome.w + 1e-7 if len(rounds) == 3 else outcome.w)

    monkeypatch.setattr(training, "run_round", otherwise)
    with pytest.warns(RepeatedRounds), pytest.raises(Killed):
        go(folder, checkpoint_every=100, resume=True)  # 1, 2, then 3 with other bits, 3 anew, killed in 4
    monkeypatch.setattr(training, "run_round", real)
    with pytest.warns(RepeatedRounds):
        go(folder, checkpoint_every=100, resume=True)
    charged = [entry.round for entry in RunFolder.open(folder).ledger().entries]
    assert charged == [1, 2, 3, 4, 5, 6, 3, *range(3, 10)], "nothing after the renewal is repeated for free"


def test_a_disk_without_locks_will_do(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    go(tmp_path / "r", rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize(
    "name", ["certificate.json", "checkpoint.safetensors", "description.json", "ledger.jsonl", "metrics.jsonl"]
)
def test_a_folder_in_the_place_of_a_file_is_refused_in_one_sentence(ended, tmp_path, name):
    folder = Path(shutil.copytree(ended, tmp_path / "copy"))
    (folder / name).unlink()
    (folder / name).mkdir()
    for use in (lambda: epsilon(folder), lambda: go(folder, resume=True, checkpoint_every=4)):
        with pytest.raises(CloisterError, match="Expected"):
            use()


def test_a_file_that_may_not_be_read_is_not_called_damaged(ended, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(ended, tmp_path / "copy"))
    real = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "checkpoint.safetensors":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CloisterError, match="found Permission denied") as found:
        epsilon(folder)
    assert not isinstance(found.value, Corrupted)


@pytest.mark.parametrize("copy", ["ended"], indirect=True)
def test_a_folder_of_another_format_is_refused_with_a_remedy(copy):
    path = copy / "description.json"
    for found in (1, 2, 99):
        path.write_text(json.dumps({"format": found, "method": "laid out in another way"}))
        with pytest.raises(CloisterError, match=f"found format {found} in .*: use the version"):
            RunFolder.open(copy)


@pytest.mark.slow
def test_whoever_looks_at_a_run_under_way_sees_no_damage(tmp_path, monkeypatch):
    """Checkpoint after checkpoint is replaced while somebody looks."""
    folder, failures, looks = tmp_path / "r", [], []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            if (folder / "description.json").exists():
                try:
                    epsilon(folder)
                    RunFolder.open(folder).metrics()
                    looks.append(1)
                except Exception as error:
                    failures.append(error)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        go(folder, rounds=150, checkpoint_every=1)
    finally:
        over.set()
        watcher.join()
    assert not failures
    assert looks


HALF = """
import os, signal, sys
from pathlib import Path
from cloister.runs.files import new_folder

with new_folder(Path(sys.argv[1])) as place:
    (place / "half").write_text("begun")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    killed = subprocess.run([sys.executable, "-c", HALF, str(tmp_path / "runs" / "a")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [p.name.startswith(".a.") for p in (tmp_path / "runs").iterdir()] == [True]
    with files.new_folder(tmp_path / "runs" / "b") as place, files.new_folder(tmp_path / "runs" / "c") as other:
        (place / "mine").write_text("")  # what somebody is at work on stays
        (other / "mine").write_text("")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["b", "c"]
    assert (tmp_path / "runs" / "b" / "mine").exists()


def test_folders_above_a_run_are_entered_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", lambda path: synced.append(path))
    with files.new_folder(tmp_path / "new" / "runs" / "a"):
        pass
    assert synced == [tmp_path, tmp_path / "new", tmp_path / "new" / "runs"]


def test_what_failed_leaves_nothing(tmp_path):
    with pytest.raises(Killed), files.new_folder(tmp_path / "a"):
        raise Killed
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = """
import sys, torch
torch.set_num_threads(1)
import cloister as cl
from cloister.runs import training

folder, dies = sys.argv[1], sys.argv[2] == "dies"
if dies:
    real, rounds = training.run_round, []
    def run_round(*args):
        rounds.append(1)
        if len(rounds) == 6:
            raise SystemExit(9)
        return real(*args)
    training.run_round = run_round
method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=3, noise_multiplier=3.0)
task = cl.data.digits(clients=12)
cl.run(method, task, rounds=6, delta=1e-3, engine="vectorized", folder=folder, checkpoint_every=2, resume=not dies)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    __import__("torch").backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has no other way to add"
)
def test_a_processor_that_adds_in_another_order_repeats_nothing_for_free(tmp_path):
    def play(words: str, capability: str | None) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
        if capability:
            environment["ATEN_CPU_CAPABILITY"] = capability
        command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "r"), words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert play("dies", None).returncode == 9
    resumed = play("resumes", "default")
    assert resumed.returncode == 0, resumed.stderr
    assert "and is charged" in resumed.stderr
    rounds = [entry.round for entry in RunFolder.open(tmp_path / "r").ledger().entries]
    assert rounds == [1, 2, 3, 4, 5, 5, 6]
