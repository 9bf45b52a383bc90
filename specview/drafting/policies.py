"""Draft length policies: how many tokens the next round drafts. Usable with every drafter.

They learn from judged tokens, from how long drafts were and from what rounds cost. Where a draft ends may hang on tokens
that were not judged; a round draws its tokens by numbers of its own, so that tells nothing of the next one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specview.decoding.costs import Costs
from specview.decoding.interfaces import LengthPolicy, Proceed
from specview.decoding.ledger import Round
from specview.drafting.acceptance import Acceptance, GoOn, fastest, learn_round, refused
from specview.settings.options import Option, Value

LONGEST = 64
LONGEST_PAUSE = 64  # rounds between retries
PAUSE_FADES = 0.97  # a round of a pause, of what was learned before it: the text goes on


class Constant:
    """Always k."""

    proceed: Proceed | None = None

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        self._k = 1

    def start(self, k: int) -> None:
        """Begin a run with the user's k."""
        self._k = k

    def budget(self) -> int:
        """Tokens to draft in the next round."""
        return self._k

    def observe(self, round_: Round) -> None:
        """Learn nothing."""


class Heuristic(Constant):
    """k grows by 2 when a whole draft was accepted and shrinks by 1 otherwise (transformers).

    Of a tree a whole path counts: no more can be accepted.
    """

    def observe(self, round_: Round) -> None:
        """Lengthen or shorten the next draft."""
        if not round_.k:
            return
        self._k = max(self._k - 1, 1) if refused(round_) is not None else min(self._k + 2, LONGEST)


class Confidence(Constant):
    """Ends the draft after the first token that the drafter itself gives less than the threshold.

    The token stays in the draft and is judged: dropping a sampled token by its value would bend the
    distribution.
    """

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        super().__init__(options)
        threshold = float(options["threshold"])
        self.proceed = lambda confidence: confidence >= threshold


class OffBelow(Constant):
    """Drafts k tokens while enough of what it drafts is accepted, else nothing for a while.

    A run, and every retry, begins on probation: one token, then twice as many after every draft that was
    accepted in full, up to k. So a method with nothing to say costs a few short drafts. The pause after a
    failure is twice the last one.
    """

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        super().__init__(options)
        self._threshold = float(options["threshold"])
        self._window = int(options["window"])
        self._first_pause = int(options["retry"])
        self._on_probation = True
        self._allowed = 1
        self._recent: deque[tuple[int, int]] = deque()

    def start(self, k: int) -> None:
        """Begin a run on probation."""
        self._k = k
        self._pause = self._first_pause
        self._paused = 0
        self._probation()

    def budget(self) -> int:
        """Tokens to draft in the next round: none in a pause, few on probation, else k."""
        return 0 if self._paused else min(self._allowed, self._k)

    def observe(self, round_: Round) -> None:
        """Count the pause down, or see whether the drafts are still good enough."""
        if self._paused:
            self._paused -= 1
            return
        if not round_.k and not round_.riders:
            return
        # A pass that only carried lookahead's window cost rows and gave nothing: a draft that failed.
        self._recent.append((round_.accepted, round_.longest or 1))
        while len(self._recent) > 1 and sum(size for _, size in self._recent) - self._recent[0][1] >= self._window:
            self._recent.popleft()
        proposed = sum(size for _, size in self._recent)
        share = sum(accepted for accepted, _ in self._recent) / proposed
        if share < self._threshold and (self._on_probation or proposed >= self._window):
            self._paused = self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._probation()
        elif self._on_probation and round_.k and refused(round_) is None:
            if self._allowed >= self._k:
                self._on_probation = False
                self._pause = self._first_pause
            self._allowed = min(2 * self._allowed, self._k)

    def _probation(self) -> None:
        self._on_probation = True
        self._allowed = 1
        self._recent.clear()


