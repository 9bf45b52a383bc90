"""Next-token-prediction modules that ship inside a target's own checkpoint, as a torch module.

DeepSeek-V3 (arXiv 2412.19437, section 2.2), GLM-4.5, Qwen3-Next and Qwen3.5, MiMo. Module k reads, for the token x at
position p, what module k - 1 gave for position p - 1 (module 0: the target's hidden state there, after its final norm):

    u = eh_proj([enorm(E(x)); hnorm(h)]),   z = norm(layer(u)),   logits = the target's output of z

and predicts the token at p + 1. Each module has keys and values of its own, from position k + 1 on. Embedding
and output are the target's. The layer is the target's own kind, by transformers' class for it: a full-attention one.
transformers' own `modeling_layers.MtpModel` is the same computation for the few models whose config has
num_mtp_layers, but it loads only the published sizes and chooses the tokens itself.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specview.heads.loaded import LoadedHead

Layout = Literal["deepseek", "qwen", "mimo"]
"""How the checkpoint names its modules; see layout_mtp.py."""

_LONGEST = 1 << 30  # tokens: a module's cache grows as it is filled
_LAYER_OF = {"mimo": "qwen2"}  # model types that transformers does not know, by whose layer they have

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True, slots=True)
class MtpShape:
    """Sizes and switches of a target's modules; config is the target's config.json."""

    hidden: int
    modules: int
    layout: Layout
    eps: float = 1e-6
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hidden_first(self) -> bool:
        """Whether the hidden state stands before the embedding in what eh_proj reads (MiMo)."""
        return self.layout == "mimo"


def joined_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the experts of a layer in one, as transformers keeps them: [experts, out, in]."""
    state: dict[str, Tensor] = {}
    experts: dict[str, dict[str, dict[int, Tensor]]] = {}
    for name, tensor in tensors.items():
        if found := _EXPERT.fullmatch(name):
            experts.setdefault(found[1], {}).setdefault(found[3], {})[int(found[2])] = tensor
        else:
            state[name] = tensor
    for place, kinds in experts.items():
        gate, up, down = (
            torch.stack([kinds.get(kind, {})[index] for index in sorted(kinds.get(kind, {}))])
            for kind in ("gate", "up", "down")
        )
        state[f"{place}.gate_up_proj"] = torch.cat([gate, up], 1)
        state[f"{place}.down_proj"] = down
    return state


