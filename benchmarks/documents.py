"""Figures in documents come from files in docs/, and the files from commands:

    python benchmarks/documents.py             write the documents from the files that are there
    python benchmarks/documents.py --measure   first make anew what takes minutes: the demo and, where their data are
                                               there, MNIST by its writers and the comparison of methods on it
    python benchmarks/documents.py --theory    first draw the papers' bounds anew (docs/theory/), and run what stands
                                               beside them (a few minutes)

What lies between the markers `<!-- figures: NAME -->` and `<!-- end of figures -->` of a document is replaced. What
takes longer, or a GPU, has commands of its own: `make benchmark`, benchmarks/gpu.py, methods.py and samples.py.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attacks
import audit_pages
import page
import paper_pages
import theory_runs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ("audit", "federation", "methods", "papers", "rounded-noise", "samples", "speed", "theory")
DOCUMENTS = (ROOT / "README.md", ROOT / "notebooks" / "README.md", *(DOCS / f"{name}.md" for name in PAGES))
ENGINE = "engine=vectorized"  # named, because auto may take another one on another day, which rounds otherwise
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def read(name: str) -> Any:
    return json.loads((DOCS / f"{name}.json").read_text())


def digits() -> str:
    """The demo's table."""
    from cloister.runs.figures import demo_text

    return f"```\n{demo_text(read('digits'))}\n```"


def mnist_writers() -> str:
    """What the README says of MNIST by its writers."""
    rows = {row["run"]: row for row in read("mnist-writers")["rows"]}
    reached = " and ".join(f"{row['accuracy']:.2f} at {name}" for name, row in rows.items())
    return (
        "On MNIST by its 539 writers (`experiments/mnist-writers.toml`, logistic regression, user-level, delta 1e-4) "
        f"{next(iter(rows.values()))['planned']} rounds reach\n{reached}."
    )


def mnist_methods() -> str:
    """Every user-level method at two epsilons."""
    found = read("mnist-methods")
    rows = found["rows"]
    heads = "method | accuracy at epsilon 8 | at epsilon 2 | spent of 8 | spent of 2 | upload, kB"
    lines = [f"Made by `{found['command']}` (`mnist-methods.json`).", "", f"| {heads} |", "|---" * 6 + "|"]
    for label in dict.fromkeys(row["label"] for row in rows):
        own = {row["target"]: row for row in rows if row["label"] == label}
        name = f"`{label}`" if re.fullmatch(r"\w+", label) else label
        first = next(iter(own.values()))
        if None in own:
            cells = [f"{name}, no privacy", f"{first['mean']:.3f}", "", "infinite", "infinite"]
        else:
            cells = [name, *(f"{own[t]['mean']:.3f}" for t in (8.0, 2.0))]
            cells += [f"{own[t]['epsilon']:.4f}" for t in (8.0, 2.0)]
        lines.append("| " + " | ".join([*cells, f"{first['upload_bytes'] / 1000:.1f}"]) + " |")
    return "\n".join([*lines, *_settings(rows)])


def notebooks() -> str:
    """How long each notebook takes."""
    found = read("notebooks")
    machine = found["machine"]
    lines = ["| notebook | seconds | load of the machine |", "|---|---|---|"]
    for name, one in found["notebooks"].items():
        lines.append(f"| [{name}]({name}.ipynb) | {one['seconds']} | {one['load']:g} |")
    made = f"Measured by `{found['command']}` with {machine['threads']} threads on {machine['cores']} cores."
    return "\n".join([*lines, "", made])


def _settings(rows: list[dict[str, Any]]) -> list[str]:
    from cloister.runs.report import settings_text

    if "settings" not in rows[0]:
        return []
    return ["", "```", settings_text({row["label"]: row["settings"] for row in rows}).strip(), "```"]


def tested_versions() -> str:
    """With which versions of Python and packages tests were run, and how many passed."""
    found = read("tested-versions")
    lines = ["| tested | Python | torch | others | tests |", "|---" * 5 + "|"]
    for name, about in found.items():
        if about["python"] is None:
            lines.append(f"| {name} | not at hand | | | |")
            continue
        versions, counts = about["versions"], about["found"]
        lowest = name == "minimal"
        what = "a part of the tests" if lowest else "what needs no torch"
        others = "the lowest that `pyproject.toml` admits" if lowest else "the newest that there were"
        passed = f"{counts.get('passed', 0)} passed" + "".join(
            f", {counts[kind]} {kind}" for kind in ("failed", "error", "errors") if counts.get(kind)
        )
        torch = "-" if versions["torch"] == "not installed" else versions["torch"].partition("+")[0]
        lines.append(f"| {what} (`{about['command']}`) | {about['python']} | {torch} | {others} | {passed} |")
    return "\n".join(lines)


