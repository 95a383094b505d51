"""Pools of processes: what is left of one after its work."""

import threading
from multiprocessing import active_children

from tonnage.termination import process_pool


def test_a_pool_whose_work_is_done_leaves_no_thread_and_no_process():
    before = threading.enumerate()

    with process_pool(2) as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]

    assert threading.enumerate() == before
    assert active_children() == []
