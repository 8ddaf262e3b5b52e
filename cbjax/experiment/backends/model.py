"""A model under the wall clock: the engine of this package."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from cbjax.config import ConfigError, RunConfig, build_policy
from cbjax.engine import Engine
from cbjax.engine.attention_time import attention_seconds
from cbjax.engine.clock import Clock, ProcessClock, WallClock
from cbjax.engine.compiles import compiling_anew
from cbjax.experiment.backends import Answer, Progress, Served
from cbjax.experiment.backends._loaded import loaded
from cbjax.experiment.sizes import ladder_of, sizes_of
from cbjax.metrics import Recorder
from cbjax.models.load import LoadedModel
from cbjax.workload import Workload, tokenise_workload

CLOCKS: dict[str, Callable[[], Clock]] = {"wall": WallClock, "process": ProcessClock}


def serve(
    config: RunConfig, workload: Workload, recorder: Recorder, shared: dict[str, Any],
    progress: Progress | None,
) -> Served:
    """Load (once per study), compile, serve; see `cbjax.experiment.backends`."""
    try:
        engine = _engine(config, shared, progress)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with compiling_anew() if config.backend.cold_compile else nullcontext():
        compiled = engine.compile(progress)
    model = engine.model
    requests = tokenise_workload(
        workload, model.tokenizer, vocab_size=model.config.vocab_size,
        excluded_ids=model.config.eos_ids,
    )
    completions = engine.serve(
        requests, recorder, progress=progress, temperature=config.workload.temperature,
        top_k=config.workload.top_k, top_p=config.workload.top_p,
        clock=CLOCKS[config.backend.clock],
    )
    answers = [
        Answer(done.request_id, done.text, done.finish_reason, done.error) for done in completions
    ]
    return Served(answers, {
        "device": jax.devices()[0].device_kind,
        "clock": config.backend.clock,
        "compile_count": compiled.programs,
        "compile_s": round(compiled.seconds, 3),
        "compiles_after_start": engine.compilations_since_start,
        "cache_state": _cache_state(compiled.programs, compiled.cached),
        "num_blocks": engine.num_blocks,
        "block_table_bytes": 4 * engine.limits.seats * engine.limits.blocks_per_sequence,
        "weights": model.source_digest,
        # Last: it compiles a program of its own.
        **_attention(config, model),
    })


def _engine(config: RunConfig, shared: dict[str, Any], progress: Progress | None) -> Engine:
    """An engine for the config; its weights are loaded once per study."""
    model = loaded(config, shared, progress)
    policy = build_policy(config.policy)
    max_length = min(config.model.max_length or model.config.max_length, model.config.max_length)
    return Engine(
        model, policy=policy, max_length=max_length, dtype=config.kv.dtype or config.model.dtype,
        attention=config.model.attention, kv_memory_fraction=config.kv.memory_fraction or 0.3,
        ladder=ladder_of(config, policy, max_length), debug=config.debug,
        megastep=config.backend.megastep, **sizes_of(config),
    )


def _attention(config: RunConfig, model: LoadedModel) -> dict[str, float]:
    """What a layer's attention takes, if asked for."""
    if not config.backend.time_attention:
        return {}
    seconds = attention_seconds(
        model.config, block_size=config.kv.block_size,
        dtype=config.kv.dtype or config.model.dtype, implementation=config.model.attention,
    )
    return {"attention_ms": round(1000 * seconds, 4)}


def _cache_state(programs: int, cached: int) -> str:
    """Of the persistent compilation cache, as this run found it."""
    if not jax.config.values.get("jax_compilation_cache_dir"):
        return "off"
    return "warm" if cached else "cold" if programs else "in memory"
