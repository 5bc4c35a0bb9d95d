"""What the tests in here share."""

from __future__ import annotations

import pytest

from support.libraries import Library


@pytest.fixture(params=list(Library))
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Each library that speaks D-Bus, one after the other; in this process it is the only one."""
    chosen: Library = request.param
    monkeypatch.setattr("kurir.system.dbus.opening.WAYS", (f"through_{chosen}",))
    return chosen
