"""The shape of the package: arrows point down, heavy libraries stay at the edge, short files."""

import ast
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "cbjax").rglob("*.py"), *(ROOT / "pallas_kernels").rglob("*.py")])

# What each part may import of this project, itself aside.
BELOW = {
    "pallas_kernels": set(),
    "cbjax.cache": set(),
    "cbjax.machine": set(),
    "cbjax.core": set(),
    "cbjax.policies": {"cbjax.core"},
    "cbjax.flags": {"cbjax.policies"},
    "cbjax.parity": {"cbjax.core", "cbjax.policies"},
    "cbjax.models": {"cbjax.cache", "cbjax.core.batch", "pallas_kernels"},
    "cbjax.hardware": set(),
    "cbjax.workload": set(),
    "cbjax.metrics": set(),
    "cbjax.results": {"cbjax.machine", "cbjax.metrics"},
    "cbjax.capacity": {"cbjax.metrics"},
    "cbjax.report": {"cbjax.hardware", "cbjax.metrics", "cbjax.results"},
    "cbjax.collect": {"cbjax.metrics", "cbjax.report", "cbjax.results"},
    "cbjax.roofline": {"cbjax.config", "cbjax.hardware", "cbjax.report"},
    "cbjax.engine": {
        "cbjax.cache", "cbjax.core", "cbjax.machine", "cbjax.models", "cbjax.policies",
        "cbjax.metrics", "cbjax.workload", "pallas_kernels",
    },
    "cbjax.simulate": {
        "cbjax.core", "cbjax.hardware", "cbjax.machine", "cbjax.metrics", "cbjax.workload",
    },
    "cbjax.config": {
        "cbjax.core", "cbjax.policies", "cbjax.hardware", "cbjax.metrics", "cbjax.workload",
        "cbjax.results",
    },
    "cbjax.experiment": {
        "cbjax.cache", "cbjax.config", "cbjax.core", "cbjax.engine", "cbjax.machine",
        "cbjax.models", "cbjax.simulate", "cbjax.workload", "cbjax.metrics", "cbjax.results",
        "cbjax.report", "cbjax.capacity", "cbjax.flags", "cbjax.hardware",
    },
    "cbjax.tune": {
        "cbjax.config", "cbjax.core", "cbjax.engine", "cbjax.metrics", "cbjax.models",
        "cbjax.policies", "cbjax.workload",
    },
    "cbjax.run": {"cbjax.hardware", "cbjax.config", "cbjax.experiment", "cbjax.results"},
}
# Where a library may be imported; one that is not listed may be anywhere.
ONLY_IN = {
    "hydra": {"cbjax.config"},
    "omegaconf": {"cbjax.config"},
    "matplotlib": {"cbjax.report"},
    "rich": {"cbjax.report", "cbjax.run", "cbjax.parity", "cbjax.roofline", "cbjax.tune"},
    "polars": {
        "cbjax.metrics", "cbjax.results", "cbjax.report", "cbjax.experiment", "cbjax.roofline",
        "cbjax.collect", "cbjax.simulate", "cbjax.tune", "cbjax.workload",
    },
    "flax": {"cbjax.models"},
    "tokenizers": {"cbjax.models"},
    "orbax": {"cbjax.models"},
    "gguf": {"cbjax.models"},
    "safetensors": {"cbjax.models"},
    "jax": {
        "pallas_kernels", "cbjax.core", "cbjax.policies", "cbjax.models", "cbjax.engine",
        "cbjax.experiment", "cbjax.parity", "cbjax.simulate",
    },
}
MOST_LINES, MEDIAN_LINES = 400, 150


def part_of(module: str) -> str:
    """The part of the project a module belongs to, e.g. `cbjax.core`."""
    return ".".join(module.split(".")[: 1 if module.startswith("pallas_kernels") else 2])


def imported(path: Path) -> set[str]:
    """Every module a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module != "cbjax":
                found.add(node.module)
            else:
                parts = {name.name for name in node.names} - {"__version__"}
                found |= {f"cbjax.{name}" for name in parts}
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_of(path))
def test_imports_point_down(path):
    part = part_of(module_of(path))
    if part == "cbjax":
        return  # the public names lead everywhere, on first use
    assert part in BELOW, f"{part} is new: say in BELOW what it may import"
    for name in imported(path):
        if name.split(".")[0] in ("cbjax", "pallas_kernels") and part_of(name) != part:
            allowed = any(f"{name}.".startswith(f"{below}.") for below in BELOW[part])
            assert allowed, f"{module_of(path)} imports {name}"
        places = ONLY_IN.get(name.split(".")[0])
        assert places is None or part in places, f"{module_of(path)} imports {name}"


def test_files_stay_short():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    long = {module_of(path): count for path, count in lines.items() if count > MOST_LINES}
    assert not long, f"split these: {long}"
    assert median(lines.values()) <= MEDIAN_LINES


def test_no_package_name_hides_a_function_beside_it():
    """`cbjax.load_config` must never turn into a module because something imported it."""
    import cbjax

    taken = {path.stem for path in (ROOT / "cbjax").iterdir()}
    assert not taken & (set(cbjax.__all__) - {"policies"})
