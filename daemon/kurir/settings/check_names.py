"""What names, people and conditions may look like. Each function returns the reason against it, or an empty string."""

from __future__ import annotations

import json
import re

from kurir.domain.hours import Hours
from kurir.system.timezone import zone

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# With what directory services put into names: user@realm, REALM\user, machine$.
_PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,127}\$?")
_INTERFACE = re.compile(r"[^\s/:\x00-\x1f\x7f]{1,15}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_ADHOC = "adhoc"
_OUTBOX = "outbox:"


def name_fault(name: str) -> str:
    """Why a destination, topic, schedule, resource or secret may not be called so."""
    if _NAME.fullmatch(name):
        return ""
    return "its name must be 1 to 64 letters, digits, _, . or -, and begin with a letter, digit or _"


def queue_name_fault(name: str) -> str:
    """Why a destination or topic may not be called so: some names mean jobs that no configuration describes."""
    if name.startswith(_OUTBOX):
        return f"names that begin with {_OUTBOX} are reserved for the outbox relay"
    return "this name is reserved for jobs that carry their own URL" if name == _ADHOC else name_fault(name)


def person_fault(text: str) -> str:
    """Why it is neither a user nor a @group."""
    return "" if _PERSON.fullmatch(text.removeprefix("@")) else 'it is neither a user nor a group such as "@staff"'


def audience_fault(text: str) -> str:
    """Why it is neither everybody, nor a user, nor a @group."""
    return "" if text == "*" else person_fault(text)


def group_fault(text: str) -> str:
    """Why it cannot be the name of a group of the system."""
    return "" if _PERSON.fullmatch(text) else "it is not the name of a group (without @)"


def network_need_fault(text: str) -> str:
    """Why no network can be asked for so."""
    if text in ("any", "unmetered", "not_roaming", "vpn"):
        return ""
    kind, _, name = text.partition(":")
    if kind == "ssid" and 1 <= len(name.encode()) <= 32 and name.isprintable():
        return ""
    if kind == "interface" and _INTERFACE.fullmatch(name) and name not in (".", ".."):
        return ""
    return "it is none of any, unmetered, not_roaming, vpn, ssid:NAME (32 bytes) and interface:NAME (15 characters)"


def hours_fault(text: str) -> str:
    """Why it is no time of day."""
    if text == "":
        return ""
    try:
        Hours.parse(text)
    except ValueError as fault:
        return f"{fault}; write local time, such as 22:00-06:00"
    return ""


def timezone_fault(text: str) -> str:
    """Why it is no time zone of this system."""
    try:
        zone(text)
    except ValueError as fault:
        return str(fault)
    return ""


def json_fault(text: str) -> str:
    """Why it is no JSON that can be sent."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        return "its JSON is nested too deeply"
    except ValueError as fault:
        return f"it is not valid JSON: {fault}"
    return ""


def pointer_fault(text: str) -> str:
    """Why it is no place in a JSON document."""
    return "" if text.startswith("/") and text.isprintable() else 'it is not a JSON pointer such as "/items/*/id"'


def absolute_path_fault(text: str) -> str:
    """Why it names no file for certain, whatever folder the daemon runs in."""
    if "\0" in text:
        return "it holds a NUL character"
    return "" if text.startswith("/") else "it is not an absolute path"


def credential_fault(text: str) -> str:
    """Why it is no file name in $CREDENTIALS_DIRECTORY."""
    safe = 1 <= len(text) <= 255 and "/" not in text and text.isprintable() and text not in (".", "..")
    return "" if safe else "it is not the name of a credential"


def variable_fault(text: str) -> str:
    """Why it is no name of an environment variable."""
    return "" if _VARIABLE.fullmatch(text) else "it is not the name of an environment variable"


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
