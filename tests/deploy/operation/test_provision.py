"""`cloister federation init`: what is written, who can read it, and what is refused before anything is."""

from __future__ import annotations

import stat
import tomllib

import pytest

from cloister.cli import questions
from cloister.deploy.operation.provision import FederationFolder, next_steps, nodes_of
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.identity import PrivateKey
from cloister.errors import CloisterError


def made(command, path, *words):
    done = command("federation", "init", path, *words)
    assert done.returncode == 0, done.stderr
    return FederationFolder(path), done.stdout


def test_a_federation_is_laid_out_and_every_site_is_told_what_to_do(command, tmp_path):
    folder, said = made(command, tmp_path / "four hospitals", "--nodes", "cleveland, va", "method=pfl", "rounds=3")
    terms = Terms.load(folder.terms)
    assert terms.federation.names == ("cleveland", "va")
    assert terms.federation.name == "four hospitals"
    assert (terms.values["method"], terms.values["rounds"], terms.values["epsilon"]) == ("pfl", 3, 2.0)
    for name in ("server", "cleveland", "va"):
        assert stat.S_IMODE(folder.key(name).stat().st_mode) == 0o600
        assert PrivateKey.load(folder.key(name)).public == terms.register.key_of(name)
    assert stat.S_IMODE(folder.key().parent.stat().st_mode) == 0o700
    for words in (terms.digest, "federation trial", "serve", "join https://127.0.0.1:8443", "epsilon=2, delta=1e-5"):
        assert words in said


def test_nodes_that_have_keys_keep_them(command, tmp_path):
    own = PrivateKey.generate().public
    folder, said = made(
        command, tmp_path / "a", "--nodes", f"cleveland={own.text}, va={PrivateKey.generate().public.text}"
    )
    assert Terms.load(folder.terms).register.key_of("cleveland") == own
    assert [path.name for path in folder.key().parent.iterdir()] == ["server.key"]
    assert "federation trial" not in said
    assert "keys new" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "a,a"], "Expected every node once"),
        (["--nodes", "a,../b"], "letters, digits"),
        (["--nodes", "server,b"], "that is the name of the server"),
        (["--nodes", "0"], "at least 1"),
        (["--nodes", "a=ed25519:short"], "Expected a public key"),
        (["--url", "http://a"], "Expected the address of a server"),
        (["epsilon=-1"], "Expected epsilon > 0"),
        (["method=lab.methods:own"], "terms name no code"),
        (["colour=red"], "Expected a known key"),
        (["data=digits"], "Expected no choice but"),
        (["--schema", "nothing.toml"], "Expected a readable schema"),
        (["--shape", "wide"], "Expected the shape of one input"),
        (["--min-replies", "9"], "min_replies"),
        (["--sizes", "3,many"], "Expected the nodes' numbers of rows"),
        (["--sizes", "3,4"], "sizes"),
        (["standardize=0.05"], "Expected declared numbers of rows"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(command, tmp_path, words, message):
    done = command("federation", "init", tmp_path / "a", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_federation_is_not_written_over(command, tmp_path):
    folder, _ = made(command, tmp_path / "a")
    before = folder.terms.read_bytes()
    again = command("federation", "init", tmp_path / "a")
    assert again.returncode == 2
    assert "found" in again.stderr
    assert folder.terms.read_bytes() == before


def test_on_a_terminal_what_was_not_said_is_asked_for(monkeypatch, tmp_path):
    answers = {"Its name": "ours", "Nodes": "a, b", "Method": "pfl", "Epsilon": 1.5, "Rounds": 7}
    asked = []

    def prompt(question, default=None, type=None):
        asked.append(question)
        return next((answer for start, answer in answers.items() if question.startswith(start)), default)

    monkeypatch.setattr(questions.typer, "prompt", prompt)
    given = dict.fromkeys(("name", "nodes", "schema", "url", "shape", "classes"))
    said, values = questions.asked(tmp_path / "a", given, {"rounds": 3})
    assert (said["name"], said["nodes"], said["schema"]) == ("ours", "a, b", None)
    assert values == {"method": "pfl", "epsilon": 1.5, "rounds": 3}
    assert len(asked) <= 7


def test_a_wrong_answer_is_asked_for_again(monkeypatch, tmp_path, capsys):
    answers = iter(["a,a", "a,b"])
    monkeypatch.setattr(questions.typer, "prompt", lambda *_, **__: next(answers))
    assert questions._until_fine("Nodes", "4", nodes_of) == "a,b"
    assert "Expected every node once" in capsys.readouterr().err


def test_rows_that_are_no_table_have_a_shape(command, tmp_path):
    folder, _ = made(command, tmp_path / "a", "--shape", "1,8,8", "--classes", "10")
    found = tomllib.loads(folder.terms.read_text())
    assert found["samples"] == {"shape": [1, 8, 8], "classes": 10}
    both = command("federation", "init", tmp_path / "b", "--shape", "3", "--schema", tmp_path / "x.toml")
    assert both.returncode == 2


def test_the_steps_name_the_program_that_is_there(command, tmp_path):
    folder, _ = made(command, tmp_path / "a")
    assert "./here serve" in next_steps(folder, Terms.load(folder.terms), "./here")
    with pytest.raises(CloisterError):
        nodes_of(" , ")
