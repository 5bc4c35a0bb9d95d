"""Who may do what: the socket and the groups, the folder of the state, the files of secrets."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kurir.cli.doctor.facts import Facts, may_read, user_name
from kurir.cli.doctor.finding import Finding, note, ok, wrong

SOCKET, STATE, SECRETS = "socket", "state", "secrets"
PRIVATE = 0o027  # what others may not do with the state


def socket(facts: Facts) -> Iterator[Finding]:
    """The socket, its folder, and whether this user may connect."""
    path = facts.socket
    try:
        status = path.stat()
    except PermissionError:
        yield wrong(SOCKET, f"you may not look into {path.parent}", f"sudo chmod 0755 {path.parent}")
        return
    except OSError:
        return  # said already: nobody can be reached there
    if not stat.S_ISSOCK(status.st_mode):
        yield wrong(SOCKET, f"{path} is no socket", f"remove it, and start kurird again; or set KURIR_SOCKET: {path}")
        return
    yield from _folder_of_socket(path.parent)
    mode, group = stat.S_IMODE(status.st_mode), _group_name(status.st_gid)
    if not os.access(path, os.W_OK):
        yield _not_a_member(facts, group)
        return
    if mode & 0o006:
        yield note(SOCKET, f"everybody may use {path} (mode {mode:04o})", f"chmod 0660 {path}")
    elif group != facts.group and not _exists(facts.group):
        cure = f"sudo groupadd --system {facts.group}, then restart kurird"
        who = " and ".join(dict.fromkeys(("root", user_name(status.st_uid))))
        yield note(SOCKET, f"there is no group {facts.group}: only {who} may use it", cure)
    else:
        yield ok(SOCKET, f"{path}, mode {mode:04o}, group {group}; you may use it")


def _folder_of_socket(folder: Path) -> Iterator[Finding]:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        yield wrong(
            SOCKET, f"others may put another socket into {folder} (mode {mode:04o})", f"sudo chmod 0755 {folder}"
        )


def _not_a_member(facts: Facts, group: str) -> Finding:
    user = user_name(os.geteuid())
    detail = f"{facts.socket} is for the group {group}, which you ({user}) do not act in"
    try:
        members = grp.getgrnam(group).gr_mem
    except KeyError:
        members = []
    if user in members:
        return wrong(SOCKET, f"{detail} yet, although you are a member", f"log in again, or say: newgrp {group}")
    return wrong(SOCKET, detail, f"sudo usermod -aG {facts.group} {user}, then log in again")


def state(facts: Facts) -> Iterator[Finding]:
    """The folder of the queue: there, private, and the daemon's own."""
    path = facts.state_dir
    try:
        status = path.lstat()
    except FileNotFoundError:
        if facts.status is not None:
            yield note(
                STATE, f"there is no {path}; the daemon that runs keeps its state elsewhere", "give --config FILE"
            )
        else:
            yield note(STATE, f"there is no {path} yet: kurird makes it at its first start")
        return
    except OSError as error:
        yield note(STATE, f"{path} cannot be looked at: {error.strerror}", "sudo kurirctl doctor")
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        yield wrong(STATE, f"{path} is no folder, or a symbolic link", "set daemon.state_dir to a folder")
    elif mode & PRIVATE:
        yield wrong(STATE, f"others may look into {path} (mode {mode:04o})", f"sudo chmod 0700 {path}")
    elif facts.daemon_uid is not None and status.st_uid != facts.daemon_uid:
        owner, daemon = user_name(status.st_uid), user_name(facts.daemon_uid)
        yield wrong(STATE, f"{path} belongs to {owner}, not to {daemon}", f"sudo chown -R {daemon}: {path}")
    else:
        yield ok(STATE, f"{path}, mode {mode:04o}, of {user_name(status.st_uid)}")


def secrets(facts: Facts) -> Iterator[Finding]:
    """Each secret that is a file: there, readable for the daemon, and for nobody who uses the socket."""
    files = [one for one in facts.secrets if one.get("kind") == "file"]
    found = [finding for one in files for finding in _secret(facts, one["name"], Path(one["where"]))]
    yield from found
    if files and not found:
        yield ok(SECRETS, f"{len(files)} of them in files that kurird may read and others may not")
    elsewhere = len(facts.secrets) - len(files)
    if elsewhere:
        yield note(SECRETS, f"{elsewhere} come from the service's environment or credentials: only kurird sees them")


def _secret(facts: Facts, name: str, path: Path) -> Iterator[Finding]:
    service = "kurird" if facts.daemon_uid is None else user_name(facts.daemon_uid)
    mend = f"sudo chown root:{service} {path} && sudo chmod 0640 {path}"
    try:
        status = path.stat()
    except PermissionError:
        yield note(SECRETS, f"{name}: you may not look at {path}", "sudo kurirctl doctor")
        return
    except OSError as error:
        yield wrong(SECRETS, f"{name}: {path}: {error.strerror}", f"put the secret into {path}; {mend}")
        return
    exposed = status.st_mode & 0o060 and _group_name(status.st_gid) == facts.group
    if status.st_mode & 0o006 or exposed:
        yield wrong(SECRETS, f"{name}: others may read {path} (mode {stat.S_IMODE(status.st_mode):04o})", mend)
    elif facts.daemon_uid is not None and not may_read(facts.daemon_uid, status):
        yield wrong(SECRETS, f"{name}: {service} may not read {path}", mend)
    elif status.st_size == 0:
        yield wrong(SECRETS, f"{name}: {path} is empty", f"put the secret into {path}")


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def _exists(group: str) -> bool:
    try:
        grp.getgrnam(group)
    except KeyError:
        return False
    return True
