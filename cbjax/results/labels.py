"""What a run is called: `variant, setting=value, …, seed=0`, and its parts."""

from collections.abc import Iterator

SEED, VARIANT = "seed", "variant"


def _parts(label: str) -> Iterator[tuple[str, str, str]]:
    """Each part, the setting it names ("" in a variant's name), and the value."""
    for part in label.split(", "):
        name, equals, value = part.partition("=")
        yield (part, name, value) if equals else (part, "", part)


def parts_of(label: str) -> dict[str, str]:
    """The settings that a label names, without the seed; `variant` is what has no name."""
    parts: dict[str, str] = {}
    for _, name, value in _parts(label):
        if not name:
            parts[VARIANT] = ", ".join(filter(None, (parts.get(VARIANT), value)))
        elif name != SEED:
            parts[name] = value
    return parts


def short_label(label: str, *settings: str) -> str:
    """A label without some settings, whether it names them in full or by their last part."""
    taken = {name for one in settings for name in (one, one.rpartition(".")[2])}
    return ", ".join(part for part, name, _ in _parts(label) if name not in taken)
