"""Models: one decoder, the loaders that fill it, and the tokenizers that feed it."""

from cbjax.models.config import ModelConfig, UnsupportedModelError
from cbjax.models.decoder import Weights, dense_logits, forward, weight_shapes
from cbjax.models.load import LoadedModel, load_model
from cbjax.models.tokenizer import Tokenizer

__all__ = [
    "LoadedModel",
    "ModelConfig",
    "Tokenizer",
    "UnsupportedModelError",
    "Weights",
    "dense_logits",
    "forward",
    "load_model",
    "weight_shapes",
]
