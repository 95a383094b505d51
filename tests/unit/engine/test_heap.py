"""The heap of what ends when: in Python here, as its methods are of C where it is compiled."""

from hypothesis import given
from hypothesis import strategies as st

from uncompiled import sources_beside

with sources_beside() as modules:
    Heap = modules["schedule"].Heap


@given(st.lists(st.integers(0, 1 << 40) | st.integers(0, 9), max_size=200), st.data())
def test_the_least_is_at_hand_whatever_came_and_went(numbers, data):
    heap, kept = Heap(), []
    for number in numbers:
        heap.push(number)
        kept = sorted([*kept, number])
        assert heap.least() == kept[0]
        if data.draw(st.integers(0, 3)) == 0:
            heap.pop()
            kept.pop(0)

    while kept:
        assert (heap.size, heap.least()) == (len(kept), kept.pop(0))
        heap.pop()
    assert heap.size == 0
