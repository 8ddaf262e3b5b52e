"""Sarathi-Serve's flags, which are generated from its configuration classes.

Every scheduler has flags of its own; those of the others are ignored, as there.

Source: `microsoft/sarathi-serve` at 96f9911, `sarathi/config/{config,flat_dataclass}.py`.
"""

from typing import Any

from cbjax.policies._flags._memory import Memory, peak_blocks
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, refuse
from cbjax.policies._flags._values import real, truth, whole

_SCHEDULERS = ("sarathi", "simple_chunking", "vllm", "orca", "faster_transformer")
_FIELDS: dict[str, dict[str, Any]] = {
    "sarathi": {
        "chunk_size": whole, "enable_dynamic_chunking_schedule": truth, "low_chunk_size": whole,
        "high_chunk_size": whole, "chunk_schedule_max_tokens": whole,
        "chunk_schedule_stages": whole,
    },
    "simple_chunking": {"chunk_size": whole},
    "vllm": {"max_batched_tokens": whole},
    "orca": {},
    "faster_transformer": {},
}
_PIPELINE = "one pipeline stage is modelled; give 1"


def _scheduler(word: str) -> str:
    if word.lower() not in _SCHEDULERS:
        raise ValueError(f"choose one of {', '.join(map(str.upper, _SCHEDULERS))}")
    return word.lower()


def _own_flags(scheduler: str) -> tuple[Flag, ...]:
    """The flags of one scheduler; they count only if it is chosen."""
    prefix, where = f"--{scheduler}_scheduler_config_", ("scheduler", scheduler)
    fields = {"max_num_seqs": whole, **_FIELDS[scheduler]}
    # The original reads a truth by bool(word), so any word but an empty one means yes.
    return (
        *(
            Flag(f"{prefix}{knob}", knob, where=where, read=bool, write=_bool_word)
            if read is truth else Flag(f"{prefix}{knob}", knob, where=where, read=read)
            for knob, read in fields.items()
        ),
        *refuse(_PIPELINE, f"{prefix}num_pipeline_stages", unless=("1",)),
    )


def _bool_word(on: bool) -> str:
    return "True" if on else ""


def _blocks(server: Server, memory: Memory) -> int:
    return peak_blocks(memory, server.memory_fraction)


TABLE = Table(
    commands=(
        "python -m sarathi.entrypoints.openai.api_server",
        "python -m sarathi.entrypoints.openai_server.api_server",
        "python -m sarathi.entrypoints.api_server",
    ),
    defaults=Settings(block_size=16, memory_fraction=0.8),
    flags=(
        Flag("--model_config_model", setting="model"),
        Flag("--model_config_dtype", setting="dtype"),
        Flag("--model_config_max_model_len", setting="max_length", read=whole),
        Flag("--cache_config_block_size", setting="block_size", read=whole),
        Flag("--worker_config_gpu_memory_utilization", setting="memory_fraction", read=real),
        Flag("--scheduler_config_type", "scheduler", read=_scheduler, write=str.upper),
        *(flag for scheduler in _SCHEDULERS for flag in _own_flags(scheduler)),
        *refuse(_PIPELINE, "--parallel_config_pipeline_parallel_size", unless=("1",)),
    ),
    always=("--parallel_config_pipeline_parallel_size 1",),
    values="""
--host --port --api_key --chat_template --response_role --ssl_keyfile --ssl_certfile
--ssl_ca_certs --ssl_cert_reqs --root_path --server_root_path --log_level --output_dir
--model_config_trust_remote_code --model_config_download_dir --model_config_load_format
--model_config_seed --model_config_revision --cache_config_num_gpu_blocks
--parallel_config_tensor_parallel_size --worker_config_attention_backend
--metrics_config_write_metrics --metrics_config_wandb_project --metrics_config_wandb_group
--metrics_config_wandb_run_name --metrics_config_wandb_sweep_id
--metrics_config_wandb_run_id --metrics_config_enable_op_level_metrics
--metrics_config_enable_cpu_op_level_metrics --metrics_config_enable_chrome_trace
--metrics_config_enable_request_outputs --metrics_config_keep_individual_batch_metrics
""",
    blocks=_blocks,
    notes={
        "pipeline_parallel_size": "2 by default there; one stage is modelled, so give "
        "--parallel_config_pipeline_parallel_size 1",
    },
)
