"""IBM's MLP speculator (Wertheimer et al. 2024, arXiv 2404.19124) and Arctic's LSTM one, as torch modules.

Step i reads the state s (at first the target's hidden state that its output reads) and the token x chosen last:

    s = gelu(ln_i(proj_i s + (e / w) emb_i[x])),   logits = head_i s
    w = 0.5 ** (0.5 / predicts),   e = sqrt((1 - w * w) * inner / 2)

ln is a root-mean-square norm (epsilon 1e-6) with gain and bias. With scale_input the first s is itself so normed,
without gain, and divided by sqrt 2. Arctic's `sum_lstm` keeps a cell c beside s, c = 0 at first:

    a_k = proj_k s + (e / w) emb_k[x]     for k = forget, input, output, cell
    c = sigmoid(a_forget) * c + sigmoid(a_input) * gelu(cell_ln(a_cell)),   s = sigmoid(a_output) * gelu(state_ln(c))

The parameters' names are the published ones without `speculator.`, so that a state dict is a checkpoint; where
weights are tied every step has its name, and a checkpoint may leave all but the first out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-6
GATES = ("forget", "input", "output", "cell")


@dataclass(frozen=True, slots=True)
class MlpSpeculatorShape:
    """Sizes and switches of a speculator.

    hidden is the target's (emb_dim in config.json; Arctic: input_hidden_dim), inner the state's (0: hidden), predicts
    the number of steps (n_predict). lstm asks for Arctic's `sum_lstm`, whose weights are always tied.
    """

    hidden: int
    inner: int
    predicts: int
    vocab: int
    tie_weights: bool = False
    scale_input: bool = False
    lstm: bool = False

    @property
    def width(self) -> int:
        """Numbers of a state after the first step."""
        return self.inner or self.hidden

    @property
    def token_weight(self) -> float:
        """What an embedding counts for beside the state: e / w."""
        state = 0.5 ** (0.5 / self.predicts)
        return math.sqrt((1 - state * state) * self.width / 2) / state


@dataclass(frozen=True, slots=True)
class SpeculatorState:
    """What one step hands to the next: the state [n, width], and the LSTM's cell [n, width]."""

    s: Tensor
    cell: Tensor | None = None


class _Norm(nn.Module):
    """Root-mean-square norm with gain and bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, EPSILON) + self.bias


class MlpSpeculator(nn.Module):
    """A speculator of `predicts` steps."""

    def __init__(self, shape: MlpSpeculatorShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.lstm:
            self._make_lstm()
        else:
            self._make_mlp()
        self.register_load_state_dict_pre_hook(_fill_in_tied)

    def _make_mlp(self) -> None:
        shape, width = self.shape, self.shape.width
        tied = shape.tie_weights
        self.emb = _steps(lambda _: nn.Embedding(shape.vocab, width), shape.predicts, tied)
        self.head = _steps(lambda _: nn.Linear(width, shape.vocab, bias=False), shape.predicts, tied)
        self.ln = _steps(lambda _: _Norm(width), shape.predicts, tied)
        first = nn.Linear(shape.hidden, width, bias=False)
        later = _steps(lambda _: nn.Linear(width, width, bias=False), shape.predicts - 1, tied)
        self.proj = nn.ModuleList([first, *later])

    def _make_lstm(self) -> None:
        shape, width = self.shape, self.shape.width
        for gate in GATES:
            first = nn.Linear(shape.hidden, width, bias=False)
            later = nn.Linear(width, width, bias=False)
            setattr(self, f"{gate}_emb", nn.ModuleList([nn.Embedding(shape.vocab, width)]))
            setattr(self, f"{gate}_proj", nn.ModuleList([first, later][: shape.predicts]))
        self.cell_ln = nn.ModuleList([_Norm(width)])
        self.state_ln = nn.ModuleList([_Norm(width)])
        self.head = _steps(lambda _: nn.Linear(width, shape.vocab, bias=False), shape.predicts, True)

    def begin(self, hidden: Tensor) -> SpeculatorState:
        """The state before the first step, from the target's hidden states [n, hidden]."""
        if self.shape.scale_input:
            hidden = functional.rms_norm(hidden, hidden.shape[-1:], None, EPSILON) / math.sqrt(2)
        return SpeculatorState(hidden)

    def step(
        self, index: int, state: SpeculatorState, tokens: Sequence[int] | Tensor
    ) -> tuple[SpeculatorState, Tensor]:
        """Feed the tokens [n] chosen last to step `index`; give the next state and logits [n, vocab]."""
        ids = torch.as_tensor(tokens, device=state.s.device)
        if self.shape.lstm:
            state = self._lstm_step(index, state, ids)
        else:
            mixed = self.proj[index](state.s) + self.shape.token_weight * self.emb[index](ids)
            state = SpeculatorState(functional.gelu(self.ln[index](mixed)))
        rows: Tensor = self.head[index](state.s)
        return state, rows

    def _lstm_step(self, index: int, state: SpeculatorState, tokens: Tensor) -> SpeculatorState:
        place = min(index, 1)
        forget, enter, leave, cell = (
            getattr(self, f"{gate}_proj")[place](state.s)
            + self.shape.token_weight * getattr(self, f"{gate}_emb")[0](tokens)
            for gate in GATES
        )
        fresh = torch.sigmoid(enter) * functional.gelu(self.cell_ln[0](cell))
        kept = fresh if state.cell is None else torch.sigmoid(forget) * state.cell + fresh
        return SpeculatorState(torch.sigmoid(leave) * functional.gelu(self.state_ln[0](kept)), kept)


def _steps(make: Any, count: int, tied: bool) -> nn.ModuleList:
    """One module a step; the same one each time where they are tied."""
    if not tied:
        return nn.ModuleList(make(index) for index in range(count))
    return nn.ModuleList([make(0)] * count) if count else nn.ModuleList()


_INDEXED = re.compile(r"(emb|head|ln|proj)\.(\d+)\.(weight|bias)")


def _fill_in_tied(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Give the later steps of tied weights their tensors, where a checkpoint leaves them out."""
    assert isinstance(module, MlpSpeculator)
    if not (module.shape.tie_weights or module.shape.lstm):
        return
    for name, _ in module.named_parameters(remove_duplicate=False):
        found = _INDEXED.fullmatch(name)
        if found is None or prefix + name in state:
            continue
        first = 1 if found[1] == "proj" else 0
        source = f"{prefix}{found[1]}.{first}.{found[3]}"
        if int(found[2]) > first and source in state:
            state[prefix + name] = state[source]
