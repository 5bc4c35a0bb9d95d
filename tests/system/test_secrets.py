"""Secrets from real files, real owners and modes, and a real kernel that says when they change."""

from __future__ import annotations

import asyncio
import base64
import grp
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from kurir.domain.errors import ConfigurationError
from kurir.system.secrets import LARGEST, SecretKind, Secrets, SecretSource, SecretUnusable, references

OUTSIDERS = grp.getgrgid(1).gr_name
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")


def file_source(path: Path) -> SecretSource:
    return SecretSource(kind=SecretKind.FILE, where=str(path))


def written(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def of(path: Path) -> Secrets:
    return Secrets({"t": file_source(path)}, environ={}, group=OUTSIDERS)


def reason(secrets: Secrets) -> str:
    with pytest.raises(SecretUnusable) as caught:
        secrets.validate()
    with pytest.raises(SecretUnusable):
        secrets.fill("Bearer {secret:t}")
    assert isinstance(caught.value, ConfigurationError)
    assert str(caught.value) == f"cannot use secrets.t: {caught.value.reason}"
    return caught.value.reason


def test_a_reference_becomes_its_value_when_it_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path / "t", "one\n")
    secrets = Secrets(
        {
            "file": file_source(file),
            "cred": SecretSource(kind=SecretKind.CREDENTIAL, where="t"),
            "env": SecretSource(kind=SecretKind.ENV, where="TOKEN"),
        },
        environ={"CREDENTIALS_DIRECTORY": str(tmp_path), "TOKEN": "two"},
        group=OUTSIDERS,
    )
    secrets.validate()
    assert secrets.fill("Bearer {secret:file}") == "Bearer one"
    assert secrets.fill("{secret:cred}:{secret:env}{secret:env}") == "one:twotwo"
    assert secrets.fill("nothing {here}") == "nothing {here}"
    assert secrets.fill("Bearer {secret:oauth}", {"oauth": "bought"}) == "Bearer bought"
    written(file, "three")
    assert secrets.fill("{secret:file}") == "three"


def test_a_value_that_looks_like_a_reference_is_not_resolved_again(tmp_path: Path) -> None:
    assert of(written(tmp_path / "t", "{secret:t}")).fill("{secret:t}") == "{secret:t}"


def test_references_of_a_text_are_listed() -> None:
    assert references("Bearer {secret:a} {secret:b-c.d} {secret:a} {secret} {x}") == {"a", "b-c.d"}


@pytest.mark.parametrize(
    ("content", "value"),
    [("v", "v"), ("v\n", "v"), ("v\r\n", "v"), (" v ", " v "), ("ключ\n", "ключ"), ("v" * LARGEST, "v" * LARGEST)],
)
def test_e13_one_trailing_newline_is_dropped_and_nothing_else(tmp_path: Path, content: str, value: str) -> None:
    assert of(written(tmp_path / "t", content)).fill("{secret:t}") == value


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"hunter2\n\n", "control character"),
        (b"hunter2\r\nEvil: 1", "control character"),
        (b"hunter2\0", "control character"),
        (b"hunter2\t", "control character"),
        (b"hunter2\x7f", "control character"),
        (b"hunter2\xff", "not text in UTF-8"),
        (b"hunter2" + b"x" * LARGEST, "larger than 64 KiB"),
    ],
)
def test_e13_a_value_that_no_header_may_carry_is_an_error_that_does_not_show_it(
    tmp_path: Path, content: bytes, said: str
) -> None:
    text = reason(of(written(tmp_path / "t", content)))
    assert said in text
    assert "hunter2" not in text


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    assert "others may read or write" in reason(of(written(tmp_path / "t", "v", mode)))


