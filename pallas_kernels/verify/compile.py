"""Compile layer: every production shape for one chip, and mistakes that must be refused.

    python -m pallas_kernels.verify compile [--targets v6e h100 v5e] [--brief v5e]

The compiler is the one that a machine with the chip would use. Checked beside success: no register
spill (GPU), no copy of the cache among the temporaries, and a cache that is updated in place.
"""

import re
import sys
import time
from typing import Any

from pallas_kernels.verify import mistakes
from pallas_kernels.verify.cases import Case, one_of_each_kind, production
from pallas_kernels.verify.targets import TARGETS, compiling

NO_SPILLS = {"xla_gpu_fail_ptx_compilation_on_register_spilling": True}


def options_for(platform: str) -> dict[str, Any]:
    """Compiler options of a target's platform."""
    return NO_SPILLS if platform == "cuda" else {}


def problem_of(case: Case, platform: str, back_end: str, device: Any, wide: bool) -> str | None:
    """What is wrong with a compiled case, or None."""
    try:
        with compiling(device) as sharding:
            compiled = case.lower(back_end, sharding, wide).compile(
                compiler_options=options_for(platform)
            )
    except Exception as error:  # whatever a compiler raises is the finding
        return " ".join(str(error).split())[:600]
    memory = compiled.memory_analysis()
    cache = case.cache_bytes(wide)
    if memory.temp_size_in_bytes > cache / 2 and not case.may_copy:
        return (
            f"temporaries of {memory.temp_size_in_bytes:,} bytes beside a cache of {cache:,}: "
            "the cache is copied"
        )
    if case.kernel != "attention" and memory.alias_size_in_bytes < 2 * cache:
        return f"only {memory.alias_size_in_bytes:,} of {2 * cache:,} bytes are updated in place"
    return None


def run(name: str, brief: bool) -> int:
    """Compile all cases, or one of each kind, for one target; returns the number of failures."""
    target, started, failures = TARGETS[name], time.perf_counter(), 0
    device, wide = target.device(), target.platform == "tpu"
    cases = one_of_each_kind() if brief else production()
    for number, case in enumerate(cases):
        before = time.perf_counter()
        problem = problem_of(case, target.platform, target.back_end, device, wide)
        failures += problem is not None
        label = f"{case.kernel} {case.name}, blocks of {case.block_size}"
        print(
            f"  {name} {number + 1}/{len(cases)} {label}: {problem or 'ok'} "
            f"({time.perf_counter() - before:.1f} s)", flush=True,
        )
    for mistake in mistakes.of(target.platform):
        found = mistake.attempt(device, problem_of)
        noticed = found is not None and re.search(mistake.expected, found)
        failures += not noticed
        verdict = "refused, as it must be" if noticed else f"NOT NOTICED: {found}"
        print(f"  {name} mistake, {mistake.name}: {verdict}", flush=True)
    print(f"  {name}: {failures} failures in {time.perf_counter() - started:.0f} s", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(1 if run(sys.argv[1], brief=sys.argv[2:] == ["brief"]) else 0)
