"""What the packages have in common with packaging/debian, which is where it stands: description, dependencies, scripts,
changelog and copyright."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sources import ROOT
from systems import Package, System

FOLDER = ROOT / "packaging" / "debian"
SNIPPETS = ROOT / "packaging" / "builder" / "debhelper"
SCRIPTS = ("postinst", "prerm", "postrm")
_VENDOR = re.compile(r"^Files: usr/lib/kurird/vendor/(?P<name>[^/\s]+)/")


def fields() -> dict[str, str]:
    """The fields of the source and of the package, as debian/control has them."""
    found: dict[str, str] = {}
    for paragraph in (FOLDER / "control").read_text(encoding="utf-8").split("\n\n"):
        name = ""
        for line in paragraph.splitlines():
            if line[:1].isspace():
                found[name] += "\n" + line
            else:
                name, _, value = line.partition(":")
                found[name] = value.strip()
    return found


def relations(name: str) -> list[str]:
    """The entries of a field such as Depends, without what debhelper fills in."""
    entries = (re.sub(r"\s+", " ", entry).strip() for entry in fields().get(name, "").split(","))
    return [entry for entry in entries if entry and not entry.startswith("${")]


def depends(system: System) -> list[str]:
    """What a package for a system depends on: what it brings itself is left out."""
    brought = {f"python3-{name}" for name in system.vendored}
    entries = (entry for entry in relations("Depends") if entry.split()[0] not in brought)
    return [*(_without(system.absent, entry) for entry in entries), *system.depends]


def _without(absent: Collection[str], entry: str) -> str:
    """An entry without the alternatives that a release does not have."""
    return " | ".join(one for one in entry.split(" | ") if one.split()[0] not in absent)


def description(package: Package, scripts: Path) -> dict[str, Any]:
    """What nfpm is told of a .deb, but for its content. The scripts are written into a folder."""
    for name in SCRIPTS:
        (scripts / name).write_text(script(name), encoding="utf-8")
    known = fields()
    return {
        "name": known["Package"],
        "arch": package.architecture,
        "version": package.version,
        "section": known["Section"],
        "priority": known["Priority"],
        "maintainer": known["Maintainer"],
        "description": _text(known["Description"]),
        "depends": depends(package.system),
        "recommends": relations("Recommends"),
        "suggests": relations("Suggests"),
        "scripts": {
            "postinstall": str(scripts / "postinst"),
            "preremove": str(scripts / "prerm"),
            "postremove": str(scripts / "postrm"),
        },
        "deb": {"compression": "xz"},
    }


def _text(description: str) -> str:
    """The synopsis, and below it the description without the indentation and the dots of empty lines."""
    first, *rest = description.splitlines()
    return "\n".join([first, *("" if line.strip() == "." else line.strip() for line in rest)])


def script(name: str) -> str:
    """A maintainer script, with what debhelper would put in the place of its mark."""
    text = (FOLDER / f"kurird.{name}").read_text(encoding="utf-8")
    return text.replace("#DEBHELPER#\n", (SNIPPETS / name).read_text(encoding="utf-8"))


def changelog(version: str) -> str:
    """The changelog, its newest entry under the version of this very package."""
    text = (FOLDER / "changelog").read_text(encoding="utf-8")
    return re.sub(r"(?m)\A(?P<name>\S+) \([^)]+\)", rf"\g<name> ({version})", text)


def copyright_of(vendor: Path) -> str:
    """The copyright file, of what is vendored the part that is in this package."""
    present = {path.name for path in vendor.iterdir()} if vendor.is_dir() else set()
    paragraphs = (FOLDER / "copyright").read_text(encoding="utf-8").strip().split("\n\n")
    kept = [text for text in paragraphs if (of := _VENDOR.match(text)) is None or of["name"] in present]
    used = " ".join(re.findall(r"^License: (.+)", "\n".join(text for text in kept if text.startswith("Files: ")), re.M))
    licences = {
        text: text.partition("\n")[0].removeprefix("License: ") for text in kept if text.startswith("License: ")
    }
    return "\n\n".join(text for text in kept if text not in licences or licences[text] in used.split()) + "\n"
