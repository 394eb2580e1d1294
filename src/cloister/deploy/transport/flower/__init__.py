"""A federation over Flower's SuperLink and SuperNodes: with `pip install 'cloister[flower]'`.

The server is the executor of the SuperLink's server app, a node is the executor of its SuperNode's client apps, both
with `--isolation process`. Neither loads or runs an app that somebody uploads: they know one kind of message, signed
by the other. Nothing here is imported from Flower before a transport is made.
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported, which reads it once
