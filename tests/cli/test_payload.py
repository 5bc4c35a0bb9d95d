"""What DATA on the command line stands for."""

from __future__ import annotations

import click
import pytest

from kurir.cli.commands import payload


def test_a_file_without_an_end_is_refused_and_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST", 4 << 20)
    with pytest.raises(click.UsageError, match="/dev/zero"):
        payload.read_data("@/dev/zero")
