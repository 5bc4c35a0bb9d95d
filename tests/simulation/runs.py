"""Runs of a simulation: by seed, or of given steps; a run that fails is shortened before it is reported."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from simulation.model import Broken
from simulation.steps import Step, steps
from simulation.world import World

TRIES = 60
"""How many runs the search for a shorter list of steps may take."""


def run_seed(folder: Path, seed: int, count: int) -> None:
    """The steps of a seed. Fails with the shortest list of steps that was found to break a promise."""
    made = steps(seed, count)
    fault, at = run(folder / "first", made, seed)
    if fault is None:
        return
    short, fault = shortened(folder, made[: at + 1], seed, fault)
    listed = "\n".join(f"  {step}" for step in short)
    found = f"seed {seed}, step {at} of {count}: {fault!r}\n{len(short)} steps show it:\n{listed}"
    raise AssertionError(found) from fault


def run(folder: Path, made: Sequence[Step], seed: int) -> tuple[BaseException | None, int]:
    """What went wrong, and at which step; the end counts as the last."""
    folder.mkdir()
    return asyncio.run(_run(folder, made, seed))


async def _run(folder: Path, made: Sequence[Step], seed: int) -> tuple[BaseException | None, int]:
    world = World(folder, seed)
    done = 0
    fault: BaseException | None = None
    await world.begin()
    try:
        for step in made:
            await world.do(step)
            done += 1
        await world.finish()
    except Exception as error:  # whatever it is, it is what the run came to
        fault = error
    world.script.silent = True
    try:
        await world.close()
    except AssertionError as error:
        fault = fault or error
    return fault, done


def shortened(folder: Path, made: list[Step], seed: int, fault: BaseException) -> tuple[list[Step], BaseException]:
    """Leave out ever smaller pieces as long as what is left still fails in the same way."""
    tries = itertools.count()
    size = max(1, len(made) // 2)
    while size:
        start = 0
        while start < len(made):
            if (number := next(tries)) == TRIES:
                return made, fault
            fewer = made[:start] + made[start + size :]
            found, _ = run(folder / f"again-{number}", fewer, seed)
            if found is not None and _alike(found, fault):
                made, fault = fewer, found
            else:
                start += size
        size //= 2
    return made, fault


def _alike(one: BaseException, other: BaseException) -> bool:
    """Whether two runs broke the same promise."""
    if isinstance(one, Broken) and isinstance(other, Broken):
        return str(one).split(":")[0] == str(other).split(":")[0]
    return type(one) is type(other)
