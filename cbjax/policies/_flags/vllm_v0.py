"""`VLLM_USE_V1=0 vllm serve MODEL`, or any release before V1: vLLM's V0 engine.

Source: vLLM 0.6.6, `vllm/engine/arg_utils.py`, `vllm/worker/worker.py`.
"""

from typing import Any

from cbjax.policies._flags._memory import Memory, peak_blocks
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, refuse, refuse_switch
from cbjax.policies._flags._values import as_gibibytes, gibibytes, human, real
from cbjax.policies._flags.vllm import CHUNKED, LISTS, SERVE, SHARED, SWITCHES, VALUES

_LONG = 32768  # chunks are on by default for longer sequences
_UNKNOWN = "it changes what is scheduled and is not modelled; remove it"


def _finish(knobs: dict[str, Any], settings: dict[str, Any]) -> None:
    """Long sequences are computed in chunks; without chunks the budget holds the longest."""
    longest = settings["max_length"]
    if longest:
        knobs.setdefault("enable_chunked_prefill", longest > _LONG)
        if not knobs["enable_chunked_prefill"]:
            knobs.setdefault("max_num_batched_tokens", max(longest, 2048))


def _blocks(server: Server, memory: Memory) -> int:
    return peak_blocks(memory, server.memory_fraction)


TABLE = Table(
    commands=SERVE,
    when={"VLLM_USE_V1": "0"},
    model_first=True,
    config="--config",
    dashes=True,
    negatable=True,
    defaults=Settings(block_size=16, memory_fraction=0.9, swap_bytes=4 * 2**30),
    flags=(
        *SHARED,
        Flag("--num-gpu-blocks-override", setting="num_blocks", read=human),
        Flag("--swap-space", setting="swap_bytes", read=gibibytes, write=as_gibibytes),
        *CHUNKED,
        Flag("--preemption-mode", "preemption_mode"),
        Flag("--scheduler-delay-factor", "scheduler_delay_factor", read=real),
        *refuse("priorities are modelled for V1 only", "--scheduling-policy", unless=("fcfs",)),
        *refuse(_UNKNOWN, "--num-scheduler-steps", unless=("1",)),
        *refuse(
            _UNKNOWN, "--max-num-partial-prefills", "--max-long-partial-prefills", unless=("1",)
        ),
        *refuse(_UNKNOWN, "--long-prefill-token-threshold", unless=("0",)),
        *refuse(
            "speculative decoding is not modelled; remove it", "--speculative-model",
            "--num-speculative-tokens", "--ngram-prompt-lookup-max",
        ),
        *refuse_switch("prefix sharing is modelled for V1 only", "--enable-prefix-caching"),
    ),
    values=VALUES + """
--max-seq-len-to-capture --guided-decoding-backend --tokenizer-pool-size --tokenizer-pool-type
--tokenizer-pool-extra-config --qlora-adapter-name-or-path
""",
    switches=SWITCHES + """
--use-v2-block-manager --disable-async-output-proc --multi-step-stream-outputs
--no-enable-prefix-caching --disable-mm-preprocessor-cache
""",
    lists=LISTS,
    blocks=_blocks,
    finish=_finish,
    env_prefix="VLLM_",
    env_ignored="""
VLLM_LOGGING_LEVEL VLLM_HOST_IP VLLM_PORT VLLM_API_KEY VLLM_CACHE_ROOT VLLM_CONFIG_ROOT
VLLM_ATTENTION_BACKEND VLLM_WORKER_MULTIPROC_METHOD VLLM_USE_MODELSCOPE VLLM_NO_USAGE_STATS
""",
)
