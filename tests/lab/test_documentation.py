"""The documentation, followed to the letter on a system that has nothing of it yet: a bare Debian without a network.

A script takes the commands out of the pages and types them, as root and as alice, in the order in which they stand.
"""

from __future__ import annotations

import json
import shutil

import pytest
from bare_trees import bare_tree
from boxes import SUITES, Box, missing

from support import pages
from support.packages import System, package
from support.pages import DOCS, Block

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

FIRST = ("installation.md", "first-steps.md")
FURTHER = ("handbook.md", "monitoring.md")
ELSEWHERE = ("upgrade.md",)  # typed by tests/daemon/test_rollback.py, between versions that really are older
PERSON = "alice"  # for whom the pages are written
PLACES = (None, "debian", "systemd")
_INSTALL = "apt-get install "
PATIENCE = 300.0  # seconds that a block may take: it may install a compiler


def typed(page: str) -> list[Block]:
    """What is typed of a page on Debian."""
    return [block for block in pages.blocks(DOCS / page) if block.scene in ("root", "user") and block.place in PLACES]


def installed_by_hand() -> set[str]:
    """The arguments of every `apt-get install` of the pages, but of that of the package itself."""
    lines = [line for page in (*FIRST, *FURTHER) for block in typed(page) for line in block.text.splitlines()]
    found = {line.removeprefix(_INSTALL) for line in lines if line.startswith(_INSTALL)}
    return {arguments for arguments in found if "./" not in arguments}


def follow(box: Box, page: str) -> None:
    """Type a page, and compare what it prints with what the page shows."""
    for block in typed(page):
        user = PERSON if block.scene == "user" else ""
        home = f"/home/{user}" if user else "/root"
        if block.file is not None:
            box.write(f"{home}/{block.file}", block.text, owner=f"{user}:{user}")
            continue
        program = "python3 -c" if block.language == "python" else "bash -euo pipefail -c"
        environment = {"HOME": home, "DEBIAN_FRONTEND": "noninteractive"}
        begin = ("sh", "-c", f'cd && exec {program} "$0"', block.text)
        done = box.run(*begin, user=user, env=environment, check=False, timeout=PATIENCE)
        print(block, block.text, done.stdout, done.stderr, sep="\n")  # shown when the test fails
        assert done.returncode == 0, f"{block}: {done.returncode}\n{block.text}\n{done.stdout}{done.stderr}"
        if block.output is not None:
            told = pages.difference(block.output, done.stdout)
            assert told is None, f"{block}: {told}"


@pytest.mark.parametrize("system", ["debian13"])
def test_the_pages_followed_to_the_letter_in_a_bare_system_end_with_delivered_jobs(system: System) -> None:
    file = package(system)
    with Box(bare_tree(SUITES[system], file, installed_by_hand())) as box:
        assert box.run("sh", "-c", "command -v kurird curl cc", check=False).stdout == "", "it is not bare"
        box.run("useradd", "--create-home", "--shell", "/bin/bash", PERSON)
        shutil.copy(file, box.path("/root"))
        for page in FIRST:
            follow(box, page)
        assert {"order-7", "order-8", "order-9", "order-10"} <= delivered(box)
        assert waiting(box) == []
        if system == "debian13":  # the same pages elsewhere, and slow: once is enough
            go_on(box)


def go_on(box: Box) -> None:
    """What the operator's pages do with a device that works: a job that waits survives all of it, once."""
    before = delivered(box)
    late = box.says("kurirctl", "submit", "orders", '{"id": 99}', "--key", "late", "--delay", "1h", user=PERSON)
    for page in FURTHER:
        follow(box, page)
    assert waiting(box) == [late]
    box.run("kurirctl", "edit", late, "--delay", "0s", "--yes")
    box.run("kurirctl", "wait", late, "--timeout", "20s")
    assert delivered(box) == before | {"late"}


def delivered(box: Box) -> set[str]:
    """The idempotency keys of what the server of the pages has got, each once."""
    listed = json.loads(box.says("curl", "-sS", "http://127.0.0.1:8099/"))["received"]
    keys = [str(one["idempotency_key"]) for one in listed]
    assert len(keys) == len(set(keys))
    return set(keys)


def waiting(box: Box) -> list[str]:
    """The ids of the jobs that have not ended."""
    found = json.loads(box.says("kurirctl", "list", "--state", "pending", "--json"))["jobs"]
    return [str(job["id"]) for job in found]


def test_whatever_the_pages_say_to_type_on_debian_is_typed() -> None:
    elsewhere = [
        page.name for page in DOCS.glob("*.md") if page.name not in (*FIRST, *FURTHER, *ELSEWHERE) and typed(page.name)
    ]
    assert not elsewhere
