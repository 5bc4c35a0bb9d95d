"""Writes what the documentation takes from the code: the reference of the configuration, the diagram of a job's life,
the manual pages.

`make docs` runs it; a test compares the committed pages with what it would write.
"""

from __future__ import annotations

import re
from pathlib import Path

import man_pages

from kurir.domain.job import State
from kurir.domain.lifecycle import TABLE
from kurir.settings import reference

FOLDER = Path(__file__).parent
_DIAGRAM = re.compile(r"(?<=<!-- lifecycle: begin -->\n).*?(?=<!-- lifecycle: end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Each generated page with its text as it should be."""
    design = FOLDER / "design.md"
    return {
        FOLDER / "configuration.md": reference.render(),
        design: _DIAGRAM.sub(lambda _: diagram(), design.read_text(encoding="utf-8")),
        **man_pages.pages(),
    }


def diagram() -> str:
    """The transition table as a Mermaid state diagram: one arrow for all the steps between two states."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, step), to in TABLE.items():
        arrows.setdefault((state, to), []).append(step.value.replace("_", " "))
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending : accept"]
    lines += [f"    {state} --> {to} : {', '.join(steps)}" for (state, to), steps in arrows.items()]
    lines += [f"    {state} --> [*] : retention" for state in (State.DONE, State.DEAD, State.CANCELLED)]
    return "\n".join((*lines, "```", ""))


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
