"""The alert rules, judged by promtool: each fires when it should and not before; each is explained to who gets it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import PAGE, RULES, promtool

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: make lab-packages"),
]

CASES = tuple(Path(__file__).with_name(name) for name in ("alerts.test.yml", "alerts_of_days.test.yml"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def cases() -> list[dict[str, Any]]:
    return [case for file in CASES for case in yaml.safe_load(file.read_text())["tests"]]


def judged(folder: Path, rules_text: str, only: str = "") -> tuple[int, str]:
    """What promtool says of rules by the cases, or by those whose name contains a text."""
    file = folder / "kurird.rules.yml"
    file.write_text(rules_text)
    for each in CASES:
        document = yaml.safe_load(each.read_text())
        chosen = [case for case in document["tests"] if only in case["name"]]
        (folder / each.name).write_text(yaml.safe_dump({**document, "rule_files": [str(file)], "tests": chosen}))
    return promtool("test", "rules", *(str(folder / each.name) for each in CASES))


def test_the_rules_are_ones_of_prometheus_without_a_duplicate() -> None:
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert code == 0, said
    assert f"{len(rules())} rules found" in said


def test_each_rule_fires_when_it_should_and_a_device_that_works_alerts_nobody(tmp_path: Path) -> None:
    code, said = judged(tmp_path, RULES.read_text())
    assert code == 0, said


def test_every_alert_is_expected_by_some_case() -> None:
    expected = {
        name
        for case in cases()
        for check in case["promql_expr_test"]
        if 'alertstate="firing"' in check["expr"]
        for sample in check.get("exp_samples", [])
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert expected == {rule["alert"] for rule in rules()}


def test_a_rule_that_is_off_by_one_minute_is_noticed(tmp_path: Path) -> None:
    text = RULES.read_text()
    late = text.replace("for: 30m", "for: 31m")
    assert late != text
    code, said = judged(tmp_path, late, only="KurirdDestinationSilent")
    assert code != 0
    assert "KurirdDestinationSilent" in said


def test_each_alert_says_what_it_is_what_it_means_and_what_to_do_and_has_its_place_on_the_page() -> None:
    headings = re.findall(r"^### (Kurird\w+)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules()]
    for rule in rules():
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "action", "runbook"}, rule["alert"]
        assert notes["runbook"] == f"monitoring.md, {rule['alert']}"
        assert "$labels.instance" in notes["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_command_that_an_alert_names_is_one_of_kurirctl() -> None:
    from kurir.cli.root import COMMANDS  # noqa: PLC0415 - of the command line, in one test

    named = set(re.findall(r"kurirctl ([a-z]+)", RULES.read_text() + PAGE.read_text()))
    assert named
    assert named <= set(COMMANDS), named - set(COMMANDS)
