"""Files on disk: where they are looked for, who may have written them, and what breaks in them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kurir.domain.errors import ConfigurationError
from kurir.settings import Settings, SettingsRefused, load
from kurir.settings.files import LARGEST_FILE
from kurir.system.secrets import SecretKind

Load = Callable[..., Settings]
Refuse = Callable[..., list[tuple[str, str]]]

SERVER = '[destinations.api]\nurl = "https://api.example.com/v2"\n'
ROOT = os.getuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root may give files away")


def refusal(path: Path | None, *, uid: int | None = None, **rest: object) -> SettingsRefused:
    with pytest.raises(SettingsRefused) as caught:
        load(path, environ={}, uid=os.getuid() if uid is None else uid, **rest)  # type: ignore[arg-type]
    return caught.value


def test_a_missing_default_is_an_empty_configuration(folder: Path) -> None:
    for missing in (folder / "kurird.toml", folder / "nowhere" / "kurird.toml"):
        assert load(None, environ={}, uid=os.getuid(), default=missing) == Settings()


def test_a_missing_default_does_not_hide_its_folder(folder: Path) -> None:
    extras = folder / "kurird.toml.d"
    extras.mkdir(mode=0o755)
    (extras / "a.toml").write_text("[limits]\nin_flight = 7\n")
    (extras / "a.toml").chmod(0o644)
    assert load(None, environ={}, uid=os.getuid(), default=folder / "kurird.toml").limits.in_flight == 7


def test_a_missing_file_that_somebody_named_is_an_error(folder: Path) -> None:
    missing = folder / "other.toml"
    assert str(refusal(missing)) == f"cannot use {missing}: No such file or directory"
    with pytest.raises(ConfigurationError, match=r"other\.toml"):
        load(None, environ={"KURIR_CONFIG": str(missing)}, uid=os.getuid())


def test_a_named_path_wins_over_the_environment(folder: Path) -> None:
    for name, value in (("a.toml", 1), ("b.toml", 2)):
        (folder / name).write_text(f"[limits]\nin_flight = {value}\n")
        (folder / name).chmod(0o644)
    environ = {"KURIR_CONFIG": str(folder / "b.toml")}
    assert load(folder / "a.toml", environ=environ, uid=os.getuid()).limits.in_flight == 1
    assert load(None, environ=environ, uid=os.getuid()).limits.in_flight == 2


def test_later_files_merge_tables_and_replace_values(loaded: Load) -> None:
    settings = loaded(
        SERVER + "headers = { A = '1', B = '1' }\nexpect = { status = [200, 201] }\n[secrets]\nt = { file = '/t' }\n",
        {
            "20-b.toml": "[destinations.api]\nheaders = { B = '3' }\n",
            "10-a.toml": "[destinations.api]\nheaders = { B = '2', C = '2' }\nexpect = { status = [204] }\n"
            "[secrets]\nt = { env = 'T' }\n",
            ".30-hidden.toml": "nonsense",
            "40-other.conf": "nonsense",
        },
    )
    api = settings.destinations["api"]
    assert api.headers == {"A": "1", "B": "3", "C": "2"}
    assert api.expect.status == (204,)
    assert api.url == "https://api.example.com/v2"
    assert settings.secrets["t"].kind is SecretKind.ENV


def test_a_problem_names_the_file_that_said_it(loaded: Load, folder: Path) -> None:
    extra = folder / "kurird.toml.d" / "10.toml"
    with pytest.raises(SettingsRefused) as caught:
        loaded(SERVER + "[limits]\nin_flight = 0\n", {"10.toml": "[destinations.api]\nconcurrency = 0\n[topics.a]\n"})
    assert [(p.key, p.file) for p in caught.value.problems] == [
        ("destinations.api.concurrency", str(extra)),
        ("limits.in_flight", str(folder / "kurird.toml")),
    ]
    with pytest.raises(SettingsRefused) as caught:
        loaded(SERVER, {"10.toml": "[topics.a]\n"})
    assert [(p.key, p.file) for p in caught.value.problems] == [("topics.a", str(extra))]


def test_a_value_that_replaces_a_table_is_blamed_on_its_own_file(loaded: Load, folder: Path) -> None:
    with pytest.raises(SettingsRefused) as caught:
        loaded(SERVER, {"10.toml": "destinations = 1\n"})
    assert [(p.key, p.file) for p in caught.value.problems] == [
        ("destinations", str(folder / "kurird.toml.d" / "10.toml"))
    ]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    file = folder / "kurird.toml"
    file.write_text("not even TOML")
    file.chmod(mode)
    assert "others than its owner may write this file" in str(refusal(file))


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    file = folder / "kurird.toml"
    file.write_text("")
    folder.chmod(mode)
    assert str(refusal(file)).startswith(f"cannot use {folder}: others than its owner may write this folder")


def test_the_folder_of_extras_and_its_files_are_checked_too(folder: Path) -> None:
    file, extras = folder / "kurird.toml", folder / "kurird.toml.d"
    file.write_text("")
    extras.mkdir()
    extras.chmod(0o777)
    assert f"cannot use {extras}: others" in str(refusal(file))
    extras.chmod(0o755)
    (extras / "a.toml").write_text("")
    (extras / "a.toml").chmod(0o666)
    assert f"cannot use {extras / 'a.toml'}: others" in str(refusal(file))


@needs_root
def test_a_file_or_folder_of_a_stranger_is_refused(folder: Path) -> None:
    file = folder / "kurird.toml"
    file.write_text("")
    os.chown(file, 1234, 0)
    assert "user 1234 owns it" in str(refusal(file))
    assert load(file, environ={}, uid=1234) == Settings()
    os.chown(file, 0, 0)
    os.chown(folder, 1234, 0)
    assert str(refusal(file)).startswith(f"cannot use {folder}: user 1234 owns it")
    os.chown(folder, 0, 0)
    assert load(file, environ={}, uid=4321) == Settings()  # root's


def test_behind_a_symbolic_link_the_folder_of_the_file_counts_too(folder: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o755)
    (real / "k.toml").write_text("[limits]\nin_flight = 3\n")
    (real / "k.toml").chmod(0o644)
    (folder / "kurird.toml").symlink_to(real / "k.toml")
    assert load(folder / "kurird.toml", environ={}, uid=os.getuid()).limits.in_flight == 3
    real.chmod(0o777)
    assert f"cannot use {real}" in str(refusal(folder / "kurird.toml"))


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(folder: Path) -> None:
    os.mkfifo(folder / "fifo", 0o600)
    (folder / "folder").mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nothing")
    for name in ("fifo", "folder", "s", "loop", "dangling"):
        assert f"cannot use {folder / name}: " in str(refusal(folder / name))
    refusal(None, default=folder / "dangling")
    refusal(Path("/dev/null"))
    refusal(Path("\0"))
    refusal(folder / ("x" * 300))


def test_extras_that_are_no_folder_or_no_file_are_refused(folder: Path) -> None:
    file, extras = folder / "kurird.toml", folder / "kurird.toml.d"
    file.write_text("")
    extras.write_text("")
    assert str(refusal(file)).startswith(f"cannot use {extras}: ")
    extras.unlink()
    extras.mkdir(mode=0o755)
    (extras / "a.toml").mkdir(mode=0o755)
    assert str(refusal(file)) == f"cannot use {extras / 'a.toml'}: it is not a regular file"


HOSTILE = {
    "nested arrays": b"x = " + b"[" * 100_000,
    "nested closed arrays": b"x = " + b"[" * 50_000 + b"]" * 50_000,
    "nested inline tables": b"x = " + b"{a=" * 50_000,
    "a dotted key of a thousand parts": b".".join([b"a"] * 1000) + b" = 1",
    "a dotted key of many parts": b"a." * 120_000 + b"a = 1",
    "a quoted key of many parts": b'"a".' * 60_000 + b"a = 1",
    "a header of a thousand parts": b"[" + b".".join([b"a"] * 1000) + b"]",
    "a number too long for Python": b"[limits]\nin_flight = " + b"9" * 5000,
    "a huge exponent": b"[limits]\nin_flight = 1e999999999",
    "a hexadecimal giant": b"[limits]\nin_flight = 0x" + b"f" * 5000,
    "an impossible date": b"x = 2026-13-45",
    "an impossible time zone": b"x = 2026-01-01T00:00:00+99:99",
    "NUL": b"x = \x00",
    "NUL in a string": b'x = "\x00"',
    "an escaped surrogate": b'x = "\\ud800"',
    "invalid UTF-8": b'x = "\xff\xfe"',
    "overlong UTF-8": b'x = "\xc0\x80"',
    "an encoded surrogate": b'x = "\xed\xa0\x80"',
    "UTF-16": "[limits]\n".encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf[limits]\n",
    "a duplicate key": b"[limits]\nin_flight = 1\nin_flight = 2",
    "a duplicate table": b"[limits]\n[limits]",
    "a table that is a value": b"limits = 1\n[limits]",
    "an open string": b'x = "',
    "an open table": b"[limits",
    "a value without a key": b"= 1",
    "JSON": b'{"limits": {}}',
    "too large": b"#" * (LARGEST_FILE + 1),
    "a huge unknown key": b'"' + b"a" * 200_000 + b'" = 1',
    "terminal escapes": b'"\\u001b[31m" = 1',
    "an array of tables": b"[[topics]]\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_a_short_message_and_no_traceback(loaded: Load, folder: Path, content: bytes) -> None:
    with pytest.raises(SettingsRefused) as caught:
        loaded(content)
    message = str(caught.value)
    assert str(folder / "kurird.toml") in message
    assert len(message) < 500
    assert "\x1b" not in message
    assert "\0" not in message


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore")))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_the_bytes_are_the_answer_is_settings_or_a_refusal(loaded: Load, content: bytes) -> None:
    try:
        assert isinstance(loaded(content), Settings)
    except SettingsRefused as refused:
        assert refused.problems  # noqa: PT017 - either outcome is right; which one depends on the bytes


VALUES: st.SearchStrategy[object] = st.recursive(
    st.sampled_from(
        ["''", "'x'", "'5s'", "'1MiB'", "0", "-1", "1", "1.5", "nan", "inf", "true", "1979-05-27", "[]", "{}"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(map(str, items)) + "]")
        | st.dictionaries(st.sampled_from(["status", "base", "a"]), inner, max_size=2).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        )
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["daemon.state_dir", "limits.clients", "secrets.t", "secrets", "destinations.a", "destinations.a.url"]
    + [f"destinations.a.{key}" for key in ("headers", "retry", "expect", "classify", "oauth", "tls", "budget", "rate")]
    + ["topics.t", "topics.t.needs", "topics.t.allow", "schedules.s.payload", "resources.r.changes", "resources.r.tags"]
)


@given(entries=st.dictionaries(KEYS, VALUES, max_size=4))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_value_at_any_key_is_settings_or_a_refusal(loaded: Load, entries: dict[str, object]) -> None:
    try:
        assert isinstance(loaded("\n".join(f"{key} = {value}" for key, value in entries.items())), Settings)
    except SettingsRefused as refused:
        assert refused.problems  # noqa: PT017 - either outcome is right; which one depends on the values


def test_the_message_can_be_printed_whatever_the_path_is(folder: Path) -> None:
    odd = folder / os.fsdecode(b"\xff.toml")
    odd.write_text("x = 1")
    odd.chmod(0o644)
    message = str(refusal(odd))
    assert message.encode(sys.stderr.encoding or "utf-8", "backslashreplace")
