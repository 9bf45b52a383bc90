"""Any causal language model of transformers as a Runner: its own forward over our cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from specview.engines.output_step import OutputStep, output_step
from specview.engines.session import require_features
from specview.engines.transformers_cache import PreallocatedCache
from specview.engines.transformers_linear import Linear, kept_bytes, mostly_halves
from specview.engines.transformers_llama_shape import UNTIED
from specview.engines.transformers_session import CHECK_BLOCK
from specview.engines.tree import Tree

_WINDOW_KEYS = frozenset({"sliding_window", "use_sliding_window", "max_window_layers"})


class ModuleRunner:
    """Runs a transformers model (a PreTrainedModel with a language-model head)."""

    exit_layers = 0

    def __init__(self, model: Any, *, check_mode: bool = False, strange: str | None = None) -> None:
        """strange says why our own forward of Llama shapes does not compute the model."""
        own = "only Llama, Mistral and Qwen2 shapes can be left early"
        self.exit_problem = f"its forward pass runs as a whole ({own}{f', and {strange}' if strange else ''})"
        self._model = model
        self._config = model.config
        self._block = CHECK_BLOCK if check_mode else 1
        self.device: torch.device = model.device
        names = inspect.signature(model.forward).parameters
        # transformers 5.2x renamed the argument; remote code keeps the old name.
        self._cache_word = "cache" if "cache" in names else "past_key_values"
        self._skips_head = "logits_to_keep" in names
        self.layers = int(getattr(self._decoder_config(), "num_hidden_layers", 0))
        self.hidden_size = int(getattr(self._decoder_config(), "hidden_size", 0))
        self._raw: list[torch.Tensor] = []  # what the last layer gave, where it is watched
        self._embedding_scale: float | None = None
        self._output_step: OutputStep | None = None
        self.vocab_size = 0
        self.weight_bytes = self.product_bytes = 0  # where layers were packed: all that is kept, and what a pass reads
        self.keeps_halves = False
        self.weights_note = UNTIED if _untied(model) else ""
        self._takes_positions = "position_ids" in names

    def take_products(self, products: Sequence[Linear]) -> None:
        """Learn with which products the model's linear layers were replaced."""
        self.weight_bytes = kept_bytes(self._model, products)
        self.product_bytes = sum(product.read_bytes for product in products)
        self.keeps_halves = mostly_halves(products)

    def new_cache(self, max_length: int) -> PreallocatedCache:
        """Make an empty cache for up to max_length tokens.

        Raises ValueError where the model's state is not keys and values.
        """
        return PreallocatedCache(self._config, max_length, self._block)

    @torch.no_grad()
    def run(
        self,
        tokens: Sequence[int],
        start: int,
        cache: Any,
        *,
        logits: bool,
        features: Sequence[Any] = (),
        tree: Tree | None = None,
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; see Runner.run."""
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.device)
        arguments: dict[str, Any] = {"input_ids": ids, self._cache_word: cache, "use_cache": True}
        if tree is not None:
            arguments["position_ids"] = start + torch.tensor([tree.depths], device=self.device)
            arguments["attention_mask"] = self._masks(start, tree, cache.visible(start + len(tokens)))
        if not logits and self._skips_head:
            arguments["logits_to_keep"] = 1
        if features:
            arguments["output_hidden_states"] = True
        watch = self._watch_last_layer() if self.layers in features else None
        try:
            output = self._model(**arguments)
        finally:
            if watch is not None:
                watch.remove()
        layers = {layer: self._feature(output.hidden_states, layer) for layer in features}
        self._raw.clear()
        return (output.logits[0].float() if logits else None), layers

    @torch.no_grad()
    def run_batch(self, tokens: Sequence[Sequence[int]], start: int, cache: Any) -> torch.Tensor:
        """Run n tokens of each of the cache's sequences, after the `start` that each has: logits [B, n, vocab]."""
        ids = torch.tensor([list(row) for row in tokens], dtype=torch.long, device=self.device)
        logits: torch.Tensor = self._model(**{"input_ids": ids, self._cache_word: cache, "use_cache": True}).logits
        return logits.float()

    @property
    def product_weights(self) -> int:
        """Weights that every row is multiplied by, the output head's among them."""
        found = 0
        for module in self._model.modules():
            sizes = [getattr(module, name, None) for name in ("in_features", "out_features", "nx", "nf")]
            numbers = [size for size in sizes if isinstance(size, int)]
            found += numbers[0] * numbers[1] if len(numbers) == 2 else 0
        return found

    def _masks(self, start: int, tree: Tree, visible: int) -> Any:
        """What is added to attention scores, [1, 1, n, visible]: 0 where a row may look, else the least number.

        transformers takes such a mask as it is; a dictionary of them by the kind of layer where a model
        has several kinds. A sliding window counts positions, which in a tree are depths.
        """
        window = self._window()
        rows = len(tree)
        sees = torch.zeros(rows, visible, dtype=torch.bool)
        sees[:, :start] = True
        sees[:, start : start + rows] = torch.from_numpy(tree.sees)

        def added(allowed: torch.Tensor) -> torch.Tensor:
            dtype = self._model.dtype
            mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
            return mask.to(self.device)[None, None]

        kinds = self._layer_kinds()
        masks = {}
        if "full_attention" in kinds:
            masks["full_attention"] = added(sees)
        if "sliding_attention" in kinds:
            assert window is not None
            depths = start + torch.tensor(tree.depths)
            positions = torch.arange(visible)
            positions[start : start + rows] = depths
            masks["sliding_attention"] = added(sees & (depths[:, None] - positions < window))
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _decoder_config(self) -> Any:
        return self._config.get_text_config(decoder=True)

    def _window(self) -> int | None:
        window = getattr(self._decoder_config(), "sliding_window", None)
        return window if isinstance(window, int) else None

    def _layer_kinds(self) -> frozenset[str]:
        """The kinds of attention that the model's layers have."""
        kinds = getattr(self._decoder_config(), "layer_types", None)
        if kinds:
            return frozenset(kinds)
        return frozenset({"full_attention" if self._window() is None else "sliding_attention"})

    @cached_property
    def tree_problem(self) -> str | None:
        """Why a pass of this model cannot verify a tree, or None; found by trying, once."""
        config = self._decoder_config().to_dict()
        if not self._takes_positions:
            return "its forward takes no positions"
        strange = self._layer_kinds() - {"full_attention", "sliding_attention"}
        strange |= {key for key in config if "window" in key and config[key] and key not in _WINDOW_KEYS}
        if "sliding_attention" in self._layer_kinds() and self._window() is None:
            strange |= {"sliding_attention"}
        if strange:
            return f"how its attention is limited ({', '.join(sorted(strange))}) is not known here"
        # A chain and a branch beside it, after two tokens; each path against a plain pass of it.
        tree = Tree((-1, 0, -1, 2, 3))
        try:
            cache = self.new_cache(16)
            self.run((0, 1), 0, cache, logits=False)
            got, _ = self.run((2, 3, 4, 5, 6), 2, cache, logits=True, tree=tree)
            cache.truncate(2)
            one, _ = self.run((2, 3), 2, cache, logits=True)
            cache.truncate(2)
            other, _ = self.run((4, 5, 6), 2, cache, logits=True)
            assert got is not None and one is not None and other is not None
        except Exception:  # noqa: BLE001 - a model may fail in any way; trees are then refused
            return "its forward takes no mask that says which token sees which"
        if not agree(got, torch.cat([one, other]), self._model.dtype):
            return "its forward does not follow a mask that says which token sees which"
        return None

    def _feature(self, hidden_states: Sequence[torch.Tensor], layer: Any) -> torch.Tensor:
        # hidden_states[n] is what layer n reads; the last one has gone through the final norm.
        if layer == "last":
            return hidden_states[-1][0]
        return self._raw[0][0] if layer == self.layers else hidden_states[layer][0]

    def _watch_last_layer(self) -> Any:
        """Keep what the last layer gives in the next pass; the handle returned ends it."""

        def keep(_module: Any, _given: Any, output: Any) -> None:
            self._raw.append(output[0] if isinstance(output, tuple) else output)

        self._raw.clear()
        return self._last_layer.register_forward_hook(keep)

    @cached_property
    def _last_layer(self) -> Any:
        """The last of the model's list of `layers` layers."""
        modules = self._model.base_model.modules()
        return next(one for one in modules if isinstance(one, torch.nn.ModuleList) and len(one) == self.layers)[-1]

    @cached_property
    def features_problem(self) -> str | None:
        """Why passes of this model give no features, or None; found by trying, once."""
        problem = "transformers' own forward of it gives no hidden states by layer"
        if not self.layers or not self.hidden_size:
            return problem
        names = (*range(self.layers + 1), "last")
        try:
            logits, found = self.run((0, 1, 2), 0, self.new_cache(16), logits=True, features=names)
        except Exception:  # noqa: BLE001 - a model may fail in any way; features are then refused
            return problem
        finally:
            self._raw.clear()
        if any(tuple(rows.shape) != (3, self.hidden_size) for rows in found.values()):
            return problem
        assert logits is not None
        try:
            return self._try_ends(found, logits)
        except Exception:  # noqa: BLE001 - as above
            return "its embedding or output head is none that can be used alone"

    def _try_ends(self, found: dict[Any, torch.Tensor], logits: torch.Tensor) -> str | None:
        """Learn the scale of its embedding and what follows its head, from a pass of tokens 0, 1, 2."""
        rows, given = self._model.get_input_embeddings()(torch.arange(3, device=self.device)), found[0]
        # Some models multiply the embedding in their forward; others add positions, which stay outside.
        scale = float((rows * given).sum() / (rows * rows).sum())
        close = 0.02 * float(given.abs().max())
        self._embedding_scale = scale if float((rows * scale - given).abs().max()) <= close else 1.0
        if abs(self._embedding_scale - 1.0) < 0.005:
            self._embedding_scale = 1.0
        config = self._decoder_config()
        scales = [getattr(config, name, None) for name in ("logit_scale", "logits_scaling", "lm_head_multiplier")]
        caps = [getattr(config, name, None) for name in ("final_logit_softcapping",)]
        products = self._model.get_output_embeddings()(found["last"]).float()
        self._output_step = output_step(
            products.cpu().numpy(),
            logits.cpu().numpy(),
            [float(value) for value in scales if isinstance(value, (int, float))],
            [float(value) for value in caps if isinstance(value, (int, float))],
        )
        if self._output_step is None:
            return "its logits do not follow from its output head and the last hidden state"
        return None

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """The embedding's rows of some ids, [n, hidden], as the first layer gets them, positions apart."""
        self._require_features()
        with torch.no_grad():
            rows = self._model.get_input_embeddings()(torch.tensor(ids, device=self.device))
            return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float logits [n, vocab] of the head alone, of normed hidden states [n, hidden]."""
        self._require_features()
        with torch.no_grad():
            products = self._model.get_output_embeddings()(hidden.to(self.device, self._model.dtype)).float()
            return self._output_step(products) if self._output_step is not None else products

    def _require_features(self) -> None:
        require_features((0,), self.layers, self.features_problem)

    def trial(self) -> torch.Tensor:
        """Run three tokens, roll two back and run them again: finds a state that our cache does not hold.

        Sets vocab_size and returns the logits [3, vocab]. Raises ValueError where the second run's differ.
        """
        cache = self.new_cache(16)
        first, _ = self.run((0, 1, 2), 0, cache, logits=True)
        cache.truncate(1)
        again, _ = self.run((1, 2), 1, cache, logits=True)
        assert first is not None and again is not None
        self.vocab_size = int(first.shape[-1])
        if not bool(torch.isfinite(first).all()):
            raise ValueError("its logits are not finite")
        if cache.get_seq_length() != 3 or not agree(again, first[1:], self._model.dtype):
            raise ValueError("its forward pass keeps a state beside the keys and values")
        return first

    def close(self) -> None:
        """Free the weights."""
        self._model = None


def _untied(model: Any) -> bool:
    """Whether the configuration ties the output head to the embedding, and the files hold another."""
    if not getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False):
        return False
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return getattr(head, "weight", None) is not getattr(embedding, "weight", None)


def agree(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether logits are equal but for what rounding in `dtype` may do."""
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    return float((got - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))
