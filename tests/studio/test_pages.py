"""What pages say: what the files say, reasons where these are broken, and names as they are."""

from __future__ import annotations

import hashlib
import html
import json
import re
from pathlib import Path

import markupsafe
import pytest
from studio_runs import ODD, all_kinds, owner, train

import cloister as cl
from cloister.studio.listing import Lister
from cloister.studio.places import Places
from conftest import toy_task
from trained import task_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return all_kinds(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def client(runs):
    return owner(runs)


def words_of(page: str) -> str:
    """Text without tags, as a reader has it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def events_of(answer: str) -> list[tuple[str, dict]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer)
    return [(name, json.loads(data)) for name, data in found]


def test_the_list_has_every_folder_with_its_state_or_the_reason(client, runs):
    page = client.get("/").text
    words = words_of(page)
    for name in ("one", "torn", "altered", ODD):
        assert f'data-run="{markupsafe.escape(name)}"' in page
    assert "damaged : Expected a readable description.json" in words
    assert "old : Expected a run folder of format 5, found format 2" in words
    assert "empty : no run is inside" in words
    assert f"link : Expected folders inside {runs}, found that link is a link to another place" in words
    assert "linked-file : Expected files inside" in words
    assert "study folder 2 0 0" in words
    assert "Traceback" not in words


def test_a_row_has_what_the_certificate_says(runs):
    row = Lister(Places(runs)).row(runs / "one")
    certificate = json.loads((runs / "one" / "certificate.json").read_text())
    lines = [json.loads(line) for line in (runs / "one" / "metrics.jsonl").read_text().splitlines()]
    assert (row.state, row.method, row.data, row.rounds, row.planned) == ("ended", "dp_fedavg", "toy", 3, 3)
    assert (row.epsilon, row.budget, row.delta) == (certificate["prices"][0]["epsilon_pld"], 4.0, 1e-2)
    assert row.score == lines[-1]["accuracy"]


def test_files_are_read_again_when_they_change_and_only_then(runs, monkeypatch):
    lister = Lister(Places(runs))
    reads, real = [], Lister._read
    monkeypatch.setattr(Lister, "_read", lambda self, path, stamp: reads.append(path) or real(self, path, stamp))
    lister.all()
    first = len(reads)
    lister.all()
    assert len(reads) == first > 5
    with (runs / "torn" / "metrics.jsonl").open("ab") as file:
        file.write(b"x")
    lister.all()
    assert reads[first:] == [runs / "torn"]


def test_a_torn_line_does_not_keep_a_run_from_being_shown(client):
    assert client.get("/run/torn").status_code == 200
    events = events_of(client.get("/api/follow/torn").text)
    assert [name for name, _ in events] == ["news", "end"]
    assert [line["round"] for line in events[0][1]["lines"]] == [1, 2, 3]


def test_a_run_that_has_ended_is_streamed_whole_and_the_stream_ends(client, runs):
    (_, news), (name, end) = events_of(client.get("/api/follow/one").text)
    assert name == "end"
    assert end["state"] == "ended"
    lines = [json.loads(line) for line in (runs / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epsilon"] for line in news["lines"]] == [line["epsilon"] for line in lines]
    assert all(line["sent"] > 0 for line in news["lines"])


def test_files_that_do_not_agree_are_said_to_on_the_page_of_the_run(client):
    assert client.get("/api/agreement/one").json()["agree"]
    found = client.get("/api/agreement/altered").json()
    assert not found["agree"]
    assert found["words"].startswith("Expected")
    for address in ("/certificate/altered", "/report/altered", "/study/altered", "/run/damaged", "/run/old"):
        answer = client.get(address)
        assert answer.status_code == 422, address
        assert "Expected" in words_of(answer.text)
        assert "Traceback" not in answer.text


def test_names_are_text_wherever_they_stand(client, runs):
    name = ODD.replace("%", "%25").replace("&", "%26").replace('"', "%22").replace("<", "%3C").replace(">", "%3E")
    for address in ("/", f"/run/{name}", f"/study/{name}", f"/report/{name}", f"/overlay?run={name}"):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "<b>run" not in answer.text
    assert ODD in words_of(client.get(f"/run/{name}").text)


def test_exact_figures_are_marked(client):
    page = client.get("/run/one").text
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        exact = any(f'id="{name}"' in figure for name in ("norms", "clipped"))
        assert ("NOT PRIVATE" in figure) == exact
    assert "NOT PRIVATE" in client.get("/overlay?run=one&run=torn").text


def test_a_study_has_means_with_their_intervals(client, runs):
    words = words_of(client.get("/study/study").text)
    scores = []
    for seed in (0, 1):
        lines = (runs / "study" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        scores.append(json.loads(lines[-1])["accuracy"])
    mean, half = sum(scores) / 2, 12.706204736 * abs(scores[0] - scores[1]) / 2  # Student's t, one degree of freedom
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    assert f"accuracy {mean:.4f} {low:.4f} {high:.4f} 2" in words
    assert "Test accuracy at equal epsilon" in words
    assert "2 runs, verified when this page was loaded" in words


def test_a_reproduction_has_the_papers_numbers_beside_ours(tmp_path):
    train(tmp_path / "table" / "one")
    (tmp_path / "table" / "reproduce.json").write_text("{}")
    text = "# Table 1\n\n| row | paper | here |\n| --- | --- | --- |\n| <b>A | 82.20 | 36.39 |\n\n- Scale: tiny.\n"
    (tmp_path / "table" / "reproduce.md").write_text(text)
    client = owner(tmp_path)
    assert "table reproduction 1" in words_of(client.get("/").text)
    words = words_of(client.get("/study/table").text)
    assert "Beside the paper row paper here <b>A 82.20 36.39 What is said of it Scale: tiny." in words
    (tmp_path / "table" / "reproduce.md").write_text("| a | b |\n| c |\n")
    assert "Beside the paper" not in client.get("/study/table").text


def test_a_study_with_a_broken_run_shows_the_others(tmp_path):
    for seed in (0, 1):
        train(tmp_path / "study" / f"seed-{seed}", seed=seed)
    (tmp_path / "study" / "seed-1" / "ledger.jsonl").write_text("")
    words = words_of(owner(tmp_path).get("/study/study").text)
    assert "study/seed-1 is left out. Expected" in words
    assert "1 run, verified" in words


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/overlay", 422, "Expected 1 to 200 runs, found 0"),
        ("/nothing", 404, "Expected an address of this page"),
        ("/study/empty", 422, "found no description.json"),
        ("/api/plan", 200, "Expected a number for clients"),
        ("/api/agreement/nothing", 404, "Expected a folder in"),
    ],
)
def test_mistakes_are_one_sentence(client, address, status, words):
    answer = client.get(address)
    assert answer.status_code == status
    assert words in html.unescape(answer.text)
    assert "Traceback" not in answer.text


def test_certificate_and_report_are_those_of_the_commands(client, runs, tmp_path):
    from cloister.publication.certificate import page_of
    from cloister.publication.html import html as certificate

    assert client.get("/certificate/one").content == certificate(page_of(runs / "one"))
    cl.report(runs / "one", tmp_path / "report.html", labels=False)
    assert client.get("/report/one").text == (tmp_path / "report.html").read_text()


def test_nothing_is_written_anywhere_in_the_folder(client, runs):
    def state() -> dict[str, tuple[int, str]]:
        files = [path for path in sorted(runs.rglob("*")) if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}

    before = state()
    pages = ("/", "/run/one", "/study/study", "/report/study", "/certificate/one")
    for address in (*pages, "/api/follow/one", "/api/list", "/api/agreement/one"):
        assert client.get(address).status_code == 200
    assert state() == before


def test_runs_of_every_kind_are_shown(tmp_path):
    """Samples with budgets of their own, no privacy at all, and another metric than accuracy."""
    samples = cl.methods.pfl(clip_norm=1.0, batch_size=4, lr=0.1)
    epsilons = [2.0 + client for client in range(8)]
    usual = {"rounds": 2, "engine": "loop", "cohort": cl.full()}
    recorded = ["norms", "gradients", "clipping", "thresholds"]
    more = {"epsilon": epsilons, "delta": 1e-2, "record": recorded}
    cl.run(samples, toy_task(), folder=tmp_path / "samples", **more, **usual)
    plain = cl.methods.fedavg(lr=0.1, local_steps=1)
    cl.run(plain, toy_task(), folder=tmp_path / "plain", **usual)
    cl.run(plain, task_of("regression"), folder=tmp_path / "regression", **usual)
    client = owner(tmp_path)
    for name in ("samples", "plain", "regression"):
        page = client.get(f"/run/{name}").text
        (_, news), (last, _) = events_of(client.get(f"/api/follow/{name}").text)
        assert last == "end"
        assert [line["round"] for line in news["lines"]] == [1, 2]
        assert ("promises nothing to anybody" in page) == (name != "samples")
        if name == "samples":
            assert json.loads(html.unescape(re.search(r'data-fixed="(.*?)"', page)[1]))["budgets"] == [2.0, 9.0]
            assert [(one["of"], one["clip"]) for one in news["measured"]] == [("gradients", 1.0)] * 2
            assert all(one["mean"] > 0 for one in news["measured"])
        else:
            assert all(line["epsilon"] is None for line in news["lines"])
            assert "no bound" not in page
    assert news["metric"] not in ("accuracy", None)
    assert client.get("/").status_code == 200
    assert client.get("/overlay?run=samples&run=plain&run=regression").status_code == 200


@pytest.mark.parametrize("which", ["run", "study", "nothing", "empty"])
def test_any_folder_can_be_looked_at(tmp_path, which):
    folder = tmp_path / "folder"
    if which == "run":
        train(folder)
    elif which == "study":
        train(folder / "one")
        (folder / "results.json").write_text("{}")
    elif which == "empty":
        folder.mkdir()
    client = owner(folder)
    words = words_of(client.get("/").text)
    expected = {"run": "this folder ended", "study": "this folder comparison 1"}
    assert expected.get(which, "There are no runs in") in words
    if which in expected:
        assert client.get(f"/{which}/").status_code == 200
