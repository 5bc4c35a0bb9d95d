"""What the tests in here share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from boxes import missing
from installed import Device, device
from trees import SUITES

from support.libraries import Library


@pytest.fixture(params=list(Library))
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Each library that speaks D-Bus, one after the other; in this process it is the only one."""
    chosen: Library = request.param
    monkeypatch.setattr("kurir.system.dbus.opening.WAYS", (f"through_{chosen}",))
    return chosen


@pytest.fixture(scope="module", params=SUITES)
def debian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """A booted Debian with kurird installed from its package; one for all tests of a module."""
    if reason := missing():
        pytest.skip(reason)
    with device(request.param, tmp_path_factory.mktemp("device")) as made:
        yield made
