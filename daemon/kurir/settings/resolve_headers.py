"""Configured headers, checked: names, values, and the secrets they refer to."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

from kurir.settings.check_headers import value_fault
from kurir.settings.problems import Scope
from kurir.settings.secret_references import reference_fault


def headers_of(
    written: Mapping[str, str], scope: Scope, name_fault: Callable[[str], str], secrets: Container[str], *, oauth: bool
) -> Mapping[str, str]:
    """The headers as they are, for they are resolved when a request is sent. `oauth`: whether a token is to be had."""
    seen: set[str] = set()
    for name, value in written.items():
        twice = "this header is set twice; the case of a name makes no difference" if name.lower() in seen else ""
        seen.add(name.lower())
        scope.check(
            name, name_fault(name) or value_fault(value) or reference_fault(value, secrets, oauth=oauth) or twice
        )
    return MappingProxyType(dict(written))
