"""Where the YAML files are: top level in a checkout, inside the package in a wheel."""

from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def config_dir() -> Path:
    """The folder that holds `config.yaml` and its groups, absolute.

    Raises:
        FileNotFoundError: the package was copied without its configs.
    """
    places = [_PACKAGE.parent / "configs", _PACKAGE / "configs"]
    for place in places:
        if (place / "config.yaml").is_file():
            return place
    raise FileNotFoundError(
        f"no config.yaml in {' or '.join(map(str, places))}: install cbjax with pip, or run it "
        "from its repository"
    )


def group_choices(group: str) -> dict[str, str]:
    """The YAML files of a group: name -> its first comment line."""
    files = sorted((config_dir() / group).glob("*.yaml"))
    return {file.stem: _first_comment(file) for file in files}


def module_names(package: str) -> list[str]:
    """Modules of a package by their file names, without importing it (JAX stays out)."""
    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = [file for folder in folders for file in Path(folder).glob("*.py")]
    return sorted(file.stem for file in files if not file.stem.startswith("_"))


def _first_comment(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("#").strip()
        if not line.startswith("#"):
            break
        if text and not text.startswith("@package"):
            return text
    return ""
