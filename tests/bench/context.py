"""What every measurement gets: where it may write, how long it may take, and what the storage is made to be like."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SLOWER = 5
"""Milliseconds that a sync takes longer on storage like an SD card."""

_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static void slower(void) { struct timespec t = {0, %d * 1000000L}; nanosleep(&t, 0); }
int fsync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fsync"); int r = real(fd); slower(); return r; }
int fdatasync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync"); int r = real(fd); slower(); return r; }
"""


@dataclass
class Bench:
    """One run. `quick` asks for fewer rounds and smaller queues."""

    folder: Path
    quick: bool
    slow: Mapping[str, str] = field(default_factory=dict)  # environment that makes syncs slower
    no_slow: str = ""  # why there is none
    load: float = field(default_factory=lambda: os.getloadavg()[0])  # before the first measurement

    def size(self, full: int, quick: int) -> int:
        """How much of something is enough for this run."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        return self.size(5, 3)

    def compile_shim(self) -> None:
        """Build the library that makes every sync slower, if there is a compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.no_slow = "there is no C compiler to build the shim that slows syncs down"
            return
        source, library = self.folder / "slower.c", self.folder / "slower.so"
        source.write_text(_SHIM % SLOWER)
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.no_slow = f"the shim that slows syncs down cannot be built: {done.stderr.strip()[-200:]}"
            return
        self.slow = {"LD_PRELOAD": str(library)}

    def sync_ms(self) -> float:
        """What a small write and its sync take here."""
        descriptor = os.open(self.folder / "sync", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            start = time.perf_counter()
            for _ in range(50):
                os.pwrite(descriptor, b"x" * 4096, 0)
                os.fdatasync(descriptor)
            return (time.perf_counter() - start) / 50 * 1000
        finally:
            os.close(descriptor)
