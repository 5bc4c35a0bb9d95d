"""What comes from the bus is believed neither in its types nor in its shape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kurir.system.dbus.properties import Properties, object_path, pairs

anything: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(anything, st.text(max_size=5))
def test_every_reading_has_its_type(said: object, name: str) -> None:
    for read in (Properties(said), Properties({name: said}), Properties({name: ("v", said)})):
        number = read.number(name)
        assert number is None or type(number) is int
        assert read.real(name) is None or type(read.real(name)) is float
        assert type(read.flag(name)) is bool
        assert type(read.text(name)) is str
        assert type(read.raw(name)) is bytes
        assert type(read.items(name)) is list
        assert all(path.startswith("/") for path in (read.path(name), *read.paths(name)) if path)
    assert list(pairs(said)) == (list(said.items()) if isinstance(said, dict) else [])


def test_a_path_is_one_by_its_letters() -> None:
    assert object_path("/org/x_1/2") == "/org/x_1/2"
    for other in ("/", "", "x", "/x/", "//x", "/x'y", "/x y", "/ü", "/x\n", 7, None, ["/x"]):
        assert object_path(other) == ""
