"""The queue against the model: 10 000 random steps, by seed. KURIR_TEST_SEEDS=100-200 runs others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kurir.services.dispatching.dispatcher import Dispatcher
from kurir.store import claim, insert, lines
from kurir.store.claim import Claims
from simulation.model import Broken
from simulation.runs import run, run_seed
from simulation.steps import steps

STEPS = 250
FIRST, LAST = map(int, os.environ.get("KURIR_TEST_SEEDS", "0-40").split("-"))
MEMORY = Path("/dev/shm")  # nothing here is about the disk: its syncs would only take time


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_the_queue_keeps_its_promises(folder, seed):
    run_seed(folder, seed, STEPS)


def _no_order(monkeypatch):
    monkeypatch.setattr(lines, "settle_line", lambda *args: set())


def _no_uniqueness(monkeypatch):
    monkeypatch.setattr(insert, "_unique_holders", lambda *args: [])


def _no_target_at_a_time(monkeypatch):
    monkeypatch.setattr(claim._Claiming, "_steps_aside", lambda *args: False)


def _no_delay(monkeypatch):
    monkeypatch.setattr(lines, "rest", lambda due_at, now: claim.Place.READY)


def _no_wake(monkeypatch):
    monkeypatch.setattr(Dispatcher, "_waits_until", lambda *args: None)


def _no_parents(monkeypatch):
    monkeypatch.setattr(insert, "_parents", lambda *args: [])


def _no_ageing_out(monkeypatch):
    """A claim forgets a lane in which something is left."""
    real = claim.claim

    def forgetful(*args, **options) -> Claims:
        claims = real(*args, **options)
        claims.drained.extend({one.job.lane for one in claims.claimed})
        return claims

    monkeypatch.setattr("kurir.services.dispatching.dispatcher.claim", forgetful)


@pytest.mark.parametrize(
    "fault", [_no_order, _no_uniqueness, _no_target_at_a_time, _no_delay, _no_wake, _no_parents, _no_ageing_out]
)
def test_the_model_notices_a_queue_that_does_not(folder, monkeypatch, fault):
    fault(monkeypatch)
    found = (run(folder / str(seed), steps(seed, STEPS), seed)[0] for seed in range(8))
    assert isinstance(next(filter(None, found), None), Broken)
