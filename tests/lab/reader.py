"""Somebody who follows the documentation to the letter: takes commands out of the pages, and types them in a box."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from boxes import Box

from support import pages
from support.pages import DOCS, Block

PERSON = "alice"  # for whom the pages are written
PATIENCE = 300.0
"""Seconds that a block may take: it may install a compiler."""

_INSTALL = "apt-get install "


@dataclass(frozen=True)
class Reader:
    """Types what is meant for such a system. `places`: see support.pages; `without`: blocks that hold
    one of these words are left out."""

    box: Box
    places: tuple[str, ...]
    shell: str = "bash -euo pipefail -c"
    without: tuple[str, ...] = ()

    def follow(self, page: str) -> None:
        """Type a page, and compare what it prints with what the page shows."""
        for block in typed(page, self.places):
            if not any(word in block.text for word in self.without):
                self.type(block)

    def type(self, block: Block) -> None:
        """Type one block, in the home of who it is for."""
        user = PERSON if block.scene == "user" else ""
        home = f"/home/{user}" if user else "/root"
        if block.file is not None:
            self.box.write(f"{home}/{block.file}", block.text, owner=f"{user}:{user}")
            return
        program = "python3 -c" if block.language == "python" else self.shell
        environment = {"HOME": home, "DEBIAN_FRONTEND": "noninteractive"}
        begin = ("sh", "-c", f'cd && exec {program} "$0"', block.text)
        done = self.box.run(*begin, user=user, env=environment, check=False, timeout=PATIENCE)
        print(block, block.text, done.stdout, done.stderr, sep="\n")  # shown when the test fails
        assert done.returncode == 0, f"{block}: {done.returncode}\n{block.text}\n{done.stdout}{done.stderr}"
        if block.output is not None:
            told = pages.difference(block.output, done.stdout)
            assert told is None, f"{block}: {told}"

    def waiting(self) -> list[str]:
        """The ids of the jobs that have not ended."""
        found = json.loads(self.box.says("kurirctl", "list", "--state", "pending", "--json"))["jobs"]
        return [str(job["id"]) for job in found]

    def delivered(self) -> set[str]:
        """The idempotency keys of what the server of the pages has got, each once."""
        ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8099/').read().decode())"
        listed = json.loads(self.box.says("python3", "-c", ask))["received"]
        keys = [str(one["idempotency_key"]) for one in listed]
        assert len(keys) == len(set(keys))
        return set(keys)


def typed(page: str, places: Iterable[str]) -> list[Block]:
    """What is typed of a page on a system."""
    wanted = (None, *places)
    return [block for block in pages.blocks(DOCS / page) if block.scene in ("root", "user") and block.place in wanted]


def installed_by_hand(names: Iterable[str]) -> set[str]:
    """The arguments of every `apt-get install` of some pages, but of that of the package itself."""
    lines = [line for name in names for block in typed(name, ("debian",)) for line in block.text.splitlines()]
    found = {line.removeprefix(_INSTALL) for line in lines if line.startswith(_INSTALL)}
    return {arguments for arguments in found if "./" not in arguments}
