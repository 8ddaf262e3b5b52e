"""Chips that can be compiled for without having one, and how their compilers are reached.

A compiler wants its environment set before jax is imported, so each target is meant for a process
of its own (`environment`), in which `Target.compiling` then does the rest.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30

# What XLA must know of a GPU to compile for it. Figures: Nvidia's H100 SXM data sheet and the
# limits of compute capability 9.0 in the CUDA programming guide.
_HOPPER = {
    "threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 48 << 10,
    "shared_memory_per_core": 228 << 10, "shared_memory_per_block_optin": 227 << 10,
    "threads_per_core_limit": 2048, "core_count": 132, "fpus_per_core": 128,
    "block_dim_limit_x": (1 << 31) - 1, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535,
    "memory_bandwidth": 3_352_320_000_000, "l2_cache_size": 50 << 20, "clock_rate_ghz": 1.98,
    "device_memory_size": 84_929_347_584, "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}


@dataclass(frozen=True)
class Target:
    """One chip."""

    name: str
    platform: str  # "tpu" or "cuda"
    topology: str
    chips_per_host: tuple[int, int, int] = (2, 2, 1)

    @property
    def back_end(self) -> str:
        """The kernels' back end for it."""
        return {"tpu": "tpu", "cuda": "triton"}[self.platform]

    def missing(self) -> str | None:
        """Why this machine cannot compile for it, or None."""
        module, extra = {
            "tpu": ("libtpu", "tpu"), "cuda": ("jax_plugins.xla_cuda13", "cuda")
        }[self.platform]
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        return None if found else f"no {module} here; pip install 'cbjax[{extra}]'"

    def environment(self) -> dict[str, str]:
        """Environment of a process that compiles for it."""
        own = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        if self.platform == "tpu":
            # No chip to ask for metadata, and other processes may compile at the same time.
            own |= {
                "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
                "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_MIN_LOG_LEVEL": "3",
            }
        # What somebody asked of the compiler for a CPU would change the program for this chip.
        inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        return {**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **own}

    def device(self) -> Any:
        """The chip, as jax describes one that is not there."""
        from jax.experimental import topologies

        if self.platform == "tpu":
            topology = topologies.get_topology_desc(
                platform="tpu", topology_name=self.topology,
                chips_per_host_bounds=self.chips_per_host,
            )
        else:
            topology = topologies.get_topology_desc(
                platform="cuda", topology_name=self.name, topology="1x1x1",
                target_config=_described(_HOPPER),
            )
        return topology.devices[0]


TARGETS = {
    target.name: target
    for target in (
        Target("v5e", "tpu", "v5e:1x1", (1, 1, 1)),
        Target("v5p", "tpu", "v5p:2x2x1"),
        Target("v6e", "tpu", "v6e:1x1", (1, 1, 1)),
        Target("tpu7x", "tpu", "tpu7x:2x2x1"),
        Target("h100", "cuda", "1x1x1"),
    )
}


def side_by_side(one: Callable[[str], Any], names: list[str]) -> list[Any]:
    """`one` of each target, two at a time: each waits for a process of its own."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(one, names))


@contextmanager
def compiling(device: Any) -> Iterator[Any]:
    """Trace for `device` inside: kernels are compiled, and `yield`s the sharding of arguments."""
    import jax
    import numpy as np
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding

    from pallas_kernels import interpret

    on_tpu = device.platform == "tpu"
    kind = AbstractDevice(
        device_kind=device.device_kind,
        num_cores=getattr(device, "num_cores", 1) or 1 if on_tpu else None,
        platform="tpu" if on_tpu else "gpu",
    )
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=kind)
    sharding = NamedSharding(Mesh(np.array([device]), ("x",)), jax.sharding.PartitionSpec())
    with jax.sharding.use_abstract_mesh(mesh), interpret.using(False):
        yield sharding


def _described(limits: dict[str, Any]) -> str:
    fields = " ".join(f"{name}: {value}" for name, value in limits.items())
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: 9 minor: 0 }} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 12 patch: 0 } '
        'runtime_version { major: 13 minor: 0 patch: 0 } '
        'device_description_str: "NVIDIA H100 80GB HBM3"'
    )
