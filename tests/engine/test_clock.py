"""Clocks: what others compute does not move the process's clock, and its waits are skipped."""

import time

from cbjax.engine.clock import ProcessClock


def test_sleeping_takes_no_time_of_the_process():
    clock = ProcessClock()
    time.sleep(0.3)
    assert clock.now() < 0.2


def test_computing_does():
    clock, until = ProcessClock(), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert clock.now() >= 0.05


def test_a_wait_is_a_jump_forward_and_never_back():
    clock, began = ProcessClock(), time.perf_counter()
    clock.wait_until(100.0)
    assert 100.0 <= clock.now() < 101.0 and time.perf_counter() - began < 10.0
    clock.wait_until(50.0)
    assert clock.now() >= 100.0