def certificate() -> str:
    """A certificate as it is printed."""
    return f"```\n{(DOCS / 'blur-lus-certificate.txt').read_text().rstrip()}\n```"


def methods_time() -> str:
    """A round of every method beside DP-FedAvg's."""
    machines = [{row["method"]: row for row in read(f"methods-{where}")["rows"]} for where in ("cpu", "gpu")]
    lines = ["| method | bar | two CPU cores | H200 |", "|---" * 4 + "|"]
    for name, row in machines[0].items():
        bar = "" if row["bar"] is None else f"{row['bar']:g}"
        lines.append(f"| {name} | {bar} | " + " | ".join(f"{own[name]['relative']:.2f}" for own in machines) + " |")
    return "\n".join(lines)


def samples_time() -> str:
    """Sample-level rounds beside Opacus."""
    lines = ["| work | machine | ours, ms | Opacus, ms | times as fast | bar |", "|---" * 6 + "|"]
    for where, machine in (("gpu", "H200"), ("cpu", "two CPU cores")):
        for row in read(f"samples-{where}")["rows"]:
            work = row["work"].removesuffix(", private steps") + f", {row['precision']}"
            times = [
                f"{row[who]['median']:,.0f}" if row[who]["median"] >= 100 else f"{row[who]['median']:.1f}"
                for who in ("ours", "theirs")
            ]
            bar = f"{row['bar']:g}" + ("" if row["ratio"] >= row["bar"] else ", missed")
            lines.append(f"| {work} | {machine} | {times[0]} | {times[1]} | {row['ratio']:.3g} | {bar} |")
    return "\n".join(lines)


def speed() -> str:
    """Rounds beside the peers'."""
    return "\n" + page.rendered([read("speed-cpu"), read("speed-gpu")])


def gpu_start() -> str:
    """From start to first round on a GPU, and what a whole run takes over its steady rounds."""
    lines = ["| engine | caches | first round, s | steady round, s | rounds | whole over steady |", "|---" * 6 + "|"]
    for row in read("speed-gpu-start")["rows"]:
        whole = f"{row['whole over steady']:.2f}" if row["rounds"] >= 100 else ""
        figures = f"{row['first round, s']:.1f} | {row['steady round, s']:.3f} | {row['rounds']} | {whole}"
        lines.append(f"| {row['engine']} | {row['caches']} | {figures} |")
    return "\n".join(lines)


def startup() -> str:
    """How long commands and imports take to answer."""
    found = read("startup")
    lines = [f"Made by `python {found['command']}`.", "", "| | s | of `import torch` |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['seconds']:.2f} | {row['of import torch']:.2f} |" for row in found["rows"]]
    return "\n".join(lines)


def memory() -> str:
    """Memory with a million registered clients, whose samples stay on disk."""
    found = read("memory")["registered"]
    lines = ["| registered | on disk, MiB | peak memory, MiB | ms per round |", "|---" * 4 + "|"]
    lines += [
        f"| {row['clients']:,} | {row['file_mib']:,.0f} | {row['peak_mib']:.0f} | {row['round_ms']:.1f} |"
        for row in found["runs"]
    ]
    return "\n".join([*lines, "", f"{found['memory_ratio']:.2f} times the memory (bar {found['bar']:g})."])


def secure_aggregation() -> str:
    """What masked sums cost, and who was lost before they dealt shares, masked, or helped to open the sum."""
    found = read("secure-aggregation")
    lines = [f"Made by `python {found['command']}`.", ""]
    lines += ["| nodes | numbers | bits | lost | one node, s | server, s | all, s |", "|---" * 7 + "|"]
    for row in found["rows"]:
        lost = " + ".join(map(str, row["lost before shares, before masking, before opening"]))
        seconds = " | ".join(f"{row[f'{who}, CPU s']:.2f}" for who in ("one node", "server", "in all"))
        bar = "" if row["bar, CPU s"] is None else f" (bar {row['bar, CPU s']:g})"
        lines.append(f"| {row['nodes']} | {row['length']:,} | {row['bits']} | {lost} | {seconds}{bar} |")
    return "\n".join(lines)


