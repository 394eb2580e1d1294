"""`cloister federation`: lay one out, try it on one machine, see how it is doing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.commands import Command
from cloister.cli.output import file_and_words, interruptible, print_table, program, say
from cloister.errors import CloisterError, expect_count

if TYPE_CHECKING:
    from cloister.deploy.operation.provision import FederationFolder, Wishes

federation_app = typer.Typer(
    name="federation",
    help="A federation of machines: lay one out, try it here, see how it is doing.",
    no_args_is_help=True,
)
_ANY_KEYS = {"allow_extra_args": True, "ignore_unknown_options": True}

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the federation.")]
Nodes = Annotated[str | None, typer.Option(help="Their number, their names, or NAME=PUBLIC-KEY, with commas [4].")]
Schema = Annotated[Path | None, typer.Option(help="What the columns of everybody's tables are: a TOML file.")]
Shape = Annotated[str | None, typer.Option(help="Without tables: the shape of one input, such as 1,28,28.")]
Classes = Annotated[int | None, typer.Option(help="Without tables: how many classes there are.")]


@federation_app.command(cls=Command, options_metavar="DIR [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)
def init(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option(help="What people call it [the name of DIR].")] = None,
    nodes: Nodes = None,
    schema: Schema = None,
    shape: Shape = None,
    classes: Classes = None,
    url: Annotated[str | None, typer.Option(help="Where nodes find the server [https://127.0.0.1:8443].")] = None,
    min_replies: Annotated[int | None, typer.Option(help="Replies without which a round is not released.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that a round waits for replies.")] = 60.0,
    threshold: Annotated[int | None, typer.Option(help="Secure aggregation: members who open a mask together.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of rows, where they are public: 303,294,123,200.")] = None,
    test_mode: Annotated[bool, typer.Option("--test-mode", help="Everything from a seed: NOT PRIVATE.")] = False,
) -> None:
    """Lay a federation out in DIR: terms, keys and TLS certificates, and say what each site does.

    What is learned are the keys of `cloister run`, without those of data: method=pfl epsilon=2 delta=1e-5 rounds=20 are
    the defaults. On a terminal, what is not given is asked for.

    \b
    cloister federation init hospitals --nodes 4
    cloister federation init hospitals --nodes cleveland,va --schema schema.toml epsilon=2
    """
    path, words = _folder_and_words(ctx, "init")
    from cloister.deploy.operation.provision import next_steps, provision
    from cloister.deploy.terms.terms import Terms

    more: dict[str, Any] = {
        "min_replies": min_replies,
        "deadline": deadline,
        "threshold": threshold,
        "test_mode": test_mode,
    }
    more["sizes"] = None if sizes is None else tuple(_numbers(sizes, "the nodes' numbers of rows", "303,294"))
    given = {"name": name, "nodes": nodes, "schema": schema, "url": url, "shape": shape, "classes": classes}
    wishes = _wishes(path, words, given, more, ask=sys.stdin.isatty() and sys.stdout.isatty())
    folder = provision(path, wishes)
    say(next_steps(folder, Terms.load(folder.terms), program()))


@federation_app.command(cls=Command, options_metavar="DIR [KEY=VALUE ...] [OPTIONS]", context_settings=_ANY_KEYS)
def trial(
    ctx: typer.Context,
    nodes: Nodes = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with a file or a folder for every node [default: made up].")
    ] = None,
    schema: Schema = None,
    shape: Shape = None,
    classes: Classes = None,
    test_mode: Annotated[bool, typer.Option("--test-mode", help="Everything from a seed: NOT PRIVATE.")] = False,
) -> None:
    """Run a whole federation on this machine: a server and nodes as processes of their own, over TLS, with keys.

    Where DIR has no federation yet, one is laid out as by `init`. It ends with the server's certificate and each
    node's. The same command goes on with a trial that was interrupted.
    """
    path, words = _folder_and_words(ctx, "trial")
    from cloister.deploy.operation import trial as trials
    from cloister.deploy.operation.provision import FederationFolder, opened, provision

    folder = FederationFolder(path)
    if folder.terms.is_file():
        folder = opened(path)
        _expect_the_same(folder, words, nodes, schema)
    else:
        given = {"name": None, "schema": schema, "url": trials.free_url(), "shape": shape, "classes": classes}
        given["nodes"] = nodes or trials.names_in(data, schema)
        folder = provision(path, _wishes(path, words, given, {"test_mode": test_mode}, ask=False))
    with interruptible(path, f"`{program()} federation trial {path}` goes on from here"):
        _run_trial(folder, data)


def _folder_and_words(ctx: typer.Context, name: str) -> tuple[Path, list[str]]:
    path, words = file_and_words(ctx.args)
    if path is None:
        raise CloisterError(f"Expected a folder for the federation, found none: cloister federation {name} DIR.")
    return path, words


def _run_trial(folder: FederationFolder, data: Path | None) -> None:
    from cloister.cli.trial_progress import TrialProgress
    from cloister.deploy.operation.trial import Trial

    prepared = Trial.prepare(folder, data)
    if prepared.finished:
        say(f"{folder.path} has already ended.", err=True)
    else:
        say(prepared.introduction, err=True)
        with TrialProgress(prepared.names) as progress:
            prepared.run(progress.show)
    for heading, text in prepared.certificates():
        say(f"\n{heading}\n{'=' * len(heading)}\n{text.rstrip()}")
    say(f"\n{prepared.closing(program())}")


@federation_app.command(cls=Command)
def terms(
    file: Annotated[Path, typer.Argument(metavar="TERMS", help="Terms: a TOML file, or the folder of a federation.")],
    node: Annotated[str | None, typer.Option(help="What they ask of this node, in plain words.")] = None,
    rows: Annotated[int | None, typer.Option(help="Beside --node: how many rows it has, for what it costs.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print the digest alone.")] = False,
) -> None:
    """Terms for people: what is learned, what it costs, who takes part; and their digest."""
    from cloister.deploy.operation.agreement_text import asked_of, terms_words
    from cloister.deploy.terms.terms import Terms

    if rows is not None:
        expect_count("--rows", rows, "so many rows the node has")
        if node is None:
            raise CloisterError("Expected --node beside --rows, found none: say whose rows they are.")
    found = Terms.load(file / "terms.toml" if file.is_dir() else file)
    if digest:
        say(found.digest)
        return
    say(terms_words(found))
    if node is not None:
        say(f"\n{asked_of(found, node, rows)}")
    say(f"\ndigest  {found.digest}")


@federation_app.command(cls=Command)
def status(
    where: Annotated[str, typer.Argument(metavar="DIR|URL", help="The server's folder, or its status page.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    authority: Annotated[
        Path | None, typer.Option(help="For a URL: the certificate to trust [the system's authorities].")
    ] = None,
) -> None:
    """How a federation is doing: nodes, rounds, replies, refusals, what was spent."""
    import json

    from cloister.deploy.operation.status_source import status_at
    from cloister.deploy.operation.status_text import status_tables

    found = status_at(where, authority)
    if as_json:
        say(json.dumps(found.to_json(), indent=2))
        return
    for part in status_tables(found):
        if isinstance(part, str):
            say(part)
        else:
            print_table(part)


def _wishes(path: Path, words: list[str], given: dict[str, Any], more: dict[str, Any], ask: bool) -> Wishes:
    """What is wanted, by options, by answers on a terminal, and by default."""
    from cloister.cli.questions import asked
    from cloister.deploy.operation.made_up_data import EXAMPLE_SCHEMA
    from cloister.deploy.operation.provision import Wishes, nodes_of
    from cloister.deploy.operation.terms_draft import DEFAULTS
    from cloister.runs.config_file import load

    values = load(None, words)
    if ask:
        given, values = asked(path, given, values)
    schema, samples = given["schema"], _samples(given["shape"], given["classes"])
    if schema is not None and samples:
        raise CloisterError("Expected a schema or a shape, found both: give one of them.")
    return Wishes(
        name=given["name"] or path.resolve().name,
        nodes=nodes_of(given["nodes"] or "4"),
        values={**DEFAULTS, **values},
        schema=_text(schema) if schema is not None else None if samples else EXAMPLE_SCHEMA,
        samples=samples,
        url=given["url"] or "https://127.0.0.1:8443",
        more={key: value for key, value in more.items() if value is not None},
    )


def _samples(shape: str | None, classes: int | None) -> dict[str, Any]:
    """What rows are where no schema says it."""
    if shape is None:
        return {}
    sides = _numbers(shape.replace("x", ","), "the shape of one input", "13 or 1,28,28")
    return {"shape": sides, "classes": 2 if classes is None else classes}


def _numbers(text: str, what: str, example: str) -> list[int]:
    """Whole numbers with commas."""
    words = [word.strip() for word in text.strip("[] ").split(",")]
    if not all(word.isdecimal() for word in words):
        raise CloisterError(f"Expected {what}, found {text!r}: write {example}.")
    return [int(word) for word in words]


def _text(schema: Path) -> str:
    """A schema's file, which is found to be one here."""
    from cloister.data.user.schema_files import read_toml

    read_toml(schema)
    return schema.read_text(encoding="utf-8")


def _expect_the_same(folder: FederationFolder, words: list[str], nodes: str | None, schema: Path | None) -> None:
    """Whoever repeats a command goes on; whoever changes it is told that the terms are what they are."""
    from cloister.data.user.schema_files import read_toml
    from cloister.deploy.operation.provision import nodes_of
    from cloister.deploy.terms.terms import Terms
    from cloister.runs.config_file import load

    terms = Terms.load(folder.terms)
    changed = [f"{key}={value}" for key, value in load(None, words).items() if terms.values.get(key) != value]
    if nodes is not None and tuple(nodes_of(nodes)) != terms.federation.names:
        changed.append(f"--nodes {nodes}")
    if schema is not None and terms.samples.schema != read_toml(schema):
        changed.append(f"--schema {schema}")
    if changed:
        raise CloisterError(
            f"Expected the terms in {folder.path}, found {', '.join(changed)}: leave that out to go on with them, or "
            "choose another folder."
        )
