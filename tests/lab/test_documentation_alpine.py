"""The documentation, followed on real Alpine: apk and OpenRC are real, and so is the daemon, on musl.

What the package needs is installed before, as packages made of a Python and of wheels for musl: no network brings those
of Alpine. What is typed with curl, which cannot be had, and with the doctor, who needs a Python with ctypes as Alpine's
is, is left out here, and typed on Debian.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alpine_root import alpine_tree, missing_alpine
from apks import needed
from boxes import Box
from disks import run
from musl_python import musl_python, musl_wheels, stand_ins
from reader import PERSON, Reader
from trees import kept_tree

from support.packages import package

pytestmark = [
    pytest.mark.lab_full,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(missing_alpine() is not None, reason=str(missing_alpine())),
]

LEFT_OUT = ("curl", "kurirctl doctor")
PAGES = ("installation.md", "first-steps.md", "handbook.md")


def alpine_with_what_is_needed(apk: Path, folder: Path) -> Path:
    """The root of an Alpine that has what the package depends on, and a user."""

    def build(root: Path) -> None:
        run("cp", "-a", alpine_tree(), root)
        packages = [shutil.copy(one, root / "tmp") for one in stand_ins(apk, folder)]
        names = [f"/tmp/{Path(one).name}" for one in packages]
        run("chroot", root, "apk", "add", "--allow-untrusted", "--no-network", *names)
        run("chroot", root, "adduser", "-D", PERSON)

    made_of = {"needs": needed(apk), "python": musl_python().name, "wheels": musl_wheels().name, "recipe": 1}
    return kept_tree("bare-alpine", made_of, build)


def test_the_pages_followed_on_alpine_end_with_delivered_jobs(tmp_path: Path) -> None:
    apk = package("alpine")
    with Box(alpine_with_what_is_needed(apk, tmp_path)) as box:
        shutil.copy(apk, box.path("/root"))
        reader = Reader(box, ("openrc",), shell="sh -euo pipefail -c", without=LEFT_OUT)
        for page in PAGES:
            reader.follow(page)
        assert "order-7" in reader.delivered()
        assert reader.waiting() == []
