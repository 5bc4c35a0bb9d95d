"""What the packages share with packaging/alpine/APKBUILD, which is where it stands, and what they do beyond it.

A package of Alpine's own would enable and start nothing, and would leave byte code to a package of its own. This one is
installed by somebody who wants kurird to run.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from sources import ROOT
from systems import Package

FOLDER = ROOT / "packaging" / "alpine"
EXTRA = ROOT / "packaging" / "builder" / "apk"
OWN_SCRIPTS = ("pre-install", "pre-upgrade")
EXTRA_SCRIPTS = ("post-install", "post-upgrade", "pre-deinstall", "post-deinstall")
# Of cronsim, msgspec and prometheus-client.
VENDORED_LICENCES = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause")


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


def description(package: Package, scripts: Path) -> dict[str, Any]:
    """What nfpm is told of an .apk, but for its content. The scripts are written into a folder."""
    version, _, release = package.version.rpartition("-")
    for name in OWN_SCRIPTS:
        shutil.copyfile(FOLDER / f"kurird.{name}", scripts / name)
    for name in EXTRA_SCRIPTS:
        shutil.copyfile(EXTRA / name, scripts / name)
    return {
        "name": field("pkgname"),
        "arch": package.architecture,
        "version": version,
        "release": release.removeprefix("r"),
        "maintainer": "kurird developers <kurird@packages.invalid>",
        "description": field("pkgdesc"),
        "license": " AND ".join([field("license"), *VENDORED_LICENCES]),
        "depends": depends(package),
        "scripts": {
            "preinstall": str(scripts / "pre-install"),
            "postinstall": str(scripts / "post-install"),
            "preremove": str(scripts / "pre-deinstall"),
            "postremove": str(scripts / "post-deinstall"),
        },
        "apk": {"scripts": {"preupgrade": str(scripts / "pre-upgrade"), "postupgrade": str(scripts / "post-upgrade")}},
    }
