"""Folders from strangers: whatever is in one of them, the others are shown, and every answer is a sentence."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
from studio_runs import owner, train

from cloister.studio import places


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers") / "run"
    train(folder, record=["norms"])
    return folder


def with_line(folder, file="metrics.jsonl", **values):
    *lines, last = (folder / file).read_text().splitlines()
    (folder / file).write_text("\n".join([*lines, json.dumps({**json.loads(last), **values})]) + "\n")


def with_price(folder, prices):
    found = json.loads((folder / "certificate.json").read_text())
    (folder / "certificate.json").write_text(json.dumps({**found, "prices": prices}))


def with_method(folder, name):
    found = json.loads((folder / "description.json").read_text())
    found["method"]["name"] = name
    (folder / "description.json").write_text(json.dumps(found))


DAMAGE = {
    "endless round": lambda folder: with_line(folder, round=float("inf")),
    "no price": lambda folder: with_price(folder, []),
    "price beyond numbers": lambda folder: with_price(folder, [{"epsilon_pld": 1e306}]),
    "score beyond numbers": lambda folder: with_line(folder, accuracy=10**400),
    "metric without a name": lambda folder: with_line(folder, monitor=["x"]),
    "infinite list": lambda folder: with_line(folder, more=[float("inf")]),
    "cohort of words": lambda folder: with_line(folder, cohort="x"),
    "half a letter": lambda folder: with_method(folder, "\ud800"),
    "measured at no round": lambda folder: with_line(folder, "measurements.jsonl", round=float("inf")),
    "deep": lambda folder: (folder / "measurements.jsonl").write_text(
        '{"record": ["norms"]}\n' + '{"a":' * 5000 + "1" + "}" * 5000 + "\n"
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_one_damaged_run_keeps_nobody_from_seeing_others(made, tmp_path, name):
    for one in ("good", "study/bad", "bad"):
        shutil.copytree(made, tmp_path / one)
    for one in ("study/bad", "bad"):
        DAMAGE[name](tmp_path / one)
    client = owner(tmp_path)
    assert 'href="/run/good"' in client.get("/").text
    assert "good" in client.get("/api/list").json()["runs"]
    assert client.get("/overlay?run=bad&run=good").status_code == 200
    assert client.get("/run/bad").status_code == 200
    for address in ("/study/study", "/report/bad", "/api/follow/bad"):
        assert client.get(address).status_code in (200, 422)


def test_names_that_are_no_text(made, tmp_path):
    shutil.copytree(made, tmp_path / "good")
    shutil.copytree(made, tmp_path / os.fsdecode(b"bad\xff"))
    client = owner(tmp_path)
    page = client.get("/").text
    assert "bad?" in page
    assert "Expected a name in UTF-8" in page
    assert list(client.get("/api/list").json()["runs"]) == ["good"]


def test_files_that_are_too_large_are_not_read(made, tmp_path):
    shutil.copytree(made, tmp_path / "large")
    os.truncate(tmp_path / "large" / "metrics.jsonl", places.MOST_BYTES + 1)
    client = owner(tmp_path)
    for address in ("run", "study", "report", "api/follow"):
        assert client.get(f"/{address}/large").status_code == 404
    assert "Expected files of at most" in client.get("/").text


def test_links_upwards_do_not_multiply(made, tmp_path):
    shutil.copytree(made, tmp_path / "study" / "run")
    for number in range(200):
        (tmp_path / "study" / f"up{number}").symlink_to(".")
    client = owner(tmp_path)
    assert client.get("/api/list").json()["studies"]["study"]["runs"] == 1
    assert "1 run, verified" in client.get("/study/study").text


def test_a_comparison_of_nonsense_is_one_sentence(made, tmp_path):
    shutil.copytree(made, tmp_path / "study" / "run")
    (tmp_path / "study" / "compare.json").write_text('{"rows": [{"label": "run", "target": "x"}]}')
    answer = owner(tmp_path).get("/study/study")
    assert answer.status_code == 422
    assert "Expected the files of a run" in answer.text


def test_an_interrupted_run_has_spent_what_its_ledger_says(made, tmp_path):
    """A round is charged before it has a line."""
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "run" / "certificate.json").unlink()
    client = owner(tmp_path)
    assert client.get("/api/list").json()["runs"]["run"]["epsilon"] == "4.000"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    spent = client.get("/api/list").json()["runs"]["run"]["epsilon"]
    assert spent.startswith("more than ")


def test_plans_have_a_limit_of_memory():
    code = (
        "import resource; from cloister.studio import plan_worker as w; w._limit_memory(); "
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) <= 4 * 2**30
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != int(done.stdout), "of the worker alone"
