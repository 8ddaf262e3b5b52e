"""What to type to get a setting of a study from the server that it stands for."""

from collections.abc import Iterator

from cbjax.config import Cell
from cbjax.experiment.study import StudyResult
from cbjax.flags import FlagsError, Server, Settings, to_flags
from cbjax.report import capacities
from cbjax.results import read_capacity


def command_lines(result: StudyResult, most: int) -> Iterator[str]:
    """Command lines of the settings with the greatest capacities.

    Args:
        result: of a study with a search.
        most: of how many settings.
    """
    ranked = capacities(read_capacity(result.folder)).sort(
        "capacity", descending=True, maintain_order=True
    )
    cells = {cell.label: cell for cell in result.experiment.cells}
    for label in ranked["label"].to_list()[:most]:
        yield f"{label}: {_command_line(cells[label])}"


def _command_line(cell: Cell) -> str:
    config = cell.config
    knobs = {name: value for name, value in config.policy.items() if name != "name"}
    settings = Settings(
        model=config.model.source, block_size=config.kv.block_size,
        num_blocks=config.kv.num_blocks, memory_fraction=config.kv.memory_fraction,
        max_length=config.model.max_length,
    )
    try:
        return to_flags(Server(config.policy["name"], knobs, settings))
    except FlagsError as error:
        return f"no command line ({error})"
