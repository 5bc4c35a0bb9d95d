"""Root trees as bare as an installer leaves them, in which apt can install what it needs without a network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from trees import kept_tree, mirror

BARE = ("systemd", "systemd-sysv", "dbus")
_RECIPE = 1  # counts changes of how they are made


def bare_tree(suite: str, package: Path, installs: Iterable[str]) -> Path:
    """The root of a Debian that has an init system, and nothing of what `package` (a .deb) depends on.

    `installs` are the arguments of each `apt-get install` that is to be typed there. The lists of apt, and the archives
    of all that it will want for the package and for these, lie where apt keeps them (/var/lib/apt, /var/cache/apt):
    with the network gone it goes on from there as it would with one.
    """
    typed = sorted(set(installs))
    depends = subprocess.run(
        ["dpkg-deb", "--field", str(package), "Depends", "Recommends"], capture_output=True, text=True, check=True
    ).stdout
    inside = f"/root/{package.name}"
    # mmdebstrap switches recommendations off; a device has them on.
    fetch = "apt-get --option APT::Install-Recommends=1 install --yes --download-only"

    def build(root: Path) -> None:
        fetches = "; ".join(f"{fetch} {arguments}" for arguments in (inside, *typed))
        hooks = [f"copy-in {package} /root", f'chroot "$1" sh -euc "{fetches}"', f'rm "$1{inside}"']
        # Without these three mmdebstrap would clean away what the box is to find.
        kept = "--skip=cleanup/apt,cleanup/apt/lists,cleanup/apt/cache"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(BARE)}", kept]
        command += [f"--customize-hook={hook}" for hook in hooks]
        made = subprocess.run([*command, suite, str(root), mirror()], capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"no bare tree of {suite}: {made.stderr[-3000:]}"

    return kept_tree(f"bare-{suite}", {"suite": suite, "depends": depends, "typed": typed, "recipe": _RECIPE}, build)
