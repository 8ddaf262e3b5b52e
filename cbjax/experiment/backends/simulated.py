"""The real scheduler under a virtual clock: a cost model says how long each iteration takes."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cbjax import hardware
from cbjax.cache import cache_dir
from cbjax.config import ConfigError, RunConfig, build_policy
from cbjax.config.errors import nearest
from cbjax.core.limits import Limits, System, system
from cbjax.core.policy import Policy
from cbjax.core.sizing import limits_for
from cbjax.engine.compiles import keep_compiled_programs
from cbjax.experiment.backends import Progress, Served
from cbjax.experiment.backends._loaded import loaded
from cbjax.experiment.sizes import ladder_of, sizes_of
from cbjax.machine import cores
from cbjax.metrics import Recorder
from cbjax.simulate import Simulated, SimulationStalled, costs, histogram, simulate
from cbjax.simulate.replay import replay
from cbjax.simulate.results import describe_gaps, tables
from cbjax.simulate.work import Cost
from cbjax.workload import Workload, tokenise_workload

_CAPACITIES = "capacities of simulations"
_NUMBERS = ("blocks", "blocks_per_sequence", "cached_tokens")
MOST_BLOCKS = 1 << 24


def serve(
    config: RunConfig, workload: Workload, recorder: Recorder, shared: dict[str, Any],
    progress: Progress | None,
) -> Served:
    """Serve the workload; see `cbjax.experiment.backends`."""
    policy = build_policy(config.policy)
    cost = build_cost(config)
    keep_compiled_programs(cache_dir() / "programs")
    if any(request.prompt_tokens is None for request in workload):
        model = loaded(config, shared, progress)
        workload = tokenise_workload(
            workload, model.tokenizer, vocab_size=model.config.vocab_size,
            excluded_ids=model.config.eos_ids,
        )
    exact = config.record == "tokens"
    try:
        limits, numbers = limits_and_system(config, policy)
        limits = shared.get(_CAPACITIES, {}).get(_program(policy, limits), limits)
        given = config.backend
        done = simulate(
            workload, policy, cost, limits, system=numbers,
            rungs=ladder_of(config, policy, int(numbers.max_length)), host_s=given.host_s,
            compile_s=given.compile_s, padded=given.padded, leap=given.leap, pages=exact,
            progress=progress,
        )
    except (ValueError, SimulationStalled) as error:
        raise ConfigError(str(error)) from error
    about: dict[str, Any] = dict(
        class_names=[request.class_name for request in workload],
        priorities=[request.priority for request in workload],
    )
    facts = _facts(config, done)
    if exact:
        replay(done, recorder, deliver_at=policy.traits.deliver_at, **about)
        return Served(environment=facts)
    streams = policy.traits.deliver_at == "token"
    return Served(
        environment=facts, tables=tables(done, **about),
        itl_s=describe_gaps(done) if streams else None,
    )


def prepare(configs: Sequence[RunConfig], shared: dict[str, Any]) -> int:
    """One compiled program for cells that differ in numbers, on all cores; see `simulate_many`.

    Pools, block sizes and tables are numbers below capacities, so the cells of a policy that names
    its blocks share the greatest. Seats and tokens of an iteration decide the ladder and stay each
    cell's own.
    """
    capacities: dict[Any, Limits] = shared.setdefault(_CAPACITIES, {})
    for config in configs:
        try:
            policy = build_policy(config.policy)
            limits = limits_and_system(config, policy)[0]
        except ValueError:
            continue  # its cell will say so
        greatest = capacities.setdefault(_program(policy, limits), limits)
        most = {name: max(getattr(limits, name), getattr(greatest, name)) for name in _NUMBERS}
        capacities[_program(policy, limits)] = replace(limits, **most)
    # With every token recorded most of the time goes into its rows, on one core.
    return 1 if any(config.record == "tokens" for config in configs) else cores()


def _program(policy: Policy, limits: Limits) -> tuple[str, Limits]:
    """What cells have in common if one program serves them."""
    ones: dict[str, Any] = dict.fromkeys(_NUMBERS, 1)
    return policy.name, replace(limits, **ones)


def build_cost(config: RunConfig) -> Cost:
    """The cost model that `config.backend.cost` names, with its own numbers.

    Raises:
        ConfigError: no such cost model, or a number it does not take.
    """
    given = {name: value for name, value in config.backend.cost.items() if value is not None}
    name = given.pop("name", None)
    if name not in costs.names:
        raise ConfigError(f"backend.cost.name = {name!r}: {nearest(str(name), costs.names)}")
    build = costs.get(name)
    known = list(inspect.signature(build).parameters)
    # A cost that stands for an accelerator takes it, and the model, from their own groups.
    chosen = dict(
        hardware=config.hardware.name, devices=config.hardware.devices, model=config.model.source,
        dtype=config.model.dtype, kv_dtype=config.kv.dtype,
    )
    if "hardware" in known and chosen["hardware"] is None:
        raise ConfigError(
            f"hardware = null: backend.cost.name = {name!r} needs one; choose from "
            f"{', '.join(hardware.names())}"
        )
    given = {key: value for key, value in chosen.items() if key in known} | given
    for key in given:
        if key not in known:
            raise ConfigError(f"backend.cost.{key} = {given[key]!r}: {nearest(key, known)}")
    try:
        return build(**given)
    except (TypeError, ValueError, FileNotFoundError) as error:
        raise ConfigError(f"backend.cost ({name}): {error}") from error


def limits_and_system(config: RunConfig, policy: Policy) -> tuple[Limits, System]:
    """Capacities and numbers; blocks have names only where prefixes are shared."""
    sizes, longest = sizes_of(config), config.model.max_length
    sizes["num_blocks"] = sizes["num_blocks"] or _blocks_on_hardware(config)
    for field, value in (("kv.num_blocks", sizes["num_blocks"]), ("model.max_length", longest)):
        if value is None:
            raise ConfigError(f"{field} = null: a simulation measures no memory; give a number")
    assert longest is not None
    shares = policy.traits.shares
    swap_blocks = sizes.pop("swap_blocks")
    limits = limits_for(
        policy, max_length=longest, tables=shares, context=longest if shares else 0, **sizes
    )
    if not shares:
        # Blocks are only counted: one compiled program serves every pool.
        limits = replace(limits, blocks=max(limits.blocks, MOST_BLOCKS))
    return limits, system(
        limits, block_size=sizes["block_size"], num_blocks=sizes["num_blocks"],
        max_length=longest, swap_blocks=swap_blocks,
    )


def _blocks_on_hardware(config: RunConfig) -> int | None:
    """KV blocks beside the weights on the accelerator; None where there is none on paper."""
    if config.hardware.name is None:
        return None
    costs = hardware.roofline.step_costs(
        hardware.models.load(config.model.source), dtype=config.model.dtype,
        kv_dtype=config.kv.dtype, devices=config.hardware.devices,
    )
    return hardware.roofline.kv_blocks(
        hardware.load(config.hardware.name), costs, config.kv.block_size,
        memory_fraction=config.kv.memory_fraction or 0.9,
    )


def _facts(config: RunConfig, done: Simulated) -> dict[str, Any]:
    """What was counted and what was not, for `environment.json`."""
    given = config.backend
    return {
        "device": "none (virtual clock)",
        "cost": dict(given.cost),
        "stands_for": None if config.hardware.name is None else
        f"{config.model.source} in {config.model.dtype} on {config.hardware.devices} x "
        f"{config.hardware.name}",
        "num_blocks": int(done.system.num_blocks),
        "counted": {
            "host_s": given.host_s,
            "padding to the rung": given.padded,
            "compilation": f"{given.compile_s} s at a rung's first use" if given.compile_s
            else "none: every rung was compiled before the start",
        },
        "prefix_cache_at_start": "empty",
        "itl_s": "exact" if config.record == "tokens" else
        f"from a histogram, within {histogram.MOST_RELATIVE_ERROR:.1%}",
        "iterations": done.iteration_count,
        "turns": done.turns,
    }
