"""The members of `auto` where its user named none: what copies, and the strongest drafter there is for the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specview.commands import arguments
from specview.drafting.lanes import HeadChoice, flat_settings, heads_of
from specview.errors import SpecviewError
from specview.experiments import arms
from specview.models.assets import asset_path
from specview.racing.resolve import checked_run, with_members
from specview.settings.run import LaneSettings, RunSettings

WITH_HEAD = "prompt-lookup+suffix+eagle3"
WITHOUT = "prompt-lookup+suffix+draft-model"


def members(lane: LaneSettings | None = None, **run: str) -> str:
    settings = checked_run(RunSettings(lanes=(lane or LaneSettings("auto"),), **run))  # type: ignore[arg-type]
    return str(settings.lanes[1].options["members"])


def test_the_bundled_target_gets_its_bundled_head_and_files_say_so():
    settings = checked_run(RunSettings(lanes=(LaneSettings("auto"),)))
    lane = settings.lanes[1]
    assert lane.options["members"] == WITH_HEAD
    assert heads_of(lane) == {"eagle3": HeadChoice("eagle3", "bundled")}
    assert flat_settings(settings, lane)["option_members"] == WITH_HEAD
    assert flat_settings(settings, lane)["draft"] == "bundled"
    assert checked_run(settings) == settings


def test_the_command_says_the_same():
    parser = arguments.Parser("specview run", "")
    arguments.add_shared_flags(parser)

    def lane(*argv: str) -> LaneSettings:
        return arguments.settings_of(parser.parse_args([*argv, "--prompt", "x"]), ("plain",)).lanes[0]

    assert lane("--method", "auto").options == {"members": WITH_HEAD}
    assert lane("--lane", "auto,eagle3.tree=dynamic").options["eagle3.tree"] == "dynamic"
    assert lane("--method", "auto", "--engine", "llama.cpp").options == {"members": WITHOUT}
    assert lane("--method", "auto", "--target", "mine").options == {"members": WITHOUT}


def test_another_target_or_draft_keeps_the_draft_model(tmp_path: Path):
    assert members(target="owner/name") == WITHOUT
    assert members(engine="llama.cpp") == WITHOUT
    assert members(LaneSettings("auto", draft=str(tmp_path))) == WITHOUT  # no head, nor anything else


@pytest.mark.parametrize("kind", ["eagle3", "p-eagle", "medusa"])
@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_a_head_that_the_draft_names_is_a_member_on_any_target(kind, engine):
    folder = str(asset_path(kind))
    lane = LaneSettings("auto", draft=folder)
    assert members(lane, engine=engine, target="owner/name") == f"prompt-lookup+suffix+{kind}"
    (_, resolved) = checked_run(RunSettings(target="owner/name", engine=engine, lanes=(lane,))).lanes
    assert heads_of(resolved) == {kind: HeadChoice(kind, folder)}


def test_without_the_bundled_head_or_torch_the_draft_model_drafts(monkeypatch):
    def missing(*_: object) -> None:
        raise SpecviewError("no such head")

    with monkeypatch.context() as patched:
        patched.setattr("specview.models.heads.find_head", missing)
        assert members() == WITHOUT
    monkeypatch.setattr("specview.models.loading.engine_available", lambda name: "torch is not installed")
    assert members() == WITHOUT


def test_members_that_are_named_stay():
    own = LaneSettings("auto", options={"members": "suffix+draft-model"})
    assert members(own) == "suffix+draft-model"
    cascade = LaneSettings("cascade")
    assert with_members(cascade, "bundled", "transformers") == cascade


def test_tune_asked_for_auto_alone_gives_it_the_same():
    (found,) = arms.combined((), replace(RunSettings(), prompt="x"), ("auto",))
    assert found.lane.options["members"] == WITH_HEAD
