"""What a machine without a GPU cannot import is not searched for doctests."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/cloister/engine/cuda/*_kernels.py"]
