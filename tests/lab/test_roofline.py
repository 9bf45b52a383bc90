"""The roofline against its definition, and reading memory for real."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.lab.roofline import Roofline, measure_reading, measure_roofline
from tests.decoding.toy import FakeClock
from tests.lab.batch_fake import BatchEngine

sizes = st.integers(1, 10**12)
rates = st.floats(1.0, 1e15)


def roof(read: int = 4000, weights: int = 1000, kv: int = 0, bandwidth: float | None = 4e6, rate: float | None = 2e6) -> Roofline:
    return Roofline(read, weights, kv, bandwidth, "reading", rate, "products")


@given(read=sizes, weights=sizes, kv=st.integers(0, 10**9), bandwidth=rates, rate=rates, sequences=st.integers(1, 64),
       rows=st.integers(1, 65))  # fmt: skip
@settings(deadline=None, derandomize=True)
def test_the_bound_that_rules_is_the_larger(read, weights, kv, bandwidth, rate, sequences, rows):
    line = roof(read, weights, kv, bandwidth, rate)
    memory = (read + sequences * kv) / bandwidth
    compute = 2 * weights * sequences * rows / rate
    assert line.pass_s(sequences, rows) == pytest.approx(max(memory, compute))
    assert line.bound(sequences, rows) == ("memory" if memory >= compute else "compute")
    # At the ridge, reading the weights alone takes as long as the products.
    ridge = line.ridge_rows
    assert ridge is not None
    assert line.compute_s(ridge) == pytest.approx(line.memory_s())


def test_one_step_by_hand():
    # 4 kB of weights at 4 MB/s: 1 ms. 1,000 weights, 2,000 operations a row at 2 Mop/s: 1 ms a row.
    line = roof()
    assert line.ridge_rows == pytest.approx(1.0)
    assert line.pass_s(1, 1) == pytest.approx(1e-3)
    assert line.pass_s(4, 2) == pytest.approx(8e-3)
    assert roof(kv=4000).memory_s(3) == pytest.approx(4e-3)


def test_what_was_not_measured_gives_no_line():
    for line in (roof(bandwidth=None), roof(rate=None)):
        assert line.pass_s(1, 1) is None and line.bound(1, 1) is None and line.ridge_rows is None
    assert roof(bandwidth=None).as_dict()["bytes_per_s"]["value"] is None


def test_reading_is_timed_over_the_whole_array_and_takes_the_best():
    class Clock:
        """Reads of 4, 2, 1, 3 and 5 seconds."""

        def __init__(self) -> None:
            self.spent = iter((4.0, 2.0, 1.0, 3.0, 5.0))
            self.now, self.running = 0.0, False

        def __call__(self) -> float:
            self.running = not self.running
            self.now += 0.0 if self.running else next(self.spent)
            return self.now

    rate, how = measure_reading(70 << 20, 2, Clock())
    assert rate == pytest.approx(70 * 2**20, rel=1e-6)
    assert how == "70 MiB read in 2 threads"
    assert measure_reading(1, 1)[1] == "64 MiB read in 1 thread"


def test_a_processor_is_measured_here_and_another_device_by_its_probe():
    engine = BatchEngine(lambda sequences, rows: 1.0, FakeClock())
    probe = engine.batch_probe(1, 8, 1)
    found = measure_roofline(engine, probe, context=8)
    assert (found.bytes_per_s, found.bytes_how, found.kv_bytes) == (4e6, "reading", 64)
    engine.device = "cpu"
    found = measure_roofline(engine, probe, context=8)
    assert found.bytes_per_s and found.bytes_per_s > 1e6 and "read in 1 thread" in found.bytes_how
    probe.read_rate = lambda: None
    engine.device = "gpu"
    assert measure_roofline(engine, probe, context=8).bytes_how == "not measured on gpu"
