"""The systems that packages are made for: how they package, which Python they run, and what they lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class System:
    """One release of a distribution (or several that are served by the same package).

    `vendored` names what is taken from PyPI, at the versions and hashes of requirements.lock, because the distribution
    has it not at all or below the floor of pyproject.toml, or because something vendored asks for more than it has.
    """

    name: str
    packager: Literal["deb", "apk"]
    # In the words of Debian; "all" where nothing in it is machine code.
    architectures: tuple[str, ...]
    # The minor versions of Python 3 that run it. More than one: modules of C are there once for each.
    pythons: tuple[int, ...]
    # Whether byte code is made at build time; otherwise by the package's script, with the interpreter that it finds.
    compiled: bool
    # What pip calls the C library, and the newest version of it that a wheel may ask for.
    libc: tuple[str, int, int]
    vendored: tuple[str, ...]
    # Packages that it has not and that something else stands in for, as an alternative says.
    absent: tuple[str, ...] = ()
    # What is needed beside what every package depends on.
    depends: tuple[str, ...] = ()
    # Of the package, for the same version of the program.
    release: str = "1"
    # Ends the version, so that packages for two releases can lie side by side and an upgrade of the release is one.
    suffix: str = ""


SYSTEMS = {
    system.name: system
    for system in (
        System(
            name="debian13",
            packager="deb",
            architectures=("all",),
            pythons=(13,),
            compiled=True,
            libc=("manylinux", 2, 41),
            vendored=(),
            suffix="~deb13",
        ),
        System(
            name="debian12",
            packager="deb",
            architectures=("amd64", "arm64"),
            pythons=(11,),
            compiled=True,
            libc=("manylinux", 2, 36),
            # Its aiohttp, multidict, prometheus-client, rich, structlog and yarl are below our floors, its aiosignal
            # and markdown-it-py below those of aiohttp and rich; the others it has not.
            vendored=(
                *("aiohappyeyeballs", "aiohttp", "aiosignal", "cronsim", "markdown-it-py", "msgspec", "multidict"),
                *("prometheus-client", "propcache", "rich", "structlog", "yarl"),
            ),
            absent=("python3-sdbus",),
            # What the vendored ones need beside them, and the one version of Python that their machine code is for.
            depends=(
                *("python3 (<< 3.12)", "libc6 (>= 2.28)", "python3-attr (>= 17.3)", "python3-frozenlist (>= 1.1.1)"),
                *("python3-idna", "python3-mdurl", "python3-pygments (>= 2.13)", "python3-typing-extensions (>= 4.4)"),
            ),
            suffix="~deb12",
        ),
        # 3.23 has Python 3.12, 3.24 has 3.14: one package serves both, and the byte code is made where it is installed,
        # since the Python there may become another one while the package stays.
        System(
            name="alpine",
            packager="apk",
            architectures=("amd64", "arm64"),
            pythons=(12, 13, 14),
            compiled=False,
            libc=("musllinux", 1, 2),
            # Its prometheus-client is below our floor, the others it has not.
            vendored=("cronsim", "msgspec", "prometheus-client"),
            release="r0",
        ),
    )
}

# The names that wheels and Alpine have for Debian's architectures.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Package:
    """One package to be made. `epoch`: seconds since 1970, the time of all that is in it."""

    system: System
    architecture: str
    program: str
    epoch: int

    @property
    def version(self) -> str:
        """Of the package: that of the program, and what tells packages of it apart."""
        return f"{self.program}-{self.system.release}{self.system.suffix}"

    @property
    def machine(self) -> str:
        """The architecture in the words of wheels and of Alpine."""
        return MACHINES.get(self.architecture, "any")

    @property
    def file_name(self) -> str:
        """As the distribution names its own."""
        if self.system.packager == "deb":
            return f"kurird_{self.version}_{self.architecture}.deb"
        return f"kurird-{self.version}-{self.machine}.apk"


def system(name: str) -> System:
    """The system of that name. Raises SystemExit with the names that there are."""
    if name not in SYSTEMS:
        raise SystemExit(f"there is no system {name!r}: {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
