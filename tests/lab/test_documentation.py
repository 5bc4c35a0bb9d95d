"""The documentation, followed to the letter on a system that has nothing of it yet: a bare Debian without a network."""

from __future__ import annotations

import shutil

import pytest
from bare_trees import bare_tree
from boxes import Box, missing
from reader import PERSON, Reader, installed_by_hand, typed
from trees import SUITES

from support.packages import System, package
from support.pages import DOCS

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

FIRST = ("installation.md", "first-steps.md")
FURTHER = ("handbook.md", "monitoring.md")
ELSEWHERE = ("upgrade.md",)  # typed by tests/daemon/test_rollback.py, between versions that really are older
PLACES = ("debian", "systemd")


@pytest.mark.parametrize("system", ["debian13", "debian12"])
def test_the_pages_followed_to_the_letter_in_a_bare_system_end_with_delivered_jobs(system: System) -> None:
    file = package(system)
    with Box(bare_tree(SUITES[system], file, installed_by_hand((*FIRST, *FURTHER)))) as box:
        assert box.run("sh", "-c", "command -v kurird curl cc", check=False).stdout == "", "it is not bare"
        box.run("useradd", "--create-home", "--shell", "/bin/bash", PERSON)
        shutil.copy(file, box.path("/root"))
        reader = Reader(box, PLACES)
        for page in FIRST:
            reader.follow(page)
        assert {"order-7", "order-8", "order-9", "order-10"} <= reader.delivered()
        assert reader.waiting() == []
        if system == "debian13":  # the same pages elsewhere, and slow: once is enough
            go_on(reader)


def go_on(reader: Reader) -> None:
    """What the operator's pages do with a device that works: a job that waits survives all of it, once."""
    before, box = reader.delivered(), reader.box
    late = box.says("kurirctl", "submit", "orders", '{"id": 99}', "--key", "late", "--delay", "1h", user=PERSON)
    for page in FURTHER:
        reader.follow(page)
    assert reader.waiting() == [late]
    box.run("kurirctl", "edit", late, "--delay", "0s", "--yes")
    box.run("kurirctl", "wait", late, "--timeout", "20s")
    assert reader.delivered() == before | {"late"}


def test_whatever_the_pages_say_to_type_on_debian_is_typed() -> None:
    pages = [page.name for page in DOCS.glob("*.md") if page.name not in (*FIRST, *FURTHER, *ELSEWHERE)]
    assert not [page for page in pages if typed(page, PLACES)]
