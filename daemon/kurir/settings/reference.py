"""The reference of the configuration, rendered from the tables that read it: `python -m kurir.settings.reference`.

Keys, types, defaults and descriptions come from the same annotations that check an operator's file, so the committed
page can be compared with what this renders, and never tells another story.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import Enum, EnumType
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo

from kurir.settings.document import Document
from kurir.settings.units import Duration, OptionalRate, OptionalSpan, Quantity, Size, Span

_INTRODUCTION = """\
# Configuration

`kurird` reads `/etc/kurir/kurird.toml`, then `/etc/kurir/kurird.toml.d/*.toml` in the order of their names: tables
merge, values replace. `kurird --config FILE` (or `KURIR_CONFIG=FILE`) reads FILE, then `FILE.d/*.toml`.
`kurird --check` says what is wrong with it, and changes nothing. `SIGHUP` reloads; a configuration that cannot be used
changes nothing either, and `kurirctl status` says why. Changes of `daemon.state_dir`, `daemon.runtime_dir`,
`daemon.allow_network_fs`, `access.group`, `limits.crash_limit`, `metrics.listen`, `network.source`, `power.source` and
`clock.trust` take effect with the next start; a reload that meets one says so in the log.

- An empty file is valid. An unknown key is an error that names the nearest known one.
- A file or folder that group or others may write, or that neither root nor the running user owns, is refused.
- Durations: `"250ms"`, `"30s"`, `"5m"`, `"24h"`, `"30d"`. Sizes: `"512B"`, `"64KiB"`, `"16MiB"`, `"1GiB"`.
  Rates: `"20/s"`, `"100/m"`. `""` means none where the table says *or none*.
- `{secret:NAME}` in a string that may hold it is filled in when a request is sent, from `[secrets]`.
  `{secret:oauth}` in the headers of a destination with `oauth`, and of its topics, is the token that it bought.
- An explicit `state_dir` or `runtime_dir` wins over the environment.
- Read and checked, but not acted upon yet: `[cache]`, `[resources.NAME]`.

The smallest useful one:

```toml
[destinations.api]
url = "https://api.example.com/v2"

[topics.orders]
destination = "api"
path = "/orders"
```

This page is generated from the code (`make docs`).
"""

_QUANTITIES: dict[type, str] = {
    Duration: "duration",
    Span: "duration, not zero",
    OptionalSpan: "duration, not zero, or none",
    Size: "size",
    OptionalRate: "rate, or none",
}
_PLAIN: dict[type, str] = {str: "string", int: "whole number", bool: "true or false"}


def render() -> str:
    """The whole page, as Markdown."""
    return "\n".join((_INTRODUCTION, *_tables(Document, ()))).rstrip("\n") + "\n"


def _tables(kind: type[Struct], path: Sequence[str]) -> Iterator[str]:
    """A section for a table and those within it; the root itself has no keys of its own."""
    hints = get_type_hints(kind, include_extras=True)
    keys, below = [], []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.encode_name]
        table, named = _table_of(hint)
        if table is None:
            keys.append(_row(field, hint))
        else:
            below.append((table, (*path, field.encode_name, *(("NAME",) if named else ()))))
    if path:
        yield f"## [{'.'.join(path)}]\n"
        yield f"{_sentence(kind.__doc__ or '')}\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        yield from keys
        yield ""
    for table, place in below:
        yield from _tables(table, place)


def _table_of(hint: Any) -> tuple[type[Struct] | None, bool]:
    """The table that a key holds, if it is one, and whether it holds one for each of many names."""
    plain = _without_none(hint)
    if get_origin(plain) is dict:
        below = _without_none(get_args(plain)[1])
        return (below, True) if _is_table(below) else (None, False)
    return (plain, False) if _is_table(plain) else (None, False)


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _row(field: FieldInfo, hint: Any) -> str:
    cells = (f"`{field.encode_name}`", _type(hint), _default(field), _sentence(_description(hint)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _description(hint: Any) -> str:
    return next((meta.description for meta in _metas(hint) if meta.description), "")


def _default(field: FieldInfo) -> str:
    if field.required:
        return "**required**"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is UNSET or value is None:
        return ""
    if isinstance(value, Quantity):
        value = value.text
    elif isinstance(value, Enum):
        value = value.value
    elif isinstance(value, dict):
        return "`{}`" if not value else f"`{value}`"
    return f"`{json.dumps(value)}`"


def _type(hint: Any) -> str:
    kind = _without_none(hint)
    bounds = _bounds(hint)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _QUANTITIES:
        return _QUANTITIES[kind]
    if isinstance(kind, EnumType):
        members: list[Enum] = list(kind)
        return ", ".join(f"`{member.value}`" for member in members)
    if origin is Literal:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in arguments)
    if origin is tuple:
        return f"list of: {_type(arguments[0])}"
    if origin is dict:
        return f"table of: {_type(arguments[1])}"
    return " ".join(filter(None, (_PLAIN.get(kind, "any value"), bounds)))


def _bounds(hint: Any) -> str:
    for meta in _metas(hint):
        if meta.ge is not None and meta.le is not None:
            return f"{meta.ge} to {meta.le}"
    return ""


def _metas(hint: Any) -> Iterator[Meta]:
    """Every annotation of a type, outermost first, through its unions."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        yield from (note for note in reversed(notes) if isinstance(note, Meta))
        yield from _metas(inner)
    elif get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _metas(member)


def _without_none(hint: Any) -> Any:
    """The type behind annotations, and beside the None or UNSET of a key that may be left out."""
    if get_origin(hint) is Annotated:
        return _without_none(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member not in (NoneType, UnsetType)]
        return _without_none(members[0])
    return hint


def _sentence(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.stdout.write(render())
