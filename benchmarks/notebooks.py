"""Execute the notebooks, and keep what they show and how long they take:

    python benchmarks/notebooks.py             all of them: `make notebooks`
    python benchmarks/notebooks.py hospitals   one of them, or some

A notebook is executed in an empty folder, with two threads and without CLOISTER_DATA, so that its outputs need no files
but those of this repository. Metadata that differ from time to time (when a cell ran, which Python) are left out.
Times go to docs/notebooks.json, which notebooks/README.md quotes.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
TIMES = ROOT / "docs" / "notebooks.json"
NAMES = ("first_private_model", "choosing_epsilon", "comparing_methods", "hospitals", "auditing_a_run")
THREADS = 2
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_ABSOLUTE = re.compile(r"""(?:^|[\s'"(\[=])(?:~?/\w[\w.-]*/|[A-Z]:\\)""", re.MULTILINE)


def path_of(name: str) -> Path:
    return NOTEBOOKS / f"{name}.ipynb"


def read(name: str) -> NotebookNode:
    return nbformat.read(path_of(name), as_version=4)


def executed(notebook: NotebookNode) -> NotebookNode:
    """A copy with new outputs; a cell that fails raises `nbclient.exceptions.CellExecutionError`."""
    fresh = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "notebooks"
        folder.mkdir()
        env = {name: value for name, value in os.environ.items() if name not in ("CLOISTER_DATA", "MPLBACKEND")}
        # Settings and startup files of whoever executes it are not part of a notebook.
        env |= {
            "OMP_NUM_THREADS": str(THREADS),
            "OMP_WAIT_POLICY": "passive",  # threads that wait leave the cores to others
            "IPYTHONDIR": f"{place}/ipython",
            "MPLCONFIGDIR": f"{place}/matplotlib",
        }
        client = nbclient.NotebookClient(
            fresh,
            timeout=600,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
            # no ports, which others on this machine could reach
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{place}/kernel"}}),
        )
        client.execute(env=env)
        left = sorted(path.name for path in folder.iterdir())
    if left:
        raise RuntimeError(
            f"Expected a notebook that removes its files, found {', '.join(left)}: remove them in a cell."
        )
    return cleaned(fresh)


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Without what differs from time to time."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
    return notebook


def _joined(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Pieces of one stream are one output: where it is cut is a matter of time."""
    last: NotebookNode | None = None
    for output in outputs:
        if output.output_type == "stream" and last is not None and last.get("name") == output.name:
            last.text += output.text
            continue
        output.pop("metadata", None) if output.output_type == "stream" else output.metadata.clear()
        last = output
        yield output


def problems(notebook: NotebookNode) -> list[str]:
    """What a reader should not meet: cells without outputs or with errors, warnings, and places on one machine."""
    found = []
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in codes] != list(range(1, len(codes) + 1)):
        found.append("its cells were not executed once, in order")
    for number, cell in enumerate(codes, 1):
        try:
            compile(cell.source, f"cell {number}", "exec", ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            found.append(f"cell {number} does not compile: {error}")
        if not cell.outputs:
            found.append(f"cell {number} has no output")
        if any(output.output_type == "error" or output.get("name") == "stderr" for output in cell.outputs):
            found.append(f"cell {number} shows an error or a warning")
    for number, text in enumerate(_texts(notebook)):
        if place := _ABSOLUTE.search(text):
            found.append(f"text {number} has an absolute path: {text[place.start() :][:60]!r}")
    if dict(notebook.metadata) != METADATA:
        found.append("its metadata are not the usual ones")
    return found


def _texts(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        yield cell.source
        yield from shown(cell)


def shown(cell: NotebookNode) -> Iterator[str]:
    """What a cell shows as text."""
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield from (value for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


def figures(notebook: NotebookNode, word: str) -> list[float]:
    """The numbers that are shown behind a word, such as epsilon, in order."""
    text = "\n".join("\n".join(shown(cell)) for cell in notebook.cells)
    return [float(number) for number in re.findall(rf"\b{word}:? +(\d+(?:\.\d+)?)", text)]


def main(names: list[str]) -> None:
    from cloister.runs.figures import made_by
    from cloister.runs.files import write_json

    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"Expected some of {', '.join(NAMES)}, found {', '.join(sorted(unknown))}: check the names.")
    times: dict[str, Any] = {}
    for name in names or NAMES:
        print(f"{name} ... ", end="", flush=True)
        started = time.perf_counter()
        notebook = executed(read(name))
        # Beside the load of the machine: where others compute as well, a notebook takes longer.
        times[name] = {"seconds": round(time.perf_counter() - started), "load": round(os.getloadavg()[0], 1)}
        nbformat.write(notebook, path_of(name))
        print(f"{times[name]['seconds']} s")
        for problem in problems(notebook):
            print(f"  {problem}")
    about = made_by("make notebooks")
    machine = {**about["machine"], "threads": THREADS, "cores": os.cpu_count()}
    kept = json.loads(TIMES.read_text())["notebooks"] if TIMES.exists() else {}
    ordered = {name: (kept | times)[name] for name in NAMES if name in kept | times}
    write_json(TIMES, {**about, "machine": machine, "notebooks": ordered})


if __name__ == "__main__":
    main(sys.argv[1:])
