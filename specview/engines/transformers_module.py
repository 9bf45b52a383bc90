"""Any causal language model of transformers as a Runner: its own forward over our cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from specview.engines.transformers_cache import PreallocatedCache
from specview.engines.transformers_session import CHECK_BLOCK
from specview.errors import SpecviewError


class ModuleRunner:
    """Runs a transformers model (a PreTrainedModel with a language-model head)."""

    def __init__(self, model: Any, *, check_mode: bool = False) -> None:
        self._model = model
        self._config = model.config
        self._block = CHECK_BLOCK if check_mode else 1
        self.device: torch.device = model.device
        names = inspect.signature(model.forward).parameters
        # transformers 5.2x renamed the argument; remote code keeps the old name.
        self._cache_word = "cache" if "cache" in names else "past_key_values"
        self._skips_head = "logits_to_keep" in names
        self.layers = int(getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0))
        self.vocab_size = 0

    def new_cache(self, max_length: int) -> PreallocatedCache:
        """Make an empty cache for up to max_length tokens.

        Raises ValueError where the model's state is not keys and values.
        """
        return PreallocatedCache(self._config, max_length, self._block)

    @torch.no_grad()
    def run(
        self, tokens: Sequence[int], start: int, cache: Any, *, logits: bool, features: Sequence[Any] = ()
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; see Runner.run."""
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.device)
        arguments: dict[str, Any] = {"input_ids": ids, self._cache_word: cache, "use_cache": True}
        if not logits and self._skips_head:
            arguments["logits_to_keep"] = 1
        if features:
            arguments["output_hidden_states"] = True
        output = self._model(**arguments)
        layers = {layer: self._feature(output.hidden_states, layer) for layer in features}
        return (output.logits[0].float() if logits else None), layers

    def _feature(self, hidden_states: Sequence[torch.Tensor], layer: Any) -> torch.Tensor:
        # hidden_states[n] is what layer n reads; the last one has gone through the final norm.
        if layer == "last":
            return hidden_states[-1][0]
        if not isinstance(layer, int) or not 0 <= layer < len(hidden_states) - 1:
            raise SpecviewError(
                f"This model gives no features after layer {layer}.", "Choose an inner layer."
            )
        return hidden_states[layer][0]

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


def agree(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether logits are equal but for what rounding in `dtype` may do."""
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    return float((got - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))
