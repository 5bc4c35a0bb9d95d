"""Which file of the checkout goes where on the device: a package as a folder, before it is packed."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import bytecode
import debian
import sources
import wheels
from sources import ROOT
from systems import Package

CODE = "/usr/lib/kurird"
DOC = "/usr/share/doc/kurird"

UNITS = {
    "systemd/kurird.service": "/usr/lib/systemd/system/kurird.service",
    "systemd/kurird.socket": "/usr/lib/systemd/system/kurird.socket",
    "systemd/kurir-relay@.service": "/usr/lib/systemd/user/kurir-relay@.service",
    "systemd/kurird-textfile.service": "/usr/lib/systemd/system/kurird-textfile.service",
    "systemd/kurird-textfile.timer": "/usr/lib/systemd/system/kurird-textfile.timer",
    "systemd/kurird.sysusers": "/usr/lib/sysusers.d/kurird.conf",
    "systemd/kurird.tmpfiles": "/usr/lib/tmpfiles.d/kurird.conf",
    "packaging/dbus/kurird.conf": "/usr/share/dbus-1/system.d/kurird.conf",
    "packaging/polkit/kurird.rules": "/usr/share/polkit-1/rules.d/kurird.rules",
}
PROGRAMS = {f"packaging/launchers/{name}": f"/usr/bin/{name}" for name in ("kurird", "kurirctl")}
# Upgrades keep them as the administrator left them. This one may come to hold what not everybody should read.
CONFIGURATION = {"packaging/kurird.toml": "/etc/kurir/kurird.toml"}
OPENRC = {"openrc/kurird.confd": "/etc/conf.d/kurird", "packaging/logrotate/kurird": "/etc/logrotate.d/kurird"}
OPENRC_SERVICE = {"openrc/kurird.initd": "/etc/init.d/kurird"}
FOLDERS = ("/etc/kurir", "/etc/kurir/kurird.toml.d")
COMPLETION = {
    "bash": "/usr/share/bash-completion/completions/kurirctl",
    "fish": "/usr/share/fish/vendor_completions.d/kurirctl.fish",
}


@dataclass
class Stage:
    """A package as a folder. Modes of what is not 0644, groups of what is not root's, links, by their place there."""

    root: Path
    modes: dict[str, int] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    configuration: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)

    def write(self, place: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file in its place."""
        file = self.root / place.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if mode != 0o644:
            self.modes[place] = mode

    def copy(self, table: dict[str, str], mode: int = 0o644) -> None:
        """Put files of the checkout in their places."""
        for source, place in table.items():
            self.write(place, (ROOT / source).read_bytes(), mode)

    def configure(self, table: dict[str, str], mode: int = 0o644) -> None:
        """The same, of what the administrator may change."""
        self.copy(table, mode)
        self.configuration.update(table.values())


def stage(package: Package, root: Path, cache: Path) -> Stage:
    """Lay out a package in an empty folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    made = Stage(root)
    _code(made, package, cache)
    made.copy(PROGRAMS, mode=0o755)
    made.copy(UNITS)
    made.configure(CONFIGURATION, mode=0o640)
    _documentation(made)
    for shell, place in COMPLETION.items():
        made.write(place, _completion(shell))
    if package.system.packager == "deb":
        _debian(made, package)
    else:
        _alpine(made)
    return made


def _code(made: Stage, package: Package, cache: Path) -> None:
    for file in sources.files("daemon/kurir"):
        if file.suffix in {".py", ".sql"} or file.name == "py.typed":
            made.write(f"{CODE}/kurir/{file.relative_to(ROOT / 'daemon' / 'kurir')}", file.read_bytes())
    vendor = made.root / CODE.lstrip("/") / "vendor"
    wheels.vendor(package, vendor, cache / "wheels")
    if package.system.compiled:
        for python in package.system.pythons:
            bytecode.compile_tree(made.root, [CODE], python, cache / "interpreters")


def _documentation(made: Stage) -> None:
    for page in sources.files("packaging/docs", "*.md"):
        made.write(f"{DOC}/{page.relative_to(ROOT / 'packaging' / 'docs')}", page.read_bytes())
    for file in sources.files("packaging/monitoring"):
        made.write(f"{DOC}/monitoring/{file.name}", file.read_bytes())
    for page in sources.files("packaging/man"):
        made.write(f"/usr/share/man/man{page.suffix[1:]}/{page.name}.gz", compressed(page.read_bytes()))


def _debian(made: Stage, package: Package) -> None:
    made.write(f"{DOC}/changelog.gz", compressed((ROOT / "packaging" / "docs" / "changelog.md").read_bytes()))
    made.write(f"{DOC}/changelog.Debian.gz", compressed(debian.changelog(package.version).encode()))
    made.write(f"{DOC}/copyright", debian.copyright_of(made.root / CODE.lstrip("/") / "vendor").encode())
    made.write("/usr/share/zsh/vendor-completions/_kurirctl", _completion("zsh"))
    overrides = ROOT / "packaging" / "debian" / "kurird.lintian-overrides"
    made.write("/usr/share/lintian/overrides/kurird", overrides.read_bytes())
    # So that programs of the distribution's Python can say: from kurir.client import Client.
    made.links["/usr/lib/python3/dist-packages/kurir"] = "../../kurird/kurir"


def _alpine(made: Stage) -> None:
    made.groups.update(dict.fromkeys(CONFIGURATION.values(), "kurird"))  # made before anything is unpacked
    made.copy(OPENRC_SERVICE, mode=0o755)
    made.configure(OPENRC)
    made.copy({"packaging/launchers/compile": f"{CODE}/compile"}, mode=0o755)
    made.copy({"LICENSE": "/usr/share/licenses/kurird/LICENSE"})
    made.write("/usr/share/zsh/site-functions/_kurirctl", _completion("zsh"))


def _completion(shell: str) -> bytes:
    """What kurirctl prints for a shell."""
    program = "import sys; from kurir.cli.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "completion", shell]
    environment = {"PYTHONPATH": str(ROOT / "daemon"), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, check=True, capture_output=True, env=environment).stdout  # noqa: S603 - our own code


def compressed(content: bytes) -> bytes:
    """In the form that pages and changelogs have on a device: small, and without a time."""
    return gzip.compress(content, 9, mtime=0)
