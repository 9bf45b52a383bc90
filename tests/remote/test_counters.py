"""Counters: Prometheus text, sums over engines, differences that survive a restart, names that are absent."""

from __future__ import annotations

from specview.remote.counters import Names, counted, samples
from specview.remote.engines import vllm
from tests.remote.server import recorded

_NAMES = Names(drafts="d_total", drafted="t_total", accepted="a_total", per_position="p_total", generated="g_total", running="r")


def test_the_page_is_read() -> None:
    found = samples(
        "# HELP x y\n# TYPE x counter\nx 1\n"
        'y{a="1",b="q\\"u\\\\o\\n"} 2.5e1 1700000000\n'
        'y{b="other", a="1",} NaN\nbroken{ 3\nz not-a-number\n   \n'
    )
    assert found["x"] == {(): 1.0}
    assert found["y"][(("a", "1"), ("b", 'q"u\\o\n'))] == 25.0
    assert "z" not in found and "broken" not in found


def test_differences_of_a_recorded_request() -> None:
    before, after = (samples(recorded(f"vllm-metrics-{when}.txt")) for when in ("before", "after"))
    told = counted(vllm.names, after, before)
    assert (told.drafts, told.drafted, told.accepted, told.generated, told.running) == (2, 8, 4, 53, 0)
    assert told.positions == (1, 1, 1, 1) and not told.began_anew and not told.absent


def test_engines_are_summed_and_one_that_began_anew_counts_from_zero() -> None:
    before = samples('g_total{engine="0"} 100\ng_total{engine="1"} 50\nr{engine="0"} 1\nr{engine="1"} 2')
    now = samples('g_total{engine="0"} 110\ng_total{engine="1"} 7\nr{engine="0"} 0\nr{engine="1"} 2')
    told = counted(_NAMES, now, before)
    assert told.generated == 17 and told.began_anew and told.running == 2
    assert told.absent == ("d_total", "t_total", "a_total") and told.drafted is None and told.draft_acceptance is None


def test_a_series_that_is_new_counts_whole_and_what_is_not_finite_not_at_all() -> None:
    told = counted(_NAMES, samples('g_total{engine="0"} 4\ng_total{engine="1"} +Inf'), samples("other 1"))
    assert told.generated == 4 and not told.began_anew
