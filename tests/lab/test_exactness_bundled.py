"""The bundled pair in check mode, both engines: the rejection rule passes, the naive rule is caught by its closed form."""

from __future__ import annotations

import pytest

from specview.decoding.sampling import SamplingParams
from specview.lab.pair_exactness import run_pair
from specview.lab.pair_results import PairSettings
from specview.racing import workloads
from specview.settings.run import LaneSettings, RunSettings

pytestmark = pytest.mark.real_model


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_the_bundled_pair(engine):
    """Issue 5, "It must show", 3. Filters keep the prefixes few: about twenty passes carry 3,600 continuations."""
    if engine == "llama.cpp":
        pytest.importorskip("llama_cpp")
    workload = workloads.load("chat")
    settings = RunSettings(
        engine=engine,
        check_mode=True,
        threads=1,
        prompt=workload.prompt,
        system=workload.system,
        sampling=SamplingParams(temperature=1.0, top_k=8, seed=0),
        lanes=(LaneSettings(), LaneSettings("draft-model", k=2)),
    )
    found = run_pair(settings, PairSettings(samples=900, tokens=2, greedy_tokens=12))
    assert found.holds
    assert found.rules["rejection"].differs is False
    naive = found.rules["naive"]
    assert naive.differs
    assert naive.bias is not None
    assert naive.bias.agrees
    assert abs(naive.bias.measured - naive.bias.closed) < 4 * naive.bias.error
    assert found.drift is not None
    assert found.drift.identical
    assert found.greedy is not None
    assert found.greedy.equal
    assert found.cached["target_passes"] < 60
