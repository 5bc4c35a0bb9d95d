"""kurirctl metrics against the real daemon: printed, and as a file that is whole at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.command import kurirctl
from cli.conftest import Scene
from kurir.cli.commands.metrics import ours


def names(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def test_what_is_printed_is_what_a_scraper_gets(scene: Scene) -> None:
    printed = kurirctl(scene.socket, "metrics")
    assert (printed.code, printed.err) == (0, "")
    assert names(printed.out) == names(scene.daemon.get("/metrics").decode())
    document = json.loads(kurirctl(scene.socket, "metrics", "--json").out)
    assert names(document["metrics"]) == names(printed.out)


def test_a_textfile_has_ours_alone_and_everybody_may_read_it(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "kurird.prom").symlink_to(tmp_path / "elsewhere")
    done = kurirctl(scene.socket, "metrics", "--textfile", str(tmp_path))
    assert (done.code, done.out, done.err) == (0, "", "")
    assert os.listdir(tmp_path) == ["kurird.prom"], "a link is replaced, not followed, and nothing else is left"
    file = tmp_path / "kurird.prom"
    assert file.stat().st_mode & 0o7777 == 0o644
    found = names(file.read_text())
    every = names(scene.daemon.get("/metrics").decode())
    assert found == {name for name in every if name.startswith("kurir_")}
    assert every - found, "those of the process"


def test_a_text_that_looks_like_another_line_is_left_out_or_kept_whole() -> None:
    kept = '# HELP kurir_a a\\nprocess_b 1\n# TYPE kurir_a gauge\nkurir_a{x="\\nb 2"} 1\n'
    assert ours(f"{kept}process_c 3\n# HELP python_info x\n") == kept


def test_the_file_stays_when_the_daemon_does_not_answer(tmp_path: Path) -> None:
    file = tmp_path / "kurird.prom"
    file.write_text("kurir_before 1\n")
    done = kurirctl(tmp_path / "no.sock", "metrics", "--textfile", str(tmp_path))
    assert done.code == 69
    assert file.read_text() == "kurir_before 1\n"
    assert os.listdir(tmp_path) == ["kurird.prom"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev here")
def test_a_folder_that_cannot_be_written_or_is_none_is_said_with_its_name(scene: Scene, tmp_path: Path) -> None:
    missing = kurirctl(scene.socket, "metrics", "--textfile", str(tmp_path / "nowhere"))
    assert missing.code == 64
    assert "nowhere" in missing.err
    done = kurirctl(scene.socket, "metrics", "--textfile", "/proc")
    assert done.code != 0
    assert "cannot write /proc/kurird.prom" in done.err
    assert "Traceback" not in done.err