def federation() -> str:
    """What a federation costs beyond training, and what was killed on the way."""
    https, flower = read("federation"), read("federation-flower")
    small, masked, large = (https[name] for name in ("small", "masked", "large"))
    lines = ["| three nodes, TLS and keys, loopback | seconds | bar |", "|---" * 3 + "|"]
    lines += [
        f"| {what} | {seconds:.2f} | {bar:g} |"
        for what, seconds, bar in (
            ("https: median round, logistic regression", small["median_seconds"], small["bar_seconds"]),
            ("https: the same under masks", masked["median_seconds"], masked["bar_seconds"]),
            (
                f"https: {large['parameters']:,} parameters, a round beyond its slowest node's training",
                large["overhead_seconds"],
                large["bar_seconds"],
            ),
            ("Flower: median round, logistic regression", flower["plain"]["median_s"], flower["plain"]["bar_s"]),
            ("Flower: the same under masks", flower["masked"]["median_s"], flower["masked"]["bar_s"]),
        )
    ]
    busy = [name for name in ("small", "masked", "large") if https[name].get("load_before", 0) > 1]
    if busy:
        lines += ["", f"Other work held the machine while these were measured: {', '.join(busy)}."]
    if "many" in https:
        many = https["many"]
        lines += [
            "",
            f"{many['nodes']} nodes as threads of one process, a tenth of them lost in every round: {many['released']} "
            f"of {many['rounds']} rounds were released, with {many['fewest_replies']} to {many['most_replies']} "
            f"replies, at epsilon {many['epsilon']:.3f} of {many['budget']:g}.",
        ]
    if "killed" in https:
        kills, methods = https["killed"]["kills"], https["killed"]["methods"]
        lines += [
            "",
            f"Killed with kill -9 at random instants: servers {kills['server']} times, nodes {kills['nodes']} times "
            f"({', '.join(methods)}). Every run ended with the model of one that was not killed, to the bit, and every "
            "step stands once in every ledger.",
        ]
    return "\n".join(lines)


def flower_time() -> str:
    """Rounds over Flower."""
    found = read("federation-flower")
    plain, masked, load = found["plain"], found["masked"], found["load_before"]
    heads = "three nodes, two cores (benchmarks/flower_federation.py) | median round, s | from | to"
    lines = [f"  | {heads} |", "  " + "|---" * 4 + "|"]
    for what, row in (("as they are", plain), ("under masks: five messages each way", masked)):
        lines.append(f"  | {what} | {row['median_s']:.1f} | {row['least_s']:.1f} | {row['most_s']:.1f} |")
    busy = f"\n\n  Other work held the machine meanwhile (load {load:g})." if load > 1 else ""
    return "\n" + "\n".join(lines) + busy + "\n"


def rounded_noise() -> str:
    """Accuracy and time with rounded and with floating-point noise."""
    found = read("rounded-noise")
    heads = "MNIST, 147,146 parameters | accuracy, floats | rounded | difference | length of a round, seeded | secure"
    lines = [f"| {heads} |", "|---" * 6 + "|"]
    clock = "wall" if found["quiet"] else "cpu"
    for name, work in found["works"].items():
        accuracy, time = work["accuracy"], work["time"]
        means = (sum(accuracy[kind]) / len(accuracy[kind]) for kind in ("floats", "rounded"))
        apart = f"{accuracy['difference']:+.4f} (standard error {accuracy['standard error']:.4f})"
        ratios = (f"{time[f'{kind} {clock} ratio']:.3f} times" for kind in ("seeded", "secure"))
        lines.append("| " + " | ".join([f"`{name}`", *(f"{mean:.4f}" for mean in means), apart, *ratios]) + " |")
    busy = "" if found["quiet"] else " The machine had other work to do, so that lengths are times of the processor."
    where = "" if found.get("device", "cpu") == "cpu" else f" on a GPU ({found['accuracy on']})"
    rounds = f"Five seeds, {found['rounds']} rounds each{where}; times in one run, in turns."
    lines += ["", f"{rounds} `{found['command']}`.{busy}"]
    return "\n".join(lines)


