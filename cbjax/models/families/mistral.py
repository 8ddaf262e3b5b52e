"""Mistral: as Llama, and its GGUF files say that they are Llama's."""

from cbjax.models.families._family import Family

FAMILY = Family(tiny={"tiny-mistral": {"sliding_window": None}})
