"""The properties of an object on the bus, read without believing in their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kurir.system.dbus.connection import is_path


class Properties:
    """Names to values. What is missing, or of another type than asked for, reads as nothing."""

    def __init__(self, said: object) -> None:
        """`said` is what came from the bus: names to variants, if whoever sent it knows its trade."""
        self._values: dict[str, object] = {
            str(name): value[1] for name, value in pairs(said) if isinstance(value, tuple) and len(value) == 2
        }

    def number(self, name: str) -> int | None:
        """A whole number."""
        value = self._values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def real(self, name: str) -> float | None:
        """A number that may have a fraction."""
        value = self._values.get(name)
        return value if isinstance(value, float) else None

    def flag(self, name: str) -> bool:
        """Whether it is true, and not only like it."""
        return self._values.get(name) is True

    def text(self, name: str) -> str:
        """A string; empty if there is none."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def raw(self, name: str) -> bytes:
        """An array of bytes; empty if there is none."""
        value = self._values.get(name)
        return value if isinstance(value, bytes) else b""

    def path(self, name: str) -> str:
        """The path of an object; empty if it is that of none."""
        return object_path(self._values.get(name))

    def paths(self, name: str) -> tuple[str, ...]:
        """The paths of objects, without those that are none."""
        return tuple(path for item in self.items(name) if (path := object_path(item)))

    def items(self, name: str) -> list[object]:
        """An array of whatever; empty if there is none."""
        value = self._values.get(name)
        return value if isinstance(value, list) else []


def object_path(value: object) -> str:
    """A value as the path of an object; empty if it is none, or the root, which stands for no object."""
    return value if isinstance(value, str) and value != "/" and is_path(value) else ""


def pairs(value: object) -> Iterator[tuple[object, object]]:
    """What a dictionary holds; nothing if it is none."""
    return iter(value.items() if isinstance(value, Mapping) else ())
