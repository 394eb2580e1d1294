"""What the HTTPS transport takes, beside everything else, in one command:

    python benchmarks/transport.py [--megabytes 44] [--nodes 100] [--rounds 5]

Bytes go to every node and come back: small ones to one node and to many threads, large ones to three processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cloister.deploy.operation.tls_certificates import write_tls
from cloister.deploy.transport.https import HttpsLimits, HttpsNode, HttpsServer, TlsFiles
from cloister.deploy.wire.identity import PrivateKey, Register

END = b"end"


def key_of(name: str) -> PrivateKey:
    """The same key in every process."""
    return PrivateKey.from_seed(name.encode().ljust(32, b"."))


def answer(url: str, name: str, authority: Path) -> None:
    """A node that sends back what comes."""
    node = HttpsNode(url, name, key_of(name), authority)
    node.send(b"here")
    while (data := node.receive(60.0)) != END:
        if data is not None:
            node.send(data)
    node.close()


def rounds(server: HttpsServer, names: Sequence[str], data: bytes, count: int) -> str:
    """The median of rounds: seconds on the clock, and of this process's CPU."""
    for _ in names:
        server.receive(60.0)
    walls, works = [], []
    for _ in range(count):
        wall, work = time.perf_counter(), time.process_time()
        for name in names:
            server.send(name, data)
        for _ in names:
            assert server.receive(120.0) == data
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - work)
    for name in names:
        server.send(name, END)
    return f"{statistics.median(walls):.4f} s (CPU of the server's process: {statistics.median(works):.4f} s)"


def measure(folder: Path, names: Sequence[str], data: bytes, count: int, processes: bool) -> str:
    """Rounds with nodes as threads of this process, or as processes of their own."""
    tls = write_tls(folder, ["127.0.0.1"], "benchmark")
    register = Register(key_of("server").public, {name: key_of(name).public for name in names})
    files = TlsFiles(tls.certificate, tls.key)
    server = HttpsServer(register, "127.0.0.1", 0, files, HttpsLimits.for_model(len(data) // 4, len(names)))
    waits: list[Callable[[], object]] = []
    for name in names:
        if processes:
            words = [sys.executable, __file__, "--node", server.url, name, str(tls.authority)]
            waits.append(subprocess.Popen(words).wait)
        else:
            thread = threading.Thread(target=answer, args=(server.url, name, tls.authority))
            thread.start()
            waits.append(thread.join)
    figures = rounds(server, names, data, count)
    for wait in waits:
        wait()
    server.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=44)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--node", nargs=3, help="for the processes of the large message")
    asked = parser.parse_args()
    if asked.node:
        answer(asked.node[0], asked.node[1], Path(asked.node[2]))
        return
    many, three = [f"n{i}" for i in range(asked.nodes)], ["a", "b", "c"]
    large = os.urandom(asked.megabytes * 10**6)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        print("1 node, 2 kB there and back:", measure(path / "1", ["a"], bytes(2000), 40 * asked.rounds, False))
        print(f"{len(many)} threads, 2 kB:", measure(path / "2", many, bytes(2000), asked.rounds, False))
        print(f"3 processes, {asked.megabytes} MB:", measure(path / "3", three, large, asked.rounds, True))


if __name__ == "__main__":
    main()
