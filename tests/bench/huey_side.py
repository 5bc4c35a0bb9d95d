"""huey, which stores a task in the process that makes it. Prints the seconds that so many took.

python -m tests.bench.huey_side FILE TASKS
"""

from __future__ import annotations

import sys
import time

from huey import SqliteHuey
from tests.bench.jobs import PAYLOAD


def main(file: str, tasks: int) -> None:
    huey = SqliteHuey(filename=file, fsync=True)

    @huey.task()
    def deliver(payload: bytes) -> None:
        """Never run: storing alone is measured."""

    for _ in range(100):
        deliver(PAYLOAD)
    start = time.perf_counter()
    for _ in range(tasks):
        deliver(PAYLOAD)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
