"""The sentence on a race: who won, by how much, whether the text is the same; honest where nobody did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specview.decoding.speedup import Speedup
from specview.files.verdict import Standing, standings, verdict
from specview.settings.events import Equality

SAME = Equality(True, 128)
PLAIN = Standing("plain", 128, 36.0, plain=True, end="limit")


def lane(name: str, value: float, spread: tuple[float, float] | None = None, **more: object) -> Standing:
    """A lane that gave 128 tokens at `value` times plain's 36 tok/s."""
    low, high = spread or (value - 0.05, value + 0.05)
    faster = Speedup(128, 128, 128 / (36 * value), low, high, plain_seconds=128 / 36)
    made = Standing(name, 128, faster.tokens_per_s, faster, equality=SAME, end="limit")
    return replace(made, **more)  # type: ignore[arg-type]


def said(*lanes: Standing) -> str:
    return verdict([PLAIN, *lanes]).sentence


def test_who_won_by_how_much_and_that_the_text_is_the_same():
    found = verdict([PLAIN, lane("draft model", 1.5), lane("EAGLE-3", 1.9)])
    assert found.sentence == "EAGLE-3 is 1.9× faster than plain decoding, and the text is the same."
    assert found.rest == "128 tokens · 68.4 against 36.0 tok/s · draft model 1.5×" and found.tone == "good"
    assert found.text == f"{found.sentence} {found.rest}"


def test_nobody_is_faster():
    found = verdict([PLAIN, lane("draft model", 0.8), lane("lookahead", 0.5)])
    assert found.sentence == "Plain decoding is fastest here: draft model 0.8×." and "lookahead 0.5×" in found.rest


def test_what_is_not_clearly_faster_is_not_called_so():
    assert said(lane("draft model", 1.04, (0.93, 1.12))) == (
        "No lane is clearly faster than plain decoding: draft model 1.04× (0.93 to 1.12)."
    )
    assert "no lane is clearly faster" in said(lane("draft model", 1.0, (1.0, 1.0))).lower()


def test_ranges_that_overlap_are_no_victory_over_another_lane():
    close = said(lane("EAGLE-3", 1.9, (1.7, 2.1)), lane("draft model", 1.8, (1.6, 1.9)), lane("lookahead", 1.2))
    assert close == "EAGLE-3 is 1.9× faster than plain decoding, not clearly ahead of draft model, and the text is the same."
    three = said(lane("a", 1.9, (1.2, 2.1)), lane("b", 1.8, (1.1, 1.9)), lane("c", 1.7, (1.1, 2.0)))
    assert "not clearly ahead of b and c," in three


@pytest.mark.parametrize(("margin", "kernel", "words", "tone"), [
    (0.11, 0.2, "a near tie: logits 0.11 apart, kernels move 0.2", "normal"),
    (0.9, 0.2, "no near tie: logits 0.9 apart, kernels move 0.2", "warning"),
    (0.9, None, "logits 0.9 apart there", "warning"),
    (None, None, "", "warning"),
])  # fmt: skip
def test_a_text_that_differs_is_said_with_what_explains_it(margin, kernel, words, tone):
    found = verdict([PLAIN, lane("EAGLE-3", 1.9, equality=Equality(False, 128, 57, margin, kernel))])
    assert found.sentence == "EAGLE-3 is 1.9× faster than plain decoding, but its text differs from token 57 on."
    assert found.rest.startswith(words or "128 tokens") and found.tone == tone
    other = verdict([PLAIN, lane("EAGLE-3", 1.9), lane("draft model", 1.5, equality=Equality(False, 128, 57))])
    assert "the text is the same" in other.sentence and "the text of draft model differs from token 57 on" in other.rest


def test_a_lossy_winner_is_called_lossy():
    found = verdict([PLAIN, lane("EAGLE-3", 1.5), lane("naive", 2.1, lossy=True, equality=None)])
    assert found.sentence == "Naive is 2.1× faster than plain decoding, but lossy: its rule changes the text."
    assert "EAGLE-3 1.5×" in found.rest and found.tone == "warning"
    assert "lossy, though the text is the same here" in said(lane("naive", 2.1, lossy=True))
    assert "naive (lossy) 1.5×" in verdict([PLAIN, lane("EAGLE-3", 1.9), lane("naive", 1.5, lossy=True)]).rest


