"""Clients side by side: in threads, and on ranks that are threads here, the result and the draws are those of one."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import cloister as cl
from cloister.core import MethodState
from cloister.engine import Loop, distributed
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import run_round
from conftest import flat_state, killed_in_round, toy_model, toy_task
from contract.catalogue import METHODS, cohorts_for, fed_of
from draws import Recording

NAMES = ["dp_fedavg distributed", "lus", "ddgauss", "pfl", "fed_spa quantile", "adap_dp_fl", "cpsgd"]


@pytest.mark.parametrize("name", NAMES)
def test_workers_give_the_bits_of_one(name):
    """Also of what clients keep, and over and over: what threads share by mistake does not always show."""

    def played(engine: Loop) -> tuple[torch.Tensor, MethodState]:
        task = toy_task()
        model = toy_model(task, dropout=True)
        fed, w = fed_of(
            METHODS[name](), next(iter(cohorts_for(name).values())), task=task, model=model, dtype=torch.float32
        )
        streams = Recording(3)
        fed, state = replace(fed, streams=streams), fed.method.init(w)
        for number in (1, 2):
            w, state, *_ = run_round(fed, Ledger.create(None, "test", {}), engine, number, w, state)
        streams.expect_sound()
        return w, state

    w, state = played(Loop())
    for engine in (Loop(workers=2), Loop(chunk=5, workers=3)):
        found, kept = played(engine)
        assert torch.equal(found, w)
        torch.testing.assert_close(flat_state(kept), flat_state(state), rtol=0, atol=0)


def test_workers_draw_large_noise_as_one_does():
    """Large draws leave the interpreter to other threads, which then draw, too."""
    task = toy_task(sizes=(3, 2, 1, 2, 3, 1), features=3000)
    method = cl.methods.pfl(clip_norm=0.5, batch_size=2, local_epochs=2, noise_multiplier=1.0)
    for dtype in (torch.float32, torch.float64):
        fed, w = fed_of(method, task=task, model=nn.Linear(3000, 10), dtype=dtype)
        outcomes = [
            run_round(fed, Ledger.create(None, "test", {}), engine, 1, w, fed.method.init(w)).w
            for engine in (Loop(), *[Loop(workers=4)] * 4)
        ]
        assert all(torch.equal(found, outcomes[0]) for found in outcomes[1:])


class Threads:
    """Enough of torch.distributed for ranks that are threads of one process."""

    DistError = RuntimeError

    def __init__(self, size: int) -> None:
        self.size, self.mine = size, threading.local()
        self._barrier, self._box = threading.Barrier(size, timeout=60), {}

    def _all(self, value: Any) -> list[Any]:
        """What every rank says, by rank."""
        self._box[self.mine.rank] = value
        self._barrier.wait()
        values = [self._box[rank] for rank in range(self.size)]
        self._barrier.wait()
        return values

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self.mine.rank

    def get_world_size(self) -> int:
        return self.size

    def init_process_group(self, *_: Any, **__: Any) -> None: ...

    def destroy_process_group(self, *_: Any, **__: Any) -> None: ...

    def barrier(self, *_: Any, **__: Any) -> None:
        self._all(None)

    def broadcast(self, tensor: torch.Tensor, src: int = 0, **_: Any) -> None:
        tensor.copy_(self._all(tensor.clone())[src])

    def broadcast_object_list(self, objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = self._all(list(objects))[src]

    def all_gather_object(self, found: list[Any], mine: Any, **_: Any) -> None:
        found[:] = self._all(mine)

    def all_reduce(self, tensor: torch.Tensor, **_: Any) -> None:
        tensor.copy_(sum(self._all(tensor.clone())))

    def run(self, what: Any) -> list[Any]:
        """What each rank returns."""
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            self.mine.rank = rank
            try:
                found[rank] = what()
            except BaseException as error:
                found[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in found:
            if isinstance(error, BaseException):
                raise error
        return found


METHODS_ON_RANKS = {
    "distributed": cl.methods.dp_fedavg(
        clip_norm=0.5, lr=0.5, batch_size=4, local_steps=2, noise="distributed", noise_multiplier=1.0
    ),
    "central": cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, batch_size=4, local_steps=2, noise_multiplier=1.0),
    "private steps": cl.methods.pfl(clip_norm=0.5, batch_size=4, local_epochs=2, noise_multiplier=1.0),
    "kept": cl.methods.adap_dp_fl(
        clip_norm=0.5, lr=0.1, batch_size=4, local_steps=2, noise_decay=1.0, noise_multiplier=1.3
    ),
    "coins": cl.methods.cpsgd(batch_size=2, noise_multiplier=20.0),
}


class Heard:
    """Whose draws are whose: the run, the purpose and the place of every draw, and what came of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[tuple[str, tuple[Any, ...], bytes]] = []
        for kind in (
            "protective_normal",
            "protective_bits",
            "protective_words",
            "protective_uniform",
            "protective_integers",
        ):
            monkeypatch.setattr(Streams, kind, self._listening(getattr(Streams, kind)))

    def _listening(self, real: Any) -> Any:
        def draw(streams: Streams, *given: Any) -> torch.Tensor:
            found = real(streams, *given)
            place = tuple(item for item in given if isinstance(item, (str, int)))
            if found.numel() >= 8 and streams.run:  # without a name, somebody only tries something out
                self.drawn.append((streams.run, place, found.numpy().tobytes()))
            return found

        return draw

    def take(self) -> list[tuple[str, tuple[Any, ...], bytes]]:
        taken, self.drawn = self.drawn, []
        return taken


