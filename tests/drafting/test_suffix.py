"""suffix: both trees, confidences, ties between runs, the store, options."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.suffix import BYTES_PER_TOKEN, FORMAT, METHOD, OPTIONS, Suffix, make
from specview.errors import SpecviewError, UsageError
from specview.settings.options import resolve
from tests.decoding.toy import FakeTokenizer
from tests.drafting.ngram_helpers import context_of, replay
from tests.drafting.test_suffix_tree import memory_bytes

SONG = [10, 11, 12, 13, 14, 15, 16, 17]


def made(memory=None, **given) -> Suffix:
    return make(context_of(OPTIONS, {}, memory, **given))


def run(memory, text, prompt=1, **given):
    """A whole run of a lane; returns its rounds."""
    drafter = made(memory, **given)
    rounds = replay(drafter, text, prompt)
    drafter.close()
    return rounds


def first_draft(memory, prompt, budget=9, **given):
    drafter = made(memory, **given)
    drafter.start(prompt, SamplingParams())
    return drafter.propose(prompt, budget)


def test_the_defaults_are_vllms():
    values = resolve(OPTIONS, {}, "suffix")
    assert values == {
        "max_tree_depth": 24,
        "max_spec_factor": 1.0,
        "max_spec_offset": 0.0,
        "min_token_prob": 0.1,
        "max_cached_requests": 10000,
        "memory_mb": 64,
        "tie": False,
        "store": "",
    }
    assert METHOD.drafted(values).levels == 24


def test_the_draft_is_as_long_as_the_match_times_the_factor():
    text = [*SONG, 1, *SONG[:3]]
    assert first_draft(None, text).tokens == (13, 14, 15)
    assert first_draft(None, text, max_spec_factor=2.0).tokens == (13, 14, 15, 16, 17, 1)
    assert first_draft(None, text, max_spec_factor=0.5).tokens == (13,)
    assert first_draft(None, text, max_spec_factor=0.5, max_spec_offset=1.0).tokens == (13, 14)
    assert first_draft(None, text, budget=2).tokens == (13, 14)
    assert first_draft(None, text, max_tree_depth=4).tokens == (13, 14)  # match and draft are 4 together
    assert first_draft(None, text, max_spec_factor=0.0).tokens == ()
    assert first_draft(None, [1, 2, 3]).tokens == ()


def test_confidences_are_shares_and_the_draft_ends_where_their_product_is_low():
    # After 1 2: 3 three times, 9 once, and the end; after 1 2 3: 4, 4, 5.
    text = [1, 2, 3, 4, 0, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 9, 6, 1, 2]
    draft = first_draft(None, text)
    assert draft.tokens == (3, 4)
    assert draft.confidences == pytest.approx((3 / 5, 2 / 3))
    assert draft.q is None
    assert first_draft(None, text, min_token_prob=0.5).tokens == (3,)
    assert first_draft(None, text, min_token_prob=0.7).tokens == ()
    drafter = made()
    drafter.start(text, SamplingParams())
    assert drafter.propose(text, 9, lambda confidence: confidence > 0.65).tokens == (3,)


def test_a_grown_tree_drafts_what_a_fresh_one_does():
    text = [(place * place) % 7 for place in range(120)]
    for place, tokens, _ in replay(made(), text, 10):
        if place < len(text) - 1:
            assert tokens == first_draft(None, text[:place], len(text) - place - 1).tokens


def test_tied_runs_draft_from_the_outputs_of_earlier_ones():
    memory = {}
    assert all(not tokens for _, tokens, _ in run(memory, SONG, tie=True))
    rounds = run(memory, [99, *SONG], prompt=3, tie=True)
    assert rounds[0] == (3, (12,), 1)  # 10 was the earlier run's prompt: the match is 11 alone
    assert sum(held for _, _, held in rounds) > 2
    assert first_draft(memory, SONG[1:4], tie=True).tokens == (14, 15, 16)
    prompt_only = {}
    run(prompt_only, [*SONG, 1, 2, 3], prompt=len(SONG), tie=True)
    assert first_draft(prompt_only, SONG[:3], tie=True).tokens == ()  # prompts are not kept, as in vLLM


def test_the_better_scoring_tree_drafts():
    memory = {}
    run(memory, [0, *SONG], tie=True)
    prompt = [12, 50, 51, 7, 10, 11, 12]  # its own past knows one token of the match, the earlier run three
    assert first_draft(memory, prompt, tie=True).tokens == (13, 14, 15)
    own = [10, 11, 12, 50, 51, 52, 7, 10, 11, 12, 50, 51, 52, 7, 10, 11, 12]
    assert first_draft({}, own).tokens[:3] == (50, 51, 52)


def test_other_options_do_not_share_and_lanes_of_one_race_do_not_learn_from_each_other():
    memory = {}
    run(memory, SONG, tie=True)
    assert first_draft(memory, SONG[1:4], tie=True).tokens
    assert first_draft(memory, SONG[1:4], tie=True, max_tree_depth=12).tokens == ()
    one, two = made(tie=True, memory=memory, min_token_prob=0.2), made(tie=True, memory=memory, min_token_prob=0.2)
    two.start([1], SamplingParams())
    replay(one, [5, *SONG], 1)
    assert two.propose([1, *SONG[:3]], 9).tokens == ()
    one.close()
    assert two.propose([1, *SONG[:4]], 9).tokens == ()


def test_a_tree_that_grew_meanwhile_is_matched_anew():
    """Another lane of the same settings begins while this one runs: states may have parted."""
    memory = {}
    run(memory, [0, *SONG, 20], tie=True)
    lane = made(memory, tie=True)
    lane.start([1], SamplingParams())
    assert lane.propose([1, 12, 13], 9).tokens == (14, 15)
    run(memory, [3, 11, 12, 13, 30, 40, 12, 13, 30, 41, 12, 13, 30, 14, 12, 13, 30, 14], tie=True)
    made(memory, tie=True).start([2], SamplingParams())
    after = lane.propose([1, 12, 13, 12, 13], 9)
    fresh = first_draft(memory, [1, 12, 13, 12, 13], tie=True)
    assert after.tokens == fresh.tokens
    assert after.confidences == pytest.approx(fresh.confidences)


def test_earlier_runs_are_bounded_by_number_and_by_memory_oldest_first():
    memory = {}
    for first in (100, 200, 300):
        run(memory, [0, *range(first, first + 8)], tie=True, max_cached_requests=2)
    assert first_draft(memory, [100, 101, 102], tie=True, max_cached_requests=2).tokens == ()
    for first in (200, 300):
        found = first_draft(memory, [first, first + 1, first + 2], tie=True, max_cached_requests=2)
        assert found.tokens == (first + 3, first + 4, first + 5)
    memory = {}
    run(memory, [0, *SONG], tie=True, max_cached_requests=0)
    assert first_draft(memory, SONG[:3], tie=True, max_cached_requests=0).tokens == ()
    memory = {}
    for first in range(0, 8000, 1000):
        run(memory, [0, *range(first, first + 1000)], tie=True, memory_mb=1)
    (kept,) = memory.values()
    assert kept.runs.tokens <= (1 << 20) // BYTES_PER_TOKEN
    assert first_draft(memory, [0, 1, 2], tie=True, memory_mb=1).tokens == ()
    assert first_draft(memory, [7000, 7001, 7002], tie=True, memory_mb=1).tokens == (7003, 7004, 7005)
    assert memory_bytes(kept.tree(24)) <= 1 << 20


# -- the store ------------------------------------------------------------------------------------------


def with_target(memory, letters=26, **given) -> DrafterContext:
    """A context with a target whose tokenizer has so many letters."""
    options = resolve(OPTIONS, given, "suffix")
    target = SimpleNamespace(tokenizer=FakeTokenizer(letters))
    return DrafterContext(options, 4096, 100, target=target, memory=memory)  # type: ignore[arg-type]


def test_the_store_keeps_earlier_runs_between_sessions(tmp_path):
    path = tmp_path / "runs.npz"
    run({}, [0, *SONG], tie=True, store=str(path))
    run({}, [0, *range(60, 70)], tie=True, store=str(path))  # loads, adds, saves
    assert first_draft({}, SONG[:3], tie=True, store=str(path)).tokens == (13, 14, 15)
    assert first_draft({}, [60, 61], tie=True, store=str(path)).tokens == (62, 63)
    assert first_draft({}, SONG[:3], tie=True).tokens == ()
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file.files) == ["format", "lengths", "tokenizer", "tokens"]
        assert file["lengths"].tolist() == [8, 10]
    assert os.listdir(tmp_path) == ["runs.npz"]  # no temporary file is left
    memory = {}
    run(memory, [1, 2], tie=True, store=str(path))
    assert len(next(iter(memory.values())).runs.runs) == 3


def test_lanes_with_other_options_share_a_store(tmp_path):
    path, memory = tmp_path / "runs.npz", {}
    run(memory, [0, *SONG], tie=True, store=str(path))
    run(memory, [0, *range(60, 70)], tie=True, store=str(path), max_tree_depth=12)
    assert first_draft({}, SONG[:3], tie=True, store=str(path)).tokens == (13, 14, 15)


def test_a_store_of_another_tokenizer_is_refused(tmp_path):
    path = tmp_path / "runs.npz"
    drafter = make(with_target({}, 26, tie=True, store=str(path)))
    replay(drafter, [0, *SONG], 1)
    drafter.close()
    assert isinstance(make(with_target({}, 26, tie=True, store=str(path))), Suffix)
    before = path.read_bytes()
    with pytest.raises(SpecviewError, match="are of another tokenizer .26 tokens, .* than this target's .25 tokens"):
        make(with_target({}, 25, tie=True, store=str(path)))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"PK\x03\x04 half a zip",
        json.dumps({"tokens": [1]}).encode(),
        {"format": np.array("other"), "tokenizer": np.array("x"), "tokens": np.zeros(1, np.int32)},
        {"format": np.array(FORMAT), "tokenizer": np.array("100,000 ids")},
        {
            "format": np.array(FORMAT),
            "tokenizer": np.array("100,000 ids"),
            "tokens": np.zeros(3, np.int32),
            "lengths": np.array([2], np.int64),
        },
        {
            "format": np.array(FORMAT),
            "tokenizer": np.array("100,000 ids"),
            "tokens": np.array([-1, 2], np.int32),
            "lengths": np.array([2], np.int64),
        },
        {
            "format": np.array(FORMAT),
            "tokenizer": np.array("100,000 ids"),
            "tokens": np.array([{"a": 1}], dtype=object),
            "lengths": np.array([1], np.int64),
        },
    ],
    ids=["empty", "text", "half", "json", "format", "missing", "lengths", "negative", "pickle"],
)
def test_a_damaged_store_is_one_clear_line(tmp_path, content):
    path = tmp_path / "runs.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    with pytest.raises(SpecviewError, match=r"is not a store of earlier runs, or is damaged\. Name another file"):
        made({}, tie=True, store=str(path))


def test_a_store_with_ids_beyond_the_vocabulary_is_one_clear_line(tmp_path):
    path = tmp_path / "runs.npz"
    run({}, [0, *SONG], tie=True, store=str(path))
    with np.load(path) as file:
        content = dict(file)
    content["tokens"][0] = 999_999_999
    np.savez(path, **content)
    with pytest.raises(SpecviewError, match="damaged"):
        made({}, tie=True, store=str(path))


def test_a_truncated_store_is_one_clear_line(tmp_path):
    path = tmp_path / "runs.npz"
    run({}, [0, *SONG], tie=True, store=str(path))
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(SpecviewError, match="damaged"):
            made({}, tie=True, store=str(path))


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("", "no folder/runs.npz", "file/runs.npz", "x" * 300 + ".npz", "a\0b"):
        place = tmp_path / name
        with pytest.raises(UsageError, match="no store can be written to"):
            made({}, tie=True, store=str(place))
    with pytest.raises(UsageError, match="tie is off"):
        made({}, store=str(tmp_path / "runs.npz"))


@pytest.mark.parametrize("other", [b"years of work", b"GGUF and weights"])
def test_what_came_to_a_stores_place_meanwhile_is_not_lost(tmp_path, other):
    path, memory = tmp_path / "runs.npz", {}
    run(memory, [0, *SONG], tie=True, store=str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(other)
    with pytest.raises(SpecviewError, match="is not a store of earlier runs"):
        run(memory, [0, *SONG], tie=True, store=str(path))
    assert path.read_bytes() == other and [found.name for found in tmp_path.iterdir()] == ["runs.npz"]


def test_a_store_that_cannot_be_written_at_the_end_is_one_clear_line_and_keeps_the_old_one(tmp_path, monkeypatch):
    path, memory = tmp_path / "runs.npz", {}
    run(memory, [0, *SONG], tie=True, store=str(path))
    before = path.read_bytes()

    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    drafter = made(memory, tie=True, store=str(path))
    replay(drafter, [0, *range(60, 70)], 1)
    with pytest.raises(SpecviewError, match="could not be written .No space left on device"):
        drafter.close()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["runs.npz"]
    assert first_draft(memory, [60, 61], tie=True, store=str(path)).tokens == (62, 63)  # still in memory
    drafter.close()  # nothing more to save: no error


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_leave_to_write(tmp_path):
    Path(tmp_path).chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UsageError, match="no store can be written to"):
        made({}, tie=True, store=str(tmp_path / "runs.npz"))


def test_bad_options_are_refused():
    for bad in ({"max_tree_depth": 1}, {"max_spec_factor": -1}, {"min_token_prob": 1.5}, {"min_token_prob": math.nan}):
        with pytest.raises(UsageError):
            made(**bad)