def test_a_sampled_exact_lane_says_so():
    assert said(lane("EAGLE-3", 1.6, equality=None)) == "EAGLE-3 is 1.6× faster than plain decoding, by an exact rule."


def test_a_stopped_race_and_one_of_other_lengths():
    stopped = replace(lane("EAGLE-3", 1.9), end="stopped", tokens=40)
    found = verdict([replace(PLAIN, end="stopped", tokens=21), stopped])
    assert found.sentence.startswith("Stopped: EAGLE-3 was 1.9× faster than plain decoding")
    shared = Speedup(40, 20, 2.0, 1.9, 2.1)
    found = verdict([PLAIN, replace(lane("EAGLE-3", 2), speedup=shared, tokens=40, end="eos")])
    assert "40 to 128 tokens · 20.0 against 10.0 tok/s over the 2.0 s that both ran" in found.rest
    assert verdict([replace(PLAIN, tokens=0, end="stopped")]).sentence == "Stopped before the first token."


def test_lanes_that_failed():
    broken = Standing("draft model", 0, None, end="error", error="The draft has another tokenizer.")
    found = verdict([PLAIN, lane("EAGLE-3", 1.9), broken])
    assert "EAGLE-3 is 1.9×" in found.sentence and found.rest.startswith("draft model failed: The draft has another tokenizer. · 128 tokens")
    assert found.tone == "warning"
    found = verdict([replace(broken, name="plain", plain=True), broken])
    assert (found.sentence, found.rest, found.tone) == ("No lane could run.", "The draft has another tokenizer.", "bad")


def test_one_lane_alone_and_lanes_without_plain():
    assert verdict([PLAIN]).sentence == "Plain decoding gave 128 tokens at 36.0 tok/s." and not verdict([PLAIN]).rest
    found = verdict([replace(lane("EAGLE-3", 1.9), speedup=None, rate=68.0)])
    assert found.sentence == "EAGLE-3 gave 128 tokens at 68.0 tok/s."
    two = verdict([Standing("plain", 0, None, plain=True, end="error"), replace(lane("EAGLE-3", 1.9), speedup=None, rate=68.0)])
    assert "did not run, so there is no speedup" in two.rest
    beside = verdict([replace(PLAIN, differs="other prompt"), replace(lane("EAGLE-3", 1), speedup=None, rate=50.0, differs="other prompt")])
    assert "other prompt: no speedup between these runs" in beside.rest
    assert verdict([]).text == ""


def test_few_rounds_give_no_range_and_it_says_so():
    faster = Speedup(12, 12, 0.2, plain_seconds=0.4)
    found = verdict([PLAIN, replace(lane("EAGLE-3", 2), speedup=faster)])
    assert "too few rounds for a range" in found.rest and "2.0×" in found.sentence


def test_a_documents_lanes_are_standings():
    over = Speedup(128, 128, 1.9, 1.8, 2.0, plain_seconds=3.6).as_dict()
    documents = [
        {"name": "plain", "run": {"method": "plain"}, "metrics": {"emitted": 128, "decode_tokens_per_s": 35.6}, "output": {"end": "limit"}},
        {"name": "eagle3", "run": {"method": "eagle3", "rule": "greedy"}, "metrics": {"emitted": 128, "decode_tokens_per_s": 67.4},
         "output": {"end": "limit"}, "speedup": 1.9, "speedup_spread": [1.8, 2.0], "speedup_over": over,
         "equal_to_plain": {"equal": True, "first_difference": None, "logit_margin": None, "kernel_margin": None}},
    ]  # fmt: skip
    made = standings(documents)
    assert made[0].plain and made[1].name == "EAGLE-3" and made[1].speedup.spread == (1.8, 2.0) and made[1].speedup.whole
    assert verdict(made).sentence == "EAGLE-3 is 1.9× faster than plain decoding, and the text is the same."
    assert verdict(standings([{"name": "x"}])).text  # a file that holds next to nothing still says something
