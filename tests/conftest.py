"""What holds for every test."""

import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A deadline would judge the machine, not the code; how long tests may take is pytest-timeout's business.
settings.register_profile("kurird", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kurird")

# A run in the background of a shell is told to ignore Ctrl-C, and would hand that down to every program under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests print and log lone surrogates on purpose; between the processes that run tests goes UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
