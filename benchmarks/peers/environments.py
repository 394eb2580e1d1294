"""Virtual environments for the peers, since their dependencies exclude ours and each other's.

    python benchmarks/peers/environments.py [pfl] [flower]                  .peers/NAME, from the pins in NAME.txt
    python benchmarks/peers/environments.py --carry DIR [--for-python 3.12] pfl without torch, numpy and scipy

`--carry` is for a machine without network that has PyTorch: copy DIR there and run
`PYTHONPATH=DIR python3 benchmarks/peers/pfl_cifar.py`. An environment whose pins have not changed is left alone.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / ".peers"
PEERS = ("pfl", "flower")
PURE = ("absl-py", "attrs", "dill", "dp-accounting", "multiprocess", "packaging", "pfl", "prv-accountant")


def python_of(name: str) -> Path | None:
    """The peer's interpreter, or None where its environment has yet to be made."""
    stamp = FOLDER / name / "pins.txt"
    return FOLDER / name / "bin" / "python" if stamp.exists() and stamp.read_text() == pins(name) else None


def pins(name: str) -> str:
    """What the peer's environment holds."""
    return (HERE / f"{name}.txt").read_text()


def pip(python: str, *arguments: str) -> None:
    """Run pip, which speaks only when it fails."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq", *arguments]
    subprocess.run(command, check=True)


def make(name: str) -> None:
    """Make the peer's environment, unless it is there already."""
    if python_of(name):
        print(f"{name}: up to date in {FOLDER / name}")
        return
    print(f"{name}: installing into {FOLDER / name}, which takes minutes and a gigabyte", flush=True)
    venv.create(FOLDER / name, clear=True, with_pip=True)
    pip(str(FOLDER / name / "bin" / "python"), "-r", str(HERE / f"{name}.txt"))
    (FOLDER / name / "pins.txt").write_text(pins(name))


def carry(folder: Path, version: str) -> None:
    """Put the parts of pfl that are pure Python into `folder`, for an interpreter of that version."""
    wanted = [pin for pin in pins("pfl").splitlines() if pin.split("==")[0] in PURE]
    wheels = ("--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", version)
    pip(sys.executable, "--upgrade", "--target", str(folder), *wheels, *wanted)
    files = [path for path in folder.rglob("*") if path.is_file()]
    compiled = [path.name for path in files if path.suffix == ".so"]
    if compiled:
        raise SystemExit(f"Expected pure Python, got {', '.join(compiled)}: leave that package out of PURE.")
    print(f"pfl: {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB for Python {version} in {folder}")


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description="Make the peers' virtual environments.")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--carry", type=Path, metavar="DIR", help="only put pfl's pure-Python packages there")
    parser.add_argument("--for-python", default=".".join(platform.python_version_tuple()[:2]), metavar="X.Y")
    options = parser.parse_args()
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"Expected peers of {', '.join(PEERS)}, got {', '.join(sorted(unknown))}.")
    if options.carry:
        carry(options.carry, options.for_python)
        return
    for name in options.peers or PEERS:
        make(name)


if __name__ == "__main__":
    main()