TASK = toy_task()
MODEL = toy_model(TASK)  # made once: threads would share the random numbers that it starts from


def go(name: str, folder: Any, **more: Any) -> Any:
    return cl.run(
        METHODS_ON_RANKS[name],
        TASK,
        rounds=4,
        delta=1e-2,
        engine="loop",
        dtype="float64",
        model=MODEL,
        folder=folder,
        checkpoint_every=2,
        evaluate_every=4,
        progress=False,
        **more,
    )


def on_ranks(monkeypatch: pytest.MonkeyPatch, size: int, what: Any) -> list[Any]:
    fake = Threads(size)
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "dist", SimpleNamespace(**{k: getattr(fake, k) for k in dir(fake) if k[0] != "_"}))
        patch.setenv("WORLD_SIZE", str(size))
        return fake.run(what)


def weights(run: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.filterwarnings("ignore:Expected to repeat")
@pytest.mark.parametrize("name", METHODS_ON_RANKS)
def test_what_is_drawn_on_ranks_after_a_renewal_is_new_everywhere(name, tmp_path, monkeypatch):
    """A run of one rank is killed and goes on with two: rounds that are computed again are paid for, and draw anew."""
    heard = Heard(monkeypatch)
    with killed_in_round(monkeypatch, at=4):
        go(name, tmp_path / "r")
    before = heard.take()
    found = on_ranks(monkeypatch, 2, lambda: go(name, tmp_path / "r", resume=True))
    after = heard.take()
    assert torch.equal(weights(found[0]), weights(found[1])), "every rank returns the same run"
    assert len({content for _, _, content in after}) == len(after), "no rank draws what another draws"
    again = {content for _, _, content in before} & {content for _, _, content in after}
    assert not again, f"{len(again)} draws of rounds that were computed again are old"
    assert len({run for run, _, _ in after}) == 1, "all ranks draw under one name"
    assert {run for run, _, _ in before}.isdisjoint({run for run, _, _ in after})


ON_RANKS = [*NAMES, "fed_smp_rand_k", "adaptive_clipping", "adap_dp_fl decay"]


@pytest.mark.parametrize("name", ON_RANKS)
def test_ranks_draw_what_one_would_draw_and_come_to_the_same(name, monkeypatch):
    """What was said, what is kept and by how much noise has decayed reach every rank; no rank draws another's draws."""

    def begun() -> tuple[Any, torch.Tensor, MethodState, Recording]:
        fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())))
        state = fed.method.init(w)
        if "noise" in state.server:
            state.server["noise"] = torch.full_like(state.server["noise"], 0.5)
        streams = Recording(3)
        return replace(fed, streams=streams), w, state, streams

    def played(fed: Any, w: torch.Tensor, state: MethodState, engine: Any) -> tuple[torch.Tensor, Any]:
        for number in (1, 2):
            w, state, *_ = run_round(fed, Ledger.create(None, "test", {}), engine, number, w, state)
        return w, state

    fed, w, state, expected = begun()
    alone, kept = played(fed, w, state, Loop())
    fed, w, state, streams = begun()

    def one_rank() -> Any:
        me = distributed.Ranks(distributed.dist.get_rank(), distributed.dist.get_world_size())
        if me.rank:
            return distributed.assist(Loop(), me, fed, w.clone())
        sharded = distributed.Sharded(Loop(), me)
        found = played(fed, w, state, sharded)
        sharded.dismiss()
        return found

    found, after = on_ranks(monkeypatch, 3, one_rank)[0]
    streams.expect_sound()
    assert streams.drawn == expected.drawn
    torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(flat_state(after), flat_state(kept), rtol=1e-9, atol=1e-12)