@needs_root
def test_a_file_that_the_group_of_the_users_may_read_is_refused_and_another_group_is_not(tmp_path: Path) -> None:
    file = written(tmp_path / "t", "v", 0o640)
    os.chown(file, 0, 1)
    assert "others may read" in reason(of(file))
    file.chmod(0o620)
    assert "others may read" in reason(of(file))
    file.chmod(0o600)
    of(file).validate()
    os.chown(file, 0, 2)
    file.chmod(0o640)
    of(file).validate()
    Secrets({"t": file_source(file)}, environ={}, group="no-such-group").validate()


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "loop", tmp_path / "nothing", Path("/dev/null"), Path("/\0")):
        assert "cannot be read" in reason(of(path))


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "fifo", tmp_path, written(tmp_path / "t", "v", 0o644), written(tmp_path / "e", b"\xff")):
        reason(of(path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    written(tmp_path / "real", "v")
    (tmp_path / "t").symlink_to("real")
    assert of(tmp_path / "t").fill("{secret:t}") == "v"


def test_a_missing_credential_or_variable_or_name_says_so() -> None:
    credential = {"t": SecretSource(kind=SecretKind.CREDENTIAL, where="x")}
    assert "CREDENTIALS_DIRECTORY is not set" in reason(Secrets(credential, environ={}, group=OUTSIDERS))
    variable = {"t": SecretSource(kind=SecretKind.ENV, where="TOKEN")}
    assert "TOKEN is not set" in reason(Secrets(variable, environ={}, group=OUTSIDERS))
    with pytest.raises(SecretUnusable, match="no such secret"):
        Secrets({}, environ={}, group=OUTSIDERS).fill("{secret:t}")


def test_a_variable_of_bytes_that_are_no_text_is_refused() -> None:
    source = SecretSource(kind=SecretKind.ENV, where="T")
    secrets = Secrets({"t": source}, environ={"T": "ab\udcffcd"}, group="kurird")
    with pytest.raises(SecretUnusable, match="not text in UTF-8") as caught:
        secrets.validate()
    assert "ab" not in caught.value.reason


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    secrets = of(written(tmp_path / "t", "hunter2"))
    secrets.fill("{secret:t}")
    assert "hunter2" not in repr(secrets) + str(secrets) + repr(secrets._redaction)
    assert repr(secrets) == "Secrets(['t'])"


@pytest.mark.parametrize("value", ["hunter2", 'p/w+=&% ü"\\', "user:päss/w", "a+b c"])
def test_every_form_of_a_value_is_redacted(tmp_path: Path, value: str) -> None:
    secrets = of(written(tmp_path / "t", value))
    secrets.validate()
    encoded = value.encode()
    forms = [
        value,
        quote(value, safe=""),
        quote(value),
        quote(value, safe=":@-._~"),
        quote(quote(value, safe=""), safe=""),
        base64.b64encode(encoded).decode(),
        base64.b64encode(encoded).decode().rstrip("="),
        base64.urlsafe_b64encode(encoded).decode(),
        value.replace("\\", "\\\\").replace('"', '\\"'),
    ]
    for form in forms:
        hidden = secrets.redact(f"<{form}>")
        assert hidden.rstrip("=>") == "<{secret:t}".rstrip("=>"), form


def test_basic_authentication_is_redacted_as_a_whole_and_in_its_parts(tmp_path: Path) -> None:
    basic = base64.b64encode(b"user:hunter2").decode()
    for value in (basic, f"Basic {basic}"):
        secrets = of(written(tmp_path / "t", value))
        secrets.validate()
        for form in (value, "user:hunter2", "hunter2"):
            assert secrets.redact(f"[{form}]") == "[{secret:t}]"


def test_the_longest_value_wins_and_short_ones_are_left_alone() -> None:
    secrets = Secrets({}, environ={}, group=OUTSIDERS)
    for name, value in (("a", "abcd"), ("b", "abcdef"), ("c", "abc"), ("d", "secret")):
        secrets.learn(name, value)
    assert secrets.redact("abcdefg abcde abc secret") == "{secret:b}g {secret:a}e abc {secret:d}"


def test_values_that_were_replaced_lately_are_still_redacted_also_after_a_reload(tmp_path: Path) -> None:
    file = written(tmp_path / "t", "first-value")
    secrets = of(file)
    secrets.validate()
    written(file, "second-value")
    secrets.validate()
    later = secrets.reconfigured({}, group=OUTSIDERS)
    assert later.redact("first-value second-value") == "{secret:t} {secret:t}"


def test_a_reload_knows_which_values_changed(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", "one"), written(tmp_path / "2", "two")
    secrets = Secrets({"a": file_source(one), "b": file_source(one)}, environ={}, group=OUTSIDERS)
    secrets.validate()
    later = secrets.reconfigured({"a": file_source(two), "b": file_source(one), "c": file_source(two)}, group=OUTSIDERS)
    later.validate()
    assert later.refresh() == {"a"}
    assert later.refresh() == frozenset()


@asynccontextmanager
async def watching(secrets: Secrets) -> AsyncIterator[Callable[[], asyncio.Future[frozenset[str]]]]:
    """Runs the watcher; what is yielded waits for the next change that it reports."""
    changes: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    secrets.validate()
    task = asyncio.create_task(secrets.run(changes.put_nowait))
    await asyncio.sleep(0)  # the watches stand after its first step
    assert not task.done()
    try:
        yield lambda: asyncio.ensure_future(asyncio.wait_for(changes.get(), 10))
        assert changes.empty()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_file_that_is_written_again_is_noticed(tmp_path: Path) -> None:
    secrets = of(written(tmp_path / "t", "one"))
    async with watching(secrets) as change:
        (tmp_path / "t").write_text("two")
        assert await change() == {"t"}
        assert secrets.fill("{secret:t}") == "two"


async def test_a_file_that_is_replaced_by_a_rename_is_noticed_each_time(tmp_path: Path) -> None:
    secrets = of(written(tmp_path / "t", "0"))
    async with watching(secrets) as change:
        for turn in range(1, 4):
            written(tmp_path / "new", str(turn)).replace(tmp_path / "t")
            assert await change() == {"t"}


async def test_a_folder_behind_a_link_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    """As orchestrators do: t -> ..data/t, ..data -> ..1, and then ..data is replaced by a link to ..2."""
    for turn in ("..1", "..2", "..3"):
        (tmp_path / turn).mkdir()
        written(tmp_path / turn / "t", f"value {turn}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "t").symlink_to("..data/t")
    secrets = of(tmp_path / "t")
    async with watching(secrets) as change:
        for turn in ("..2", "..3"):
            (tmp_path / "..tmp").symlink_to(turn)
            (tmp_path / "..tmp").replace(tmp_path / "..data")
            assert await change() == {"t"}
            assert secrets.fill("{secret:t}") == f"value {turn}"
        written(tmp_path / "..3" / "t", "in place")
        assert await change() == {"t"}


async def test_a_parent_folder_that_is_a_link_is_noticed_too(tmp_path: Path) -> None:
    for turn in ("1", "2"):
        (tmp_path / turn / "deep").mkdir(parents=True)
        written(tmp_path / turn / "deep" / "t", f"value {turn}")
    (tmp_path / "current").symlink_to(tmp_path / "1")
    secrets = of(tmp_path / "current" / "deep" / "t")
    async with watching(secrets) as change:
        (tmp_path / "next").symlink_to(tmp_path / "2")
        (tmp_path / "next").replace(tmp_path / "current")
        assert await change() == {"t"}


async def test_a_folder_that_is_removed_and_made_anew_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    secrets = of(written(folder / "t", "one"))
    async with watching(secrets) as change:
        (folder / "t").unlink()
        folder.rmdir()
        folder.parent.rmdir()
        assert await change() == {"t"}  # it became unusable
        folder.mkdir(parents=True)
        written(folder / "t", "two")
        assert await change() == {"t"}
        assert secrets.fill("{secret:t}") == "two"


async def test_a_mode_that_exposes_a_secret_and_its_cure_are_noticed(tmp_path: Path) -> None:
    file = written(tmp_path / "t", "one")
    async with watching(of(file)) as change:
        file.chmod(0o644)
        assert await change() == {"t"}
        file.chmod(0o600)
        assert await change() == {"t"}


async def test_a_change_before_the_watch_stood_is_not_missed(tmp_path: Path) -> None:
    secrets = of(written(tmp_path / "t", "one"))
    secrets.validate()
    written(tmp_path / "t", "two")
    changes: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    task = asyncio.create_task(secrets.run(changes.put_nowait))
    assert await asyncio.wait_for(changes.get(), 10) == {"t"}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_only_the_secret_that_changed_is_reported_and_the_same_value_is_no_change(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", "one"), written(tmp_path / "2", "two")
    secrets = Secrets({"a": file_source(one), "b": file_source(two)}, environ={}, group=OUTSIDERS)
    async with watching(secrets) as change:
        written(one, "one")
        written(tmp_path / "other", "x")
        written(two, "changed")
        assert await change() == {"b"}


async def test_reading_a_secret_does_not_wake_the_watcher(tmp_path: Path) -> None:
    """Otherwise it would wake itself for ever: nobody who only reads may cost a wake-up."""
    secrets = of(written(tmp_path / "t", "one"))
    async with watching(secrets):
        calls = 0
        look = secrets.refresh

        def counted() -> frozenset[str]:
            nonlocal calls
            calls += 1
            return look()

        secrets.refresh = counted  # type: ignore[method-assign] # counts the turns of the real watcher
        for _ in range(100):
            secrets.fill("{secret:t}")
        for _ in range(10):
            await asyncio.sleep(0)
        assert calls == 0


async def test_the_watcher_gives_its_descriptor_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with watching(of(written(tmp_path / "t", "one"))):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


async def test_without_files_there_is_nothing_to_watch() -> None:
    secrets = Secrets({"t": SecretSource(kind=SecretKind.ENV, where="T")}, environ={"T": "v"}, group=OUTSIDERS)
    async with watching(secrets):
        assert secrets.refresh() == frozenset()
