"""What a machine without a GPU, or an environment without Flower, cannot import is not searched for doctests."""

from importlib.util import find_spec

_FLOWER = "src/cloister/deploy/transport/flower"

collect_ignore_glob = [] if find_spec("triton") else ["src/cloister/engine/cuda/*_kernels.py"]
if find_spec("flwr") is None:
    collect_ignore_glob += [f"{_FLOWER}/{name}.py" for name in ("records", "runtime", "run", "server", "node")]
    collect_ignore_glob += ["tests/deploy/transport/flower_app.py"]
