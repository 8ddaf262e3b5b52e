"""Loading a model by the name that a user gives."""

from dataclasses import dataclass, field

from cbjax.models.config import ModelConfig
from cbjax.models.decoder import Weights
from cbjax.models.tiny import TINY_SOURCES, tiny_config, tiny_tokenizer, tiny_weights
from cbjax.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve."""

    config: ModelConfig
    weights: Weights = field(repr=False)
    tokenizer: Tokenizer
    source_digest: str  # names the weights: same digest, same numbers before rounding to dtype


def load_model(source: str, dtype: str = "float32") -> LoadedModel:
    """Load a model, converting it the first time.

    Args:
        source: "tiny", "tiny-qwen2", ... (random weights).
        dtype: "float32" or "bfloat16", of the matrices.

    Raises:
        ValueError: an unknown source or dtype.
    """
    if source in TINY_SOURCES:
        config = tiny_config(source)
        return LoadedModel(config, tiny_weights(config, dtype), tiny_tokenizer(config), source)
    raise ValueError(f"source: {source!r} is unknown; built in are {', '.join(TINY_SOURCES)}")