class Adaptive:
    """Drafts as many tokens as are predicted to give the most tokens per second.

    The prediction: expected tokens, from the running acceptance by position, over the measured time of
    draft, pass and the rest. Where plain decoding is predicted to be faster nothing is drafted, with a
    retry after a pause; the pause doubles every time that a retry fails. Where the drafter says how sure it is
    of its tokens, the length is settled while it drafts.

    Tokens over seconds of the one round is the right thing to maximise: what is easy to draft comes in
    passages of the text, and a passage takes least time when every round within it is fastest.
    """

    def __init__(self, options: Mapping[str, Value], costs: Costs | None = None) -> None:
        self._costs = costs or Costs()
        self._first_pause = int(options["retry"])
        self.start(1)

    def start(self, k: int) -> None:
        """Begin a run: k is the longest draft."""
        self._longest = k
        self._acceptance = Acceptance()
        self._drafter = ""
        self._extra = 0.0
        self._off = False
        self._paused = 0
        self._pause = self._first_pause
        self.proceed: GoOn | None = None  # whether some number of further tokens is worth its time
        self._asks: bool | None = None  # whether the drafter asks, token by token; None until it has drafted
        self._times: list[float] = []
        self._retried = 0  # tokens that the retry asks for

    def budget(self) -> int:
        """Tokens to draft in the next round."""
        if self._paused:
            return 0
        times = self._times = self._costs.rounds_s(self._drafter, self._longest, self._extra)
        best, speed = fastest(self._acceptance.reaches(self._longest), times)
        asked = self._asks is not False  # all of our drafters ask; one that does not drafts long once
        self.proceed = GoOn(self._acceptance, times, speed)
        if self._off:
            self._retried = best  # the retry, with the least bad length
            return best
        if speed * times[0] > 1:
            return self._longest if asked else best
        self._off, self._paused = True, self._pause
        return 0

    def observe(self, round_: Round) -> None:
        """Learn from a finished round."""
        if self._paused:
            self._paused -= 1
            self._acceptance.fade(PAUSE_FADES)
            return
        if round_.rows > 1:
            self._extra += (round_.rows - 1 - round_.longest - self._extra) / 2
        if round_.k:
            self._asks = self.proceed is not None and self.proceed.asked
            self._drafter = round_.drafter
            learn_round(self._acceptance, round_)
        elif round_.riders:
            self._acceptance.learn(None, False)  # lookahead's window cost rows, and it had no guess
        else:
            return
        if not self._off:
            return
        if (round_.accepted + 1) * self._times[0] > self._times[self._retried]:
            self._off, self._pause = False, self._first_pause
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._paused = self._pause


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy as the window and the command line offer it."""

    name: str
    label: str
    description: str
    make: Callable[[Mapping[str, Value], Costs], LengthPolicy]
    options: tuple[Option, ...] = ()
    default_k: int | None = None  # k where the user named none; None leaves it to method and engine
    needs_costs: bool = False  # asks for a calibration of the target's passes


def _retry(rounds: int) -> Option:
    return Option(
        "retry",
        rounds,
        "Rounds without a draft before the first retry; each retry that fails doubles them.",
        1,
        LONGEST_PAUSE,
        label="retry after",
    )


POLICIES: dict[str, PolicyInfo] = {
    info.name: info
    for info in (
        PolicyInfo("constant", "constant", "Every round drafts k tokens, where the method finds that many.", Constant),
        PolicyInfo(
            "heuristic",
            "heuristic",
            "Starts at k; 2 more after a fully accepted draft, 1 fewer otherwise, as transformers does.",
            Heuristic,
        ),
        PolicyInfo(
            "confidence",
            "confidence",
            "Drafts up to k tokens, and stops after one that the drafter gives less than the threshold.",
            Confidence,
            (
                Option(
                    "threshold",
                    0.4,
                    "Drafter's probability of its own token below which the draft ends; transformers calls "
                    "it assistant_confidence_threshold (0.4), llama.cpp --draft-p-min.",
                    0.0,
                    1.0,
                    label="confidence",
                ),
            ),
        ),
        PolicyInfo(
            "adaptive",
            "adaptive",
            "Drafts as many tokens (up to k) as give the most tokens per second by what this text's drafts and "
            "this machine's passes have shown; none where plain decoding is faster.",
            Adaptive,
            (_retry(4),),
            default_k=16,
            needs_costs=True,
        ),
        PolicyInfo(
            "off-below",
            "off below",
            "Drafts k tokens while enough of them are accepted, else none, with a short retry later: a method "
            "with nothing to say costs next to nothing.",
            OffBelow,
            (
                Option(
                    "threshold",
                    0.4,
                    "Accepted of the drafted tokens (the acceptance rate of vLLM and llama.cpp) below which drafting stops; "
                    "SGLang's and transformers' lengths adapt, and never stop.",
                    0.0,
                    1.0,
                    label="acceptance",
                ),
                Option(
                    "window", 32, "Latest drafted tokens that the share is taken over.", 1, 4096, label="window"
                ),
                _retry(8),
            ),
        ),
    )
}
