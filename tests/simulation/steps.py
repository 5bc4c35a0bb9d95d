"""What may happen to a queue, as values: a list of steps is made from a seed, can be run again, and can be shortened.

A step names jobs by a number that is taken modulo those that there are, so that it means something in any list.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

TOPICS = ("plain", "keyed", "strict", "latest", "single", "put")
MOODS = ("healthy", "healthy", "mixed", "mixed", "rude", "sick")
ANSWERS = ("200", "200", "200", "503", "400", "409", "410", "418", "429", "401", "reset", "timeout", "refused")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens. `what` names a method of the world, `args` are its arguments."""

    what: str
    args: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"


def steps(seed: int, count: int) -> list[Step]:
    """The steps of a seed."""
    chance = random.Random(seed)
    names = list(_WEIGHTS)
    chosen = chance.choices(names, [_WEIGHTS[name] for name in names], k=count)
    return [Step(name, _MAKE.get(name, _nothing)(chance)) for name in chosen]


_WEIGHTS = {
    "submit": 40, "answer": 14, "answer_all": 3, "cancel": 5, "retry": 6, "edit": 7, "discard_all": 1, "retry_all": 1,
    "pause": 2, "resume": 4, "network": 3, "pass_time": 12, "step_wall": 2, "suspend": 1, "mood": 5, "flush": 1,
    "power": 2, "crash": 2, "crash_amid": 3, "restart": 2,
}  # fmt: skip


def _nothing(chance: random.Random) -> dict[str, object]:
    return {}


def _which(chance: random.Random) -> dict[str, object]:
    return {"which": chance.randrange(40)}


def _submit(chance: random.Random) -> dict[str, object]:
    topic = chance.choice(TOPICS)
    owner = chance.choice((1000, 1000, 1001))
    made: dict[str, object] = {"topic": topic, "owner": owner, "salt": chance.randrange(10**6)}
    if topic in ("keyed", "strict", "latest") or chance.random() < (0.4 if topic == "put" else 0.15):
        made["ordering_key"] = f"k{chance.randrange(3)}"
    if topic == "put":
        made["path"] = f"/item/{chance.randrange(2)}"
    if chance.random() < 0.3:
        made["priority"] = chance.choice((-100, -5, 7, 100))
    if chance.random() < 0.2:
        made["unique"] = {"key": f"u{chance.randrange(2)}", "policy": chance.choice(("keep", "replace", "append"))}
    if chance.random() < 0.15:
        made["parents"] = [chance.randrange(20) for _ in range(chance.randint(1, 2))]
    if chance.random() < 0.15:
        made["delay"] = chance.choice((100, 5_000, 90_000))
    elif chance.random() < 0.05:
        made["not_before"] = chance.choice((-60_000, 5_000, 600_000))
    if chance.random() < 0.1:
        made["expires_in"] = chance.choice((1_000, 30_000, 600_000))
    if chance.random() < 0.1:
        made["max_attempts"] = chance.choice((1, 2))
    if chance.random() < 0.15:
        made["needs"] = chance.choice(({"network": "unmetered"}, {"power": "external"}))
    if "ordering_key" in made and chance.random() < 0.2:
        made["unless"] = {"newer_in_key": True}
    if chance.random() < 0.1:
        made["idempotency_key"] = f"i{chance.randrange(3)}"
    return made


def _edit(chance: random.Random) -> dict[str, object]:
    made: dict[str, object] = {"which": chance.randrange(40), "accept_duplicate": chance.random() < 0.5}
    if chance.random() < 0.6:
        made["text"] = f"edited {chance.randrange(10**6)}"
    if chance.random() < 0.3:
        made["path"] = f"/item/{chance.randrange(2)}"
    if chance.random() < 0.3:
        made["priority"] = chance.choice((-100, 0, 100))
    if chance.random() < 0.3:
        made["delay"] = chance.choice((0, 2_000, 60_000))
    if chance.random() < 0.2:
        made["expires_in"] = chance.choice((1_000, 600_000))
    return made


def _crash_amid(chance: random.Random) -> dict[str, object]:
    boot, turns = chance.random() < 0.2, chance.randrange(12)
    return {"boot": boot, "turns": turns, "new": chance.randrange(4), "answer": chance.choice(ANSWERS)}


def _gate(chance: random.Random) -> dict[str, object]:
    kind = chance.choice(("topic", "destination"))
    return {"kind": kind, "name": chance.choice(TOPICS if kind == "topic" else ("a", "b"))}


_MAKE: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "submit": _submit,
    "edit": _edit,
    "answer": lambda c: {"which": c.randrange(40), "answer": c.choice(ANSWERS)},
    "answer_all": lambda c: {"answer": c.choice(("200", "503", "reset"))},
    "cancel": _which,
    "retry": _which,
    "discard_all": lambda c: {"owner": c.choice((1000, 1001))},
    "retry_all": lambda c: {"owner": c.choice((1000, 1001))},
    "pause": _gate,
    "resume": _gate,
    "network": lambda c: {"up": c.random() < 0.7, "metered": c.random() < 0.3},
    "power": lambda c: {"plugged": c.random() < 0.6},
    "pass_time": lambda c: {"milliseconds": round(10 ** c.uniform(1, 6.3))},
    "step_wall": lambda c: {"milliseconds": c.choice((-3_600_000, -5_000, 5_000, 3_600_000))},
    "suspend": lambda c: {"milliseconds": c.choice((1_000, 600_000))},
    "mood": lambda c: {"destination": c.choice(("a", "b")), "mood": c.choice(MOODS)},
    "crash": lambda c: {"boot": c.random() < 0.2},
    "crash_amid": _crash_amid,
}
