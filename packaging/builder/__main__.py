"""Makes the packages: `make packages` runs it. Built twice from the same commit, they are the same bytes."""

from __future__ import annotations

import argparse
from pathlib import Path

import nfpm
import sources
from layout import stage
from sources import ROOT
from systems import SYSTEMS, Package, system


def main() -> None:
    """Build what the command line asks for, and print where each package is."""
    options = _parser().parse_args()
    program, epoch = options.version or sources.version(), sources.epoch()
    for name in options.system or SYSTEMS:
        chosen = system(name)
        for architecture in chosen.architectures:
            if options.arch in (None, architecture) or architecture == "all":
                print(build(Package(chosen, architecture, program, epoch), options))


def build(package: Package, options: argparse.Namespace) -> Path:
    """Build a package; returns its file."""
    target: Path = options.out / package.file_name
    made = stage(package, options.work / f"{package.system.name}-{package.architecture}", options.cache)
    nfpm.pack(package, made, options.cache, target, options.key)
    return target


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__)
    parser.add_argument("--system", action="append", help=f"only for this one; may be repeated ({', '.join(SYSTEMS)})")
    parser.add_argument("--arch", help="only for this architecture, in Debian's words: amd64 or arm64")
    parser.add_argument("--version", help="instead of the program's own, to try an upgrade")
    parser.add_argument(
        "--key", type=Path, help="sign packages for Alpine with this RSA key; NAME.rsa for NAME.rsa.pub"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "packages", help="where the packages go")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "packaging", help="where they are laid out")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "packaging-cache", help="what was downloaded")
    return parser


if __name__ == "__main__":
    main()
