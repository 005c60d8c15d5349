"""Any record, as Hypothesis makes them up: what tests of every surface and form try."""

from __future__ import annotations

from hypothesis import strategies as st

from millstream import Item

HEADER_VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.none()
    | st.text(max_size=3)
    | st.floats(allow_nan=False)
    | st.binary(max_size=3)
)
HEADER_PAIRS = st.lists(st.tuples(st.text("xyé", max_size=2), HEADER_VALUES), max_size=4)
"""Headers as Kafka has them: names may be repeated, and be empty."""

HEADERS = HEADER_PAIRS.map(dict) | HEADER_PAIRS

KEYS = st.none() | st.binary(max_size=3) | st.text(max_size=2)
VALUES = st.none() | st.binary(max_size=6) | st.just(b"long" * 30)
ITEMS = st.builds(Item, VALUES, KEYS, st.none() | HEADERS, st.none())
