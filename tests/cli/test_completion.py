"""Completion in bash, zsh and fish: the real shells load the script and ask a real daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.command import OnTerminal, environment, kurirctl
from cli.conftest import DARK, Scene
from client.scripted_daemon import Reply, ScriptedDaemon
from kurir.cli.complete import ANSWER_IN, ERROR_KINDS
from kurir.domain.job import ErrorKind

PROGRAMS = str(Path(sys.executable).parent)


def offered(socket: Path, line: str, *, shell: str = "fish") -> list[str]:
    """What is offered at the end of the line, as the script asks for it."""
    words = line.split(" ")
    asked = {
        "_KURIRCTL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    ended = kurirctl(socket, more=asked)
    assert (ended.code, ended.err) == (0, "")
    return [line for line in ended.out.splitlines() if line]


def values(socket: Path, line: str) -> set[str]:
    return {item.removeprefix("plain,").partition("\t")[0] for item in offered(socket, line)}


def test_commands_options_and_choices_are_completed(scene: Scene) -> None:
    assert values(scene.socket, "kurirctl su") == {"submit"}
    assert "--ordering-key" in values(scene.socket, "kurirctl submit orders --")
    assert values(scene.socket, "kurirctl list --state d") == {"done", "dead"}
    assert values(scene.socket, "kurirctl completion ") == {"bash", "zsh", "fish"}


def test_topics_and_destinations_come_from_the_daemon(scene: Scene) -> None:
    topics = {"orders", "refused", "thumbnails", DARK}
    assert values(scene.socket, "kurirctl submit ") == topics
    assert values(scene.socket, "kurirctl submit o") == {"orders"}
    assert values(scene.socket, "kurirctl list --topic ") == topics
    assert values(scene.socket, "kurirctl events --topic ") == topics
    assert values(scene.socket, "kurirctl pause topic ") == topics
    assert values(scene.socket, "kurirctl pause destination ") == {"api", "dark"}
    assert values(scene.socket, "kurirctl list --destination d") == {"dark"}


def test_job_ids_come_from_the_daemon_those_that_the_command_may_act_on(scene: Scene) -> None:
    waiting, everything = {scene.first.id, scene.second.id}, {scene.done.id, scene.dead.id}
    assert values(scene.socket, "kurirctl show ") == waiting | everything
    assert values(scene.socket, "kurirctl why ") == waiting | everything
    assert values(scene.socket, "kurirctl wait ") == waiting
    assert values(scene.socket, f"kurirctl wait {scene.first.id} ") == {scene.second.id}
    assert values(scene.socket, "kurirctl retry ") == {scene.dead.id}
    assert values(scene.socket, "kurirctl cancel ") == waiting | {scene.dead.id}
    assert values(scene.socket, "kurirctl edit ") == waiting | {scene.dead.id}
    assert f"plain,{scene.dead.id}\tdead refused" in offered(scene.socket, "kurirctl show ")


def test_the_socket_that_was_named_on_the_line_is_asked(scene: Scene, tmp_path: Path) -> None:
    assert values(tmp_path / "none", f"kurirctl --socket {scene.socket} submit o") == {"orders"}


def test_every_kind_of_error_is_offered() -> None:
    assert set(ERROR_KINDS) == {kind.value for kind in ErrorKind}


def test_without_a_daemon_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered(tmp_path / "none", "kurirctl submit ") == []
    assert offered(tmp_path / "none", "kurirctl show ") == []


def test_a_daemon_that_does_not_answer_is_not_waited_for_long(tmp_path: Path) -> None:
    import threading  # noqa: PLC0415 - for this test alone

    stall = threading.Event()
    with ScriptedDaemon(tmp_path / "s", Reply(200, {"topics": []}, stall=stall)):
        began = time.monotonic()
        assert offered(tmp_path / "s", "kurirctl submit ") == []
        took = time.monotonic() - began
        stall.set()
    assert took < ANSWER_IN + 10  # a slow machine starts Python slowly; a stall would be 30 s


def test_answers_that_make_no_sense_offer_nothing(tmp_path: Path) -> None:
    for document in ({"topics": [1, None]}, {"topics": {}}, {}, {"topics": [{"name": None}, {"destination": 4}]}):
        with ScriptedDaemon(tmp_path / "s", Reply(200, document)):
            assert offered(tmp_path / "s", "kurirctl submit x") == []


def script_of(shell: str, tmp_path: Path) -> Path:
    ended = kurirctl("/nowhere", "completion", shell)
    assert ended.code == 0
    file = tmp_path / f"completion.{shell}"
    file.write_text(ended.out)
    return file


def in_shell(socket: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(KURIR_SOCKET=str(socket), PATH=f"{PROGRAMS}:{os.environ['PATH']}"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash_completes_topics_after_loading_the_script(scene: Scene, tmp_path: Path) -> None:
    ask = (
        f"source {script_of('bash', tmp_path)}; complete -p kurirctl >/dev/null;"
        "COMP_WORDS=(kurirctl submit re); COMP_CWORD=2; _kurirctl_completion kurirctl re kurirctl;"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert in_shell(scene.socket, "bash", "--norc", "-c", ask) == "refused\n"


def test_the_script_is_loaded_by_eval_too(scene: Scene) -> None:
    ask = 'eval "$(kurirctl completion bash)"; complete -p kurirctl'
    assert "_kurirctl_completion" in in_shell(scene.socket, "bash", "--norc", "-c", ask)


@pytest.mark.lab
def test_fish_completes_topics_and_ids_with_their_meaning(scene: Scene, tmp_path: Path) -> None:
    assert shutil.which("fish")
    file = script_of("fish", tmp_path)
    topics = in_shell(scene.socket, "fish", "-c", f"source {file}; complete -C 'kurirctl submit re'")
    assert topics == "refused\tapi\n"
    ids = in_shell(scene.socket, "fish", "-c", f"source {file}; complete -C 'kurirctl retry '")
    assert ids == f"{scene.dead.id}\tdead refused\n"


@pytest.mark.lab
def test_zsh_completes_topics_when_tab_is_pressed(scene: Scene, tmp_path: Path) -> None:
    assert shutil.which("zsh")
    functions = tmp_path / "functions"
    functions.mkdir()
    script_of("zsh", tmp_path).rename(functions / "_kurirctl")
    (tmp_path / ".zshrc").write_text(f"fpath=({functions} $fpath); autoload -Uz compinit; compinit -u; PS1='ready> '\n")
    more = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "ZDOTDIR": str(tmp_path), "HOME": str(tmp_path)}
    with OnTerminal(scene.socket, program=["zsh", "-i"], more=more) as zsh:
        place = zsh.read_until("ready> ")
        zsh.type("kurirctl submit re\t")
        zsh.read_until("fused", after=place)
