"""What the target writes: room for its answers, and stops before, while and after the slots are filled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specview.errors import SpecviewError
from specview.training import generate, texts
from specview.training.asked import MOST_ANSWER_TOKENS, TrainSettings
from specview.training.chat import ChatLayout, load_tokenizer
from specview.training.generate import LANES, LEAST_ANSWER, Lane, Writer
from specview.training.prompts import Prompt
from specview.training.shards import ShardWriter
from specview.training.target import TargetModel
from specview.training.teacher import LONGEST

LANE = Lane(4, 80, {"user": 1.0}, 0.0)


class Numbered:
    """Prompts that are all different and all of a length."""

    def __init__(self, length: int) -> None:
        self.own_texts: list[str] = []
        self.drawn = 0
        self._length = length

    def is_held_out(self, text: str) -> bool:
        return False

    def draw(self, kinds: dict[str, float]) -> Prompt:
        self.drawn += 1
        return Prompt("user", f"{self.drawn:0{self._length}}")


class After:
    """Says stop from the n-th time it is asked."""

    def __init__(self, n: int) -> None:
        self.asked, self._n = 0, n

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked >= self._n


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> TargetModel:
    return TargetModel(tiny_target)


@pytest.fixture
def writer(tiny_target: Path, target: TargetModel, tmp_path: Path) -> Callable[..., Writer]:
    tokenizer = load_tokenizer(tiny_target)

    def make(prompts: Numbered, answer: int = 40, lanes: tuple[Lane, ...] = (LANE,)) -> Writer:
        return Writer(
            target, tokenizer, prompts, ShardWriter(tmp_path / "texts", "written"), 0, lanes, answer
        )

    return make


def test_prompts_that_leave_no_room_are_one_line(
    writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "REDRAWS", 50)
    prompts = Numbered(20)
    with pytest.raises(
        SpecviewError, match="none of 50 prompts leaves room for an answer of 200 tokens"
    ) as caught:
        writer(prompts, answer=200).run(lambda: False, lambda text: None)
    assert prompts.drawn == 50 and "\n" not in str(caught.value)


def test_a_stop_ends_the_search_for_a_prompt(writer: Callable[..., Writer], tmp_path: Path) -> None:
    prompts, stop = Numbered(20), After(7)
    writer(prompts, answer=200).run(stop, lambda text: None)
    assert stop.asked == 7 and prompts.drawn < 7
    assert not list((tmp_path / "texts").glob("*"))


def test_a_stop_ends_the_filling_of_the_slots(writer: Callable[..., Writer]) -> None:
    prompts, stop = Numbered(10), After(5)
    made = writer(prompts)
    made.run(stop, lambda text: None)
    assert stop.asked == 5 and made.filled == 2 < LANE.slots  # two questions for each slot


@pytest.mark.parametrize("n", [12, 45, 52, 53, 54, 55, 56, 57, 58, 59, 60, 110])
def test_every_answer_is_kept_once_wherever_the_writer_stops(
    n: int, writer: Callable[..., Writer], tmp_path: Path
) -> None:
    made = writer(Numbered(10))
    made.run(After(n), lambda text: None)
    kept = [text.tokens.tolist() for text in texts.texts_of(tmp_path / "texts")]
    assert len({tuple(tokens[:12]) for tokens in kept}) == len(kept)
    assert sum(text.written for text in texts.texts_of(tmp_path / "texts")) == made.written
    assert bool(kept) == (n > 12)  # 24 tokens of an answer are worth keeping


@pytest.mark.parametrize("answer", [8, 128, 129, 160, 161, 300, MOST_ANSWER_TOKENS])
@pytest.mark.parametrize("template", ["chat", None])
def test_the_lanes_leave_prompts_the_room_they_have_by_default(answer: int, template: str | None) -> None:
    tokenizer = SimpleNamespace(chat_template=template)
    material = texts.Material(ChatLayout((1,), (2,), 2), ())
    lanes = texts.lanes_for(1, material.layout, tokenizer, material, answer)
    for lane, usual in zip(lanes, LANES, strict=True):
        room = usual.capacity - LEAST_ANSWER * TrainSettings.answer_tokens
        assert room <= lane.capacity - LEAST_ANSWER * answer and lane.capacity <= LONGEST
        assert lane.slots == usual.slots and lane.invented == (usual.invented if template else 0.0)


def test_the_longest_answer_leaves_half_of_a_text_to_the_prompt() -> None:
    assert 2 * MOST_ANSWER_TOKENS <= LONGEST


def test_breaking_off_stops_the_writers(tiny_target: Path, target: TargetModel, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    seen: list[tuple[int, int]] = []

    def interrupt(*numbers: int) -> None:
        seen.append(numbers[:2])
        raise KeyboardInterrupt

    tokenizer = load_tokenizer(tiny_target)
    with pytest.raises(KeyboardInterrupt):
        texts.write_in_slots(
            target, ChatLayout.of(tokenizer), [tokenizer], lambda rng: Numbered(10), (LANE,), tmp_path / "texts",
            0, 40, lambda written: False, interrupt, interrupt,
        )  # fmt: skip
    assert seen and not set(threading.enumerate()) - before
