"""What a machine without a GPU cannot import is not searched for doctests."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/cloister/engine/cuda/conv_kernels.py"]
