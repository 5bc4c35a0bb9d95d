"""What the packages share with packaging/alpine/APKBUILD, which is where it stands, and what they do beyond it.

A package of Alpine's own would enable and start nothing, and would leave byte code to a package of its own. This one is
installed by somebody who wants kurird to run.
"""

from __future__ import annotations

import re
from typing import Any

from sources import ROOT
from systems import Package

FOLDER = ROOT / "packaging" / "alpine"
EXTRA = ROOT / "packaging" / "builder" / "apk"


def field(name: str) -> str:
    """The value of a variable of the APKBUILD, on one line."""
    text = (FOLDER / "APKBUILD").read_text(encoding="utf-8")
    found = re.search(rf'^{name}=(?:"(?P<quoted>[^"]*)"|(?P<plain>\S*))', text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"cannot package: APKBUILD has no {name}")
    return " ".join((found["quoted"] or found["plain"]).split())


def depends(package: Package) -> list[str]:
    """What a package depends on: what it brings itself is left out."""
    brought = {f"py3-{name}" for name in package.system.vendored}
    return [entry for entry in field("depends").split() if re.split("[<>=~]", entry)[0] not in brought]


def description(package: Package) -> dict[str, Any]:
    """What nfpm is told of an .apk, but for its content."""
    version, _, release = package.version.rpartition("-")
    own = {name: str(FOLDER / f"kurird.{name}") for name in ("pre-install", "pre-upgrade")}
    extra = {name: str(EXTRA / name) for name in ("post-install", "post-upgrade", "pre-deinstall", "post-deinstall")}
    scripts = own | extra
    return {
        "name": field("pkgname"),
        "arch": package.architecture,
        "version": version,
        "release": release.removeprefix("r"),
        "maintainer": "kurird developers <kurird@packages.invalid>",
        "description": field("pkgdesc"),
        "license": field("license"),
        "depends": depends(package),
        "scripts": {
            "preinstall": scripts["pre-install"],
            "postinstall": scripts["post-install"],
            "preremove": scripts["pre-deinstall"],
            "postremove": scripts["post-deinstall"],
        },
        "apk": {"scripts": {"preupgrade": scripts["pre-upgrade"], "postupgrade": scripts["post-upgrade"]}},
    }
