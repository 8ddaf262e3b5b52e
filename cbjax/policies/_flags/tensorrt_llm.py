"""`trtllm-serve MODEL`.

The capacity policy, the chunk order and the batch wait are not flags: they stand in the YAML file
of `--config`, which is not read here.

Source: TensorRT-LLM main, `tensorrt_llm/commands/serve.py` and
`tensorrt_llm/_torch/pyexecutor/resource_manager.py`.
"""

from cbjax.policies._flags._memory import Memory, tensorrt_llm_blocks
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, refuse
from cbjax.policies._flags._values import real, whole


def _blocks(server: Server, memory: Memory) -> int:
    return tensorrt_llm_blocks(memory, server.memory_fraction, server.block_size)


TABLE = Table(
    commands=("trtllm-serve", "trtllm-serve serve"),
    model_first=True,
    defaults=Settings(block_size=32, memory_fraction=0.9),
    flags=(
        Flag("--max_batch_size", "max_batch_size", read=whole),
        Flag("--max_num_tokens", "max_num_tokens", read=whole),
        Flag("--max_seq_len", setting="max_length", read=whole),
        Flag("--kv_cache_dtype", setting="kv_dtype"),
        Flag(
            "--kv_cache_free_gpu_memory_fraction --free_gpu_memory_fraction",
            setting="memory_fraction", read=real,
        ),
        Flag("--enable_chunked_prefill", "enable_chunked_prefill", const=True),
        *refuse("beams are not modelled; give 1", "--max_beam_width", unless=("1",)),
        *refuse(
            "stages with a batch each are not modelled; give 1", "--pipeline_parallel_size",
            "--pp_size", "--context_parallel_size", "--cp_size", unless=("1",),
        ),
        *refuse(
            "a file that may change the scheduler is not read; give its settings to "
            "cbjax.policies.tensorrt_llm", "--config", "--extra_llm_api_options",
        ),
        *refuse(
            "split prefill and decode are not modelled", "--server_role",
            "--metadata_server_config_file", "--disagg_cluster_uri",
        ),
    ),
    values="""
--tokenizer --custom_tokenizer --host --port --backend --custom_module_dirs --log_level
--tensor_parallel_size --tp_size --moe_expert_parallel_size --ep_size
--moe_cluster_parallel_size --cluster_size --gpus_per_node --num_postprocess_workers --revision
--reasoning_parser --tool_parser --otlp_traces_endpoint --media_io_kwargs --chat_template
""",
    switches="--trust_remote_code --fail_fast_on_attention_window_too_large",
    blocks=_blocks,
    env_prefix="TRTLLM_",
    env_ignored="TRTLLM_SERVER_DISABLE_GC TRTLLM_LOG_LEVEL TRTLLM_ENABLE_PDL",
)