class MtpLayer(nn.Module):
    """One module; block is the target's kind of decoder layer."""

    def __init__(self, shape: MtpShape, block: nn.Module) -> None:
        super().__init__()
        norm: Any = type(block.input_layernorm)
        self.enorm = norm(shape.hidden, eps=shape.eps)
        self.hnorm = norm(shape.hidden, eps=shape.eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.block = block
        self.norm = norm(shape.hidden, eps=shape.eps)
        self._hidden_first = shape.hidden_first
        names = inspect.signature(block.forward).parameters
        # transformers 5.2x renamed the argument.
        self._cache_word = "cache" if "cache" in names else "past_key_values"

    def forward(self, embedded: Tensor, hidden: Tensor, cache: Any, **arguments: Any) -> Tensor:
        """z [n, hidden] of embedded tokens and hidden states [n, hidden]; arguments go to the layer."""
        parts = [self.enorm(embedded), self.hnorm(hidden)]
        u = self.eh_proj(torch.cat(parts[::-1] if self._hidden_first else parts, -1))
        found = self.block(u[None], **{self._cache_word: cache}, **arguments)
        out: Tensor = self.norm((found[0] if isinstance(found, tuple) else found)[0])
        return out


class MtpModules(nn.Module):
    """All modules of one target."""

    def __init__(self, shape: MtpShape) -> None:
        super().__init__()
        self.shape = shape
        base = _base_model(shape)
        self.layers = nn.ModuleList(MtpLayer(shape, block) for block in base.layers)
        self._rotary_of = type(base.rotary_emb), base.config
        self._rotary: dict[torch.device, Any] = {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights by the names of layout_mtp.module_names.

        Raises RuntimeError, which names them, where some are missing or have another shape.
        """
        self.load_state_dict(joined_experts(tensors), strict=True, assign=True)

    def new_cache(self) -> list[Any]:
        """Empty caches, one for each module; the first entry of each is a position further."""
        from specview.engines.transformers_cache import PreallocatedLayer

        return [PreallocatedLayer(_LONGEST, first=index + 1) for index in range(self.shape.modules)]

    def new_run(self, head: LoadedHead, max_length: int) -> MtpRun:
        """A sequence's state, of up to max_length tokens."""
        return MtpRun(head)

    def run(self, index: int, embedded: Tensor, hidden: Tensor, cache: Any) -> Tensor:
        """Feed module `index` the tokens after its cache's end: embedded and hidden [n, hidden]; gives z [n, hidden]."""
        rows = len(embedded)
        begin = cache.length
        positions = torch.arange(begin, begin + rows, device=embedded.device)[None] + cache.first
        mask = None
        if rows > 1:  # what is added to the scores
            mask = embedded.new_full((rows, begin + rows), torch.finfo(embedded.dtype).min)
            mask = mask.triu(begin + 1)[None, None]
        out: Tensor = self.layers[index](
            embedded,
            hidden,
            cache,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self._turns(embedded, positions),
        )
        return out

    def _turns(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, by the target's own rotary embedding."""
        rotary = self._rotary.get(like.device)
        if rotary is None:
            kind, config = self._rotary_of
            rotary = self._rotary[like.device] = kind(config=config).to(like.device)
        cos, sin = rotary(like[None], positions)
        return cos, sin


def _base_model(shape: MtpShape) -> Any:
    """A model of transformers with one full-attention layer of the target's kind for each module, and no vocabulary."""
    from transformers import CONFIG_MAPPING, AutoModel

    given = dict(shape.config)
    kind = str(given.pop("model_type", ""))
    kind = _LAYER_OF.get(kind, kind)
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"transformers does not know the layers of {kind!r}")
    for key in ("auto_map", "quantization_config", "architectures"):
        given.pop(key, None)
    config = copy.deepcopy(CONFIG_MAPPING[kind].from_dict(given).get_text_config(decoder=True))
    config.num_hidden_layers = shape.modules
    # Where a model has several kinds of layers, a module is a sparse one with full attention.
    for key, value in {"layer_types": "full_attention", "mlp_layer_types": "sparse"}.items():
        if getattr(config, key, None) is not None:
            setattr(config, key, [value] * shape.modules)
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id = 1, None, None, None
    return AutoModel.from_config(config, attn_implementation="sdpa")


class MtpRun:
    """One sequence through a target's modules: what each still has to read, its cache, and the rows of a draft.

    known is the number of positions whose target features have come. A module reads the token at a position with
    what stands before it for the position before: the target's hidden state, or the module's before it. Modules that
    a short draft did not come to catch up when they next draft.
    """

    def __init__(self, head: LoadedHead, caches: Sequence[Any] = ()) -> None:
        """caches are empty ones, one for each module: the modules' own where none are given."""
        self.known = 0
        self._head = head
        self._modules: Any = head.module
        self._caches: Sequence[Any] = caches or self._modules.new_cache()
        count = len(self._caches)
        empty = torch.empty(0, self._modules.shape.hidden, device=head.device, dtype=head.dtype)
        self._waiting = [empty] * count  # per module hidden rows, for the positions from `_begins` on
        self._begins = [cache.first for cache in self._caches]
        self._tokens: list[int] = []  # the context and the draft, while drafting
        self._context = 0
        self._steps = 0
        self._z = empty  # the newest output [1, hidden]

    @torch.inference_mode()
    def add(self, hidden: Any) -> None:
        """Take the target's hidden states [n, hidden] of the next positions."""
        rows = self._head.tensor(hidden)
        self._waiting[0] = torch.cat([self._waiting[0], rows])  # a copy: an engine may reuse its buffers
        self.known += len(rows)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> None:
        """Feed what waits, but for the newest row, where a draft begins; tokens is the context."""
        for index in range(len(self._caches)):
            begin = self._begins[index]
            fed = tokens[begin : begin + len(self._waiting[index]) - (index == 0)]
            if fed:
                self._feed(index, fed)
                self._forget(index, len(fed))

    @torch.inference_mode()
    def first(self, context: Sequence[int]) -> Tensor:
        """Logits [1, vocab] of what follows the context, whose positions but the last one are known."""
        self._tokens, self._context, self._steps = list(context), len(context), 0
        return self._step()

    @torch.inference_mode()
    def step(self, token: int) -> Tensor:
        """Logits [1, vocab] of what follows a drafted token: the next module's, of the last one's own output then."""
        self._tokens.append(token)
        return self._step()

    def end(self) -> None:
        """Forget the draft's rows, and keep what of them holds for the context."""
        for index, cache in enumerate(self._caches):
            true = max(0, self._context - cache.first)
            if cache.length > true:
                cache.truncate(true)
            done = cache.first + cache.length - self._begins[index]
            # The row of the next token waits too, where the module before has read the context.
            self._waiting[index] = self._waiting[index][: max(0, self._context + 1 - self._begins[index])]
            self._forget(index, done)

    def close(self) -> None:
        """Free what is no tensor; here nothing."""

    def _step(self) -> Tensor:
        index = min(self._steps, len(self._caches) - 1)
        if self._steps == index:
            z = self._feed(index, self._tokens[self._begins[index] :])
        else:
            z = self._run(index, self._tokens[-1:], self._z)
        self._z = z[-1:]
        self._steps += 1
        return self._outputs(self._z)

    def _feed(self, index: int, tokens: Sequence[int]) -> Tensor:
        """Feed a module its waiting rows with these tokens; what it gives waits for the next one."""
        z = self._run(index, tokens, self._waiting[index][: len(tokens)])
        if index + 1 < len(self._caches):
            self._waiting[index + 1] = torch.cat([self._waiting[index + 1], z])
        return z

    def _run(self, index: int, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        z: Tensor = self._modules.run(index, self._head.embed(tokens), hidden, self._caches[index])
        return z

    def _outputs(self, z: Tensor) -> Tensor:
        """Logits [1, vocab] of the newest output [1, hidden]."""
        return self._head.project(z)

    def _forget(self, index: int, count: int) -> None:
        """Let go of a module's first waiting rows, which it has read."""
        self._waiting[index] = self._waiting[index][count:]
        self._begins[index] += count
