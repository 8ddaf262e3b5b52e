"""Models are loaded once per study."""

from typing import Any

from cbjax.config import RunConfig
from cbjax.experiment.backends import Progress
from cbjax.models import load_model
from cbjax.models.load import LoadedModel


def loaded(config: RunConfig, shared: dict[str, Any], progress: Progress | None) -> LoadedModel:
    """The config's model, from an earlier cell of the study if one has loaded it."""
    name = f"{config.model.source}, {config.model.dtype}"
    if name not in shared:
        if progress:
            progress(f"loading {config.model.source}", 0, 1)
        shared[name] = load_model(config.model.source, config.model.dtype)
    return shared[name]
