"""What every command has in common: it starts without what it does not use, explains itself, takes --json."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import environment, kurirctl, kurirctl_on_terminal
from kurir.cli.root import COMMANDS

HEAVY = (
    "aiohttp",
    "asyncio",
    "rich",
    "msgspec",
    "structlog",
    "prometheus_client",
    "sdbus",
    "jeepney",
    "yarl",
    "multidict",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_what_only_the_daemon_or_a_terminal_needs(name: str) -> None:
    code = (
        f"import sys; sys.argv = ['kurirctl', {name!r}, '--help']; from kurir.cli.__main__ import main; main();"
        f"import kurir.client.blocking; sys.stderr.write(' '.join(sorted(set({HEAVY!r}) & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment()
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"Usage: kurirctl {name} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns_and_takes_json(name: str, tmp_path: Path) -> None:
    ended = kurirctl_on_terminal(tmp_path / "none", name, "--help")
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 88  # a command line that is to be copied is not broken
    assert "--json" in ended.out
    assert "--socket" in ended.out


def test_the_help_of_a_command_begins_with_what_the_list_says() -> None:
    for name, (_, _, about) in COMMANDS.items():
        assert about.endswith("."), name
        assert len(about) <= 62, f"{name}: it would take two lines in 80 columns"


def test_json_and_the_socket_may_stand_before_or_after_the_command(tmp_path: Path) -> None:
    socket = str(tmp_path / "none")
    before = kurirctl("/elsewhere", "--socket", socket, "--json", "status")
    after = kurirctl("/elsewhere", "status", "--socket", socket, "--json")
    assert before == after
    assert before.code == 69
    assert socket in before.err


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.ISO-8859-1", "nonsense"])
def test_any_locale_starts(locale: str, tmp_path: Path) -> None:
    ended = kurirctl(tmp_path / "none", "status", more={"LANG": locale, "LC_ALL": locale})
    assert ended.code == 69
    assert ended.err.startswith("kurirctl: cannot reach kurird")
    assert "Traceback" not in ended.err
