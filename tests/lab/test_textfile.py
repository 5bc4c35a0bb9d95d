"""The metrics through a real node_exporter, from the file that kurirctl writes for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_processes import Program, until
from promtool import ROOT, fetch, free_port, promtool

from support.daemon import Daemon

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        shutil.which("prometheus-node-exporter") is None, reason="needs prometheus-node-exporter: make lab-packages"
    ),
]

SERVICE = ROOT / "systemd" / "kurird-textfile.service"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    with Daemon(folder) as daemon:
        daemon.client.submit("orders", 1)
        yield daemon


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[tuple[Path, str, Path]]:
    """The folder that it reads, the address of what it says, and its log."""
    folder = tmp_path / "collected"
    folder.mkdir()
    listen = f"127.0.0.1:{free_port()}"
    command = ["prometheus-node-exporter", f"--web.listen-address={listen}", "--collector.disable-defaults"]
    command += ["--collector.textfile", f"--collector.textfile.directory={folder}"]
    with Program(command, tmp_path / "exporter.log") as program:
        program.says("Listening on")
        yield folder, f"http://{listen}/metrics", program.log


def write(daemon: Daemon, folder: Path) -> None:
    """As the service does, from its own line."""
    found = re.search(r"^ExecStart=/usr/bin/kurirctl (.*)$", SERVICE.read_text(), re.MULTILINE)
    assert found is not None
    arguments = [word.replace("/var/lib/prometheus/node-exporter", str(folder)) for word in found[1].split()]
    assert str(folder) in arguments
    environment = {**os.environ, "KURIR_SOCKET": str(daemon.socket)}
    done = subprocess.run(
        [sys.executable, "-m", "kurir.cli", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_node_exporter_passes_the_file_on_with_its_age_and_beside_its_own(
    daemon: Daemon, exporter: tuple[Path, str, Path]
) -> None:
    folder, url, log = exporter
    write(daemon, folder)
    file = folder / "kurird.prom"
    assert promtool("check", "metrics", stdin=file.read_bytes()) == (0, "")
    status, text = fetch(url)
    assert status == 200, "node_exporter's own metrics of the process do not clash"
    assert "node_textfile_scrape_error 0" in text
    assert 'kurir_jobs{state="pending",topic="orders"} 1' in text
    assert f'node_textfile_mtime_seconds{{file="{file}"}}' in text
    assert re.search(r"^process_start_time_seconds ", text, re.MULTILINE)
    ours = set(re.findall(r"^# TYPE (kurir_\w+) ", file.read_text(), re.MULTILINE))
    # A family without a sample has nothing to pass on.
    sampled = {name for name in ours if re.search(rf"^{name}(_bucket)?[{{ ]", file.read_text(), re.MULTILINE)}
    assert sampled <= set(re.findall(r"^# TYPE (kurir_\w+) ", text, re.MULTILINE))
    assert len(sampled) > 12
    assert "error gathering metrics" not in log.read_text()
    # What is left out would be an error in its log at each scrape.
    file.write_text(daemon.client.metrics())
    fetch(url)
    until(lambda: "error gathering metrics" in log.read_text(), what="it complains")


def test_whoever_reads_while_it_is_written_reads_a_whole_file(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    folder.mkdir()
    write(daemon, folder)
    size = (folder / "kurird.prom").stat().st_size
    command = [sys.executable, "-m", "kurir.cli", "metrics", "--textfile", str(folder)]
    environment = {**os.environ, "KURIR_SOCKET": str(daemon.socket)}
    seen, inodes = 0, set()
    for _ in range(3):
        with subprocess.Popen(command, env=environment) as writer:
            while writer.poll() is None:
                with (folder / "kurird.prom").open() as file:
                    inodes.add(os.fstat(file.fileno()).st_ino)
                    text = file.read()
                assert text.startswith("# HELP kurir_")
                assert text.endswith("\n")
                assert len(text) > size / 2
                seen += 1
            assert writer.returncode == 0
    assert seen > 100
    until(lambda: os.listdir(folder) == ["kurird.prom"], what="nothing else is left")
    assert len(inodes) > 1, "it was replaced meanwhile"
