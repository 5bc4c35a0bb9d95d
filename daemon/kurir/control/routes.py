"""From a path to its endpoints: a tree of segments, made from the table once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from kurir.control.endpoint import Endpoint

MOST_SEGMENTS = 8
NO_PARAMETERS: Mapping[str, str] = {}


@dataclass(slots=True)
class _Node:
    """A place in the tree. `verbs` are of the path that ends here."""

    verbs: dict[str, Endpoint] = field(default_factory=dict)
    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: tuple[str, _Node] | None = None
    tail: bool = False  # whatever follows belongs to it


class Routes:
    """Finds endpoints. A path without parameters is found at once."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def find(self, path: str) -> tuple[Mapping[str, Endpoint], Mapping[str, str]] | None:
        """The verbs of a path, and its parameters decoded. None: there is no such path."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, NO_PARAMETERS
        segments = path.split("/", MOST_SEGMENTS + 1)[1:]
        node, parameters = self._root, {}
        for segment in segments:
            if node.tail:
                break
            following = node.literal.get(segment)
            if following is None:
                value = _decoded(segment)
                if node.parameter is None or not value:
                    return None
                name, following = node.parameter
                parameters[name] = value
            node = following
        return (node.verbs, parameters) if node.verbs else None

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        segments = endpoint.path.split("/")[1:]
        for segment in segments[:-1] if endpoint.tail else segments:
            if segment.startswith("{"):
                if node.parameter is None:
                    node.parameter = (segment[1:-1], _Node())
                assert node.parameter[0] == segment[1:-1], f"{endpoint.path}: one place, two names"
                node = node.parameter[1]
            else:
                node = node.literal.setdefault(segment, _Node())
        assert endpoint.verb not in node.verbs, f"{endpoint.verb} {endpoint.path} is there twice"
        node.verbs[endpoint.verb] = endpoint
        node.tail = endpoint.tail
        if "{" not in endpoint.path:
            self._fixed[endpoint.path] = node.verbs


def _decoded(segment: str) -> str:
    """A segment without its escapes; empty if they make no text."""
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return ""
