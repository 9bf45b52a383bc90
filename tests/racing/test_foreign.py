"""Settings that came with a file: what may name a file is left out, and every model is named, whichever option has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specview.drafting.lanes import heads_of, needs_draft
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.racing.resolve import files_named, harmless, models_named, with_known_models
from specview.settings.run import BUNDLED, LaneSettings, RunSettings

EVIL = "//host/share/any path"
COMBINED = [name for name, method in METHODS.items() if method.combines]


def lanes_with(value: str) -> list[tuple[str, LaneSettings]]:
    """A lane per option of every method that takes text, as its own or as a member's, with this value."""
    found = []
    for name, method in METHODS.items():
        for option in method.options:
            if isinstance(option.default, str) and not option.choices:
                found.append((option.name, LaneSettings(name, options={option.name: value})))
                if not method.combines:
                    found += [
                        (option.name, LaneSettings(one, options={"members": name, f"{name}.{option.name}": value})) for one in COMBINED
                    ]
    return found


@pytest.mark.parametrize(("option", "lane"), lanes_with(EVIL))
def test_text_of_an_option_is_left_out_or_is_a_model_that_is_asked_about(option: str, lane: LaneSettings) -> None:
    taken = harmless(RunSettings(trust_remote_code=True, lanes=(LaneSettings(), lane)))
    assert not taken.trust_remote_code
    kept = EVIL in taken.lanes[1].options.values()
    assert kept == (option == "head") and (EVIL in files_named(lane).values()) != kept
    assert (EVIL in models_named(taken)) == kept
    known = with_known_models(taken, lambda name: False, RunSettings())
    assert EVIL not in known.lanes[1].options.values() and not models_named(known)


def test_policies_have_no_text_that_could_name_anything() -> None:
    assert not [option for policy in POLICIES.values() for option in policy.options if isinstance(option.default, str) and not option.choices]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "plain"])
def test_every_setting_that_loads_something_is_named(method: str) -> None:
    lane = LaneSettings(method, draft="owner/draft")
    settings = RunSettings(target="owner/name", device="cuda", lanes=(LaneSettings(draft="unused/one"), lane))
    named = models_named(settings)
    assert named["owner/name"] == "target" and "unused/one" not in named
    assert ("owner/draft" in named) == bool(needs_draft(lane) or heads_of(lane))
    own = RunSettings("llama.cpp", target="mine.gguf", device=None, trust_remote_code=False)
    known = with_known_models(settings, lambda name: name == "owner/draft", own)
    assert (known.engine, known.target, known.device) == ("llama.cpp", "mine.gguf", None)
    assert known.lanes[1] == lane
    none = with_known_models(settings, lambda name: False, own)
    assert none.lanes[1] == replace(lane, draft=BUNDLED) and none.lanes[0].draft == BUNDLED
    assert with_known_models(settings, lambda name: True, own) == settings