def recipes() -> str:
    """What the README says of what recipes reach."""
    found = json.loads((ROOT / "results" / "best.json").read_text())
    shown = {"MNIST": ("mnist", 2.93), "Fashion-MNIST": ("fashion-mnist", 2.7), "CIFAR-10": ("cifar10", 7.53)}
    lines = ["| 10 clients, any one image, delta 1e-5 | epsilon | nobody trusted | secure sum |", "|---" * 4 + "|"]
    for name, (recipe, epsilon) in shown.items():
        runs = [found[f"{recipe}{trust}-{epsilon:g}"]["scores"] for trust in ("", "-sum")]
        means = " | ".join(f"{100 * sum(scores) / len(scores):.1f} %" for scores in runs)
        lines.append(f"| {name} | {epsilon:g} | {means} |")
    return "\n".join(lines)


def verify() -> str:
    """What the README says of changed bytes."""
    found = read("verify")
    return (
        f"Of {found['changes']:,} random single-byte changes of published files (flipped, replaced, deleted, inserted) "
        f"{found['named']:,} were\nfound, with the name of the file (`{found['command']}`)."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "recipes": recipes,
    "digits": digits,
    "tested-versions": tested_versions,
    "mnist-writers": mnist_writers,
    "mnist-methods": mnist_methods,
    "notebooks": notebooks,
    "certificate": certificate,
    "verify": verify,
    "methods-time": methods_time,
    "samples-time": samples_time,
    "speed": speed,
    "gpu-start": gpu_start,
    "startup": startup,
    "memory": memory,
    "secure-aggregation": secure_aggregation,
    "federation": federation,
    "rounded-noise": rounded_noise,
    "flower-time": flower_time,
    "audit-gaussian": lambda: audit_pages.gaussian(read("audit")),
    "audit-methods": lambda: audit_pages.methods(read("audit")),
    "audit-bugs": lambda: audit_pages.bugs(read("audit")),
    "attacks": lambda: attacks.text(read("attacks")),
    "audit-canaries": lambda: audit_pages.canaries(read("audit")),
    "theory-bounds": paper_pages.theory_bounds,
    "theory-claims": paper_pages.theory_claims,
    "theory-measured": lambda: theory_runs.text(read("theory-measured")),
    "papers": paper_pages.inventory,
}


def written(text: str) -> str:
    """A document with every block as its file says."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[4]}", text)


def measure() -> None:
    """Make anew what takes minutes."""
    from cloister.data import registry, storage
    from cloister.runs.config import build
    from cloister.runs.config_file import load
    from cloister.runs.figures import write_figures
    from cloister.runs.folder import RunFolder

    def cloister(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "cloister", *words], check=True, cwd=ROOT)

    with tempfile.TemporaryDirectory() as place:
        runs = Path(place)
        cloister("demo", "--folder", str(runs / "demo"))
        for end in ("json", "png"):
            shutil.copyfile(runs / "demo" / f"demo.{end}", DOCS / f"digits.{end}")
        if storage.present(registry.entry("qmnist"), storage.data_folder()) is not True:
            print(f"MNIST by its writers is not in {storage.data_folder()}: its figures stay as they are")
            return
        file = "experiments/mnist-writers.toml"
        for epsilon in (8, 2):
            experiment = build(load(ROOT / file, [f"epsilon={epsilon}.0", ENGINE]))
            experiment.start(folder=runs / f"epsilon {epsilon}", config=experiment.toml)
        folders = {f"epsilon {epsilon}": RunFolder.open(runs / f"epsilon {epsilon}") for epsilon in (8, 2)}
        write_figures(folders, DOCS / "mnist-writers.json", f"cloister run {file} {ENGINE} epsilon=8.0 (and 2.0)")
        cloister("compare", "experiments/mnist-methods.toml", ENGINE, "--folder", str(runs / "methods"))
        for name in ("results.json", "compare.png"):
            shutil.copyfile(runs / "methods" / name, DOCS / f"mnist-methods{Path(name).suffix}")
        shown = RunFolder.open(runs / "methods" / "blur_lus-epsilon-2").certificate()
        (DOCS / "blur-lus-certificate.txt").write_text(f"{shown}\n")


def draw_theory() -> None:
    """Every bound at the papers' settings, and beside runs."""
    from cloister.theory import plots

    for name, draw in plots.PICTURES.items():
        draw(DOCS / "theory" / f"{name}.png", 7)
    theory_runs.write(DOCS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--theory", action="store_true")
    wanted = parser.parse_args()
    if wanted.measure:
        measure()
    if wanted.theory:
        draw_theory()
    for path in DOCUMENTS:
        path.write_text(written(path.read_text()))
    page.picture([read("speed-cpu"), read("speed-gpu")], DOCS / "speed.png")


if __name__ == "__main__":
    main()
