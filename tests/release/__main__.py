"""Build, compare, check, install, try; status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.contents import ROOT, differences, expected_in_wheel, in_sdist, in_wheel, tracked
from release.fresh import steps, try_wheel


def main() -> int:
    """From the sources to a wheel that was tried."""
    words = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    words.add_argument("--built", action="store_true", help="take what lies in dist/ already")
    words.add_argument("--no-install", action="store_true", help="do not try the wheel in a fresh environment")
    given = words.parse_args()
    dist = ROOT / "dist"
    if not given.built:
        for made in (dist, ROOT / "build"):
            shutil.rmtree(made, ignore_errors=True)
        # The wheel is built from the source distribution, so that this is known to be complete. Nothing is installed
        # for it: building needs setuptools, which is here, and not torch.
        steps(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT))
    (wheel,), (sdist,) = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    steps(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    files = tracked()
    wrong = differences(wheel.name, in_wheel(wheel), expected_in_wheel(files))
    wrong += differences(sdist.name, in_sdist(sdist), files)
    if not given.no_install:
        with tempfile.TemporaryDirectory(prefix="cloister-release-") as place:
            wrong += try_wheel(wheel, Path(place))
    for one in wrong:
        sys.stderr.write(f"wrong: {one}\n")
    if not wrong:
        sys.stdout.write(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} can be published.\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"wrong: {' '.join(map(str, error.cmd))} ended with status {error.returncode}")
