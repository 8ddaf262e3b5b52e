"""Ledger layer: what the real compilers say of the kernels, kept in `ledger.json`.

    python -m pallas_kernels.verify ledger [--write]

Static figures: sizes and counts of a program, not times; loops are counted once whatever their trip
count. They show when a change makes a kernel larger or makes it spill. With the compilers that the
file names, every figure must be the file's; with others the figures are printed beside it.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pallas_kernels.verify.targets import TARGETS, Target, side_by_side

FILE = Path(__file__).with_name("ledger.json")
LABEL = "static figures of compiled programs, no measurement: nothing here is a time"
NAMES = (
    "smollm2", "llama3.1-8b/1", "llama3.1-70b/8", "gemma-7b", "llama3.1-8b/1 q f32",
    "llama3.1-8b/1 int8",
)
OTHER_BLOCKS = ("llama3.1-8b/1", "llama3.1-8b/1 2k")
MATRIX_TPU = re.compile(r"\bvmatmul|\bvmatprep|\bvlatch")
MATRIX_GPU = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async)")


def versions(target: Target) -> dict[str, str]:
    """Versions of what decides the figures."""
    packages = ["jax", "jaxlib", "libtpu"]
    if target.platform == "cuda":
        packages[2:] = ["jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-nvvm"]
    return {name: importlib.metadata.version(name) for name in packages}


def tpu_figures(folder: Path, kernel: str) -> dict[str, int]:
    """Figures of one kernel from what the TPU compiler dumped."""
    figures: dict[str, int] = {}
    for path in folder.glob(f"*{kernel}*final_bundles.txt"):
        text = path.read_text(errors="replace")
        if "schedule-analysis" in path.name:
            for key, words in (("bundles", "total"), ("empty_bundles", "empty")):
                count = re.search(rf"\b{words} scheduled bundles:\s+(\d+)", text)
                figures[key] = figures.get(key, 0) + int(count[1] if count else 0)
        else:
            figures["matrix_instructions"] = len(MATRIX_TPU.findall(text))
            figures["spill_lines"] = sum("spill" in line for line in text.splitlines())
    for path in folder.glob(f"*{kernel}*-pre-finalize-registers-and-allocations.txt"):
        text = path.read_text(errors="replace")
        for space in ("vmem", "smem"):
            sizes = re.findall(rf"space={space}, size = (0x[0-9a-f]+), scoped", text)
            figures[f"{space}_bytes"] = sum(int(size, 16) for size in sizes)
    return figures


def gpu_figures(folder: Path, kernel: str) -> dict[str, int]:
    """Figures of one kernel from what the GPU compiler dumped: PTX through ptxas, launches."""
    import nvidia

    ptxas = next(
        str(path) for root in nvidia.__path__ for path in Path(root).glob("*/bin/ptxas")
    )
    figures: dict[str, int] = {}
    for path in folder.glob("*.ptx"):
        text = path.read_text()
        if f".entry {kernel}" not in text:
            continue
        command = [ptxas, "-v", "-arch=sm_90a", str(path), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        for key, pattern in (
            ("registers", r"Used (\d+) registers"), ("spill_bytes", r"(\d+) bytes spill stores")
        ):
            figures[key] = sum(int(found) for found in re.findall(pattern, said))
        figures["matrix_instructions"] = len(MATRIX_GPU.findall(text))
    for path in folder.glob("*thunk_sequence.txt"):
        asked = re.search(rf"{kernel} grid:.*shared_memory: (\d+) bytes", path.read_text())
        if asked:
            figures["shared_memory_bytes"] = int(asked[1])
    return figures


def measure(name: str, folder: Path) -> dict[str, dict[str, int]]:
    """Figures of every case for one target; the dump folder is in the environment already."""
    from pallas_kernels.verify.cases import production
    from pallas_kernels.verify.targets import compiling

    target, rows = TARGETS[name], {}
    device, wide = target.device(), target.platform == "tpu"
    kernels = ("ragged_paged_attention",) if wide else (
        "ragged_paged_prefill", "ragged_paged_decode"
    )
    read = tpu_figures if wide else gpu_figures

    def compile_and_read(lower: Any) -> dict[str, int]:
        for path in folder.iterdir():
            path.unlink()
        with compiling(device) as sharding:
            memory = lower(sharding).compile().memory_analysis()
        figures = {"temporary_bytes": memory.temp_size_in_bytes}
        for kernel in kernels:
            prefix = "" if wide else kernel.split("_")[-1] + "_"
            figures |= {prefix + key: n for key, n in read(folder, kernel).items()}
        return figures

    for case in production():
        # Of one model all block sizes.
        wanted = case.name in NAMES if case.block_size == 16 else case.name in OTHER_BLOCKS
        if case.kernel == "attention" and wanted:
            label = f"{case.name}, blocks of {case.block_size}"
            rows[label] = compile_and_read(lambda s, c=case: c.lower(target.back_end, s, wide))
            if wide and case.name == "llama3.1-8b/1" and case.block_size == 16:
                rows[f"{label}, jax's own"] = compile_and_read(lambda s, c=case: _theirs(c, s))
    return rows


def _theirs(case: Any, sharding: Any) -> Any:
    """jax's kernel of the same name at the same shape, as the yardstick."""
    import functools

    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    def array(shape: tuple[int, ...], dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    heads, (_, blocks, *_) = case.heads, case.cache_shape(True)
    call = functools.partial(
        ragged_paged_attention, sm_scale=heads.head_dim**-0.5,
        num_kv_pages_per_block=max(256 // case.block_size, 1), num_queries_per_block=64,
        vmem_limit_bytes=64 << 20,
    )
    sequences, width = case.sequences, -(-case.longest // case.block_size)
    pages = (blocks, case.block_size, 2 * heads.num_kv_heads, heads.head_dim)
    return jax.jit(call).lower(
        array((case.tokens, heads.num_heads, heads.head_dim), jnp.bfloat16),
        array(pages, jnp.bfloat16), array((sequences,)), array((sequences, width)),
        array((sequences + 1,)), array((1,)),
    )


def run(names: list[str], write: bool) -> tuple[str, str]:
    """Measure each target in a process of its own and compare with the file, or rewrite it."""
    kept: dict[str, Any] = {"label": LABEL, "targets": {}}
    if FILE.exists():
        kept = json.loads(FILE.read_text())
    words, failed = [], False
    for name, found in zip(names, side_by_side(_in_its_own_process, names), strict=True):
        target = TARGETS[name]
        if isinstance(found, str):
            words.append(f"{name} {found}")
            failed |= "failed" in found
            continue
        rows = found
        fresh = {"versions": versions(target), "rows": rows}
        differences = _differences(kept["targets"].get(name), fresh)
        same = kept["targets"].get(name, {}).get("versions") == fresh["versions"]
        for label, figures in rows.items():
            print(f"  {name} {label}: " + ", ".join(f"{k} {v:,}" for k, v in figures.items()))
        for line in differences:
            print(f"  {name} differs: {line}")
        if write:
            kept["targets"][name] = fresh
        failed |= bool(differences) and same and not write
        state = "as kept" if not differences else "written" if write else "differs"
        words.append(f"{name} {state}{'' if same or write else ' (other compilers than kept)'}")
    if write:
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        words.append(f"written to {FILE}")
    every = all("skipped" in word for word in words)
    return ("failed" if failed else "skipped" if every else "ok"), ", ".join(words)


def _in_its_own_process(name: str) -> dict[str, dict[str, int]] | str:
    """Figures of one target, or why there are none."""
    target = TARGETS[name]
    missing = target.missing()
    if missing:
        return f"skipped ({missing})"
    with tempfile.TemporaryDirectory() as folder:
        dump = {"LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"}
        if target.platform == "cuda":
            dump = {"XLA_FLAGS": f"--xla_dump_to={folder}"}
        command = [sys.executable, "-m", "pallas_kernels.verify.ledger", name, folder]
        done = subprocess.run(
            command, env={**target.environment(), **dump}, stdout=subprocess.PIPE, text=True
        )
    if done.returncode:
        return f"failed (exit status {done.returncode})"
    return json.loads(done.stdout.splitlines()[-1])


def _differences(kept: dict | None, fresh: dict) -> list[str]:
    if kept is None:
        return ["nothing is kept for this target; --write keeps it"]
    lines = []
    for label in sorted({*kept["rows"], *fresh["rows"]}):
        before, now = kept["rows"].get(label), fresh["rows"].get(label)
        if before != now:
            lines.append(f"{label}: {before} kept, {now} now; --write keeps it if it is meant")
    return lines


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
