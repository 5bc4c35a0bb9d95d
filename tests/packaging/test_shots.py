"""The shots of the command line in the README are what the program shows."""

from __future__ import annotations

from support.shots import README, SHOTS, shape, shots


def test_the_shots_in_the_readme_are_what_kurirctl_shows_on_a_terminal() -> None:
    (shown,) = SHOTS.findall(README.read_text(encoding="utf-8"))
    assert shape(shots()) == shape(shown), "run make shots"


def test_no_line_of_a_shot_is_wider_than_80_columns() -> None:
    (shown,) = SHOTS.findall(README.read_text(encoding="utf-8"))
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("$ kurirctl ") == 4
