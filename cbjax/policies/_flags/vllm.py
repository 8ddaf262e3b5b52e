"""`vllm serve MODEL`: vLLM's V1 engine.

Source: vLLM 0.32, `vllm/engine/arg_utils.py`, `vllm/entrypoints/openai/cli_args.py`.
"""

from typing import Any

from cbjax.policies._flags._memory import Memory, vllm_blocks, vllm_blocks_in
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import (
    Flag,
    Settings,
    Table,
    on_off,
    refuse,
    refuse_switch,
)
from cbjax.policies._flags._values import human, real, whole

SERVE = ("vllm serve", "python -m vllm.entrypoints.openai.api_server")
_PARTITION = "several engines or stages with a scheduler each; one is modelled: give 1"
_UNKNOWN = "it changes what is scheduled and is not modelled; remove it"


def length(word: str) -> int | None:
    """A longest sequence; auto and -1 leave it to the model and the memory."""
    return None if word in ("auto", "-1") else human(word)


def _finish(knobs: dict[str, Any], settings: dict[str, Any]) -> None:
    """The server's own choice of a budget and of seats that nobody gave."""
    longest, budget = settings["max_length"], knobs.get("max_num_batched_tokens", 2048)
    if "max_num_batched_tokens" not in knobs and longest:
        if not knobs.get("enable_chunked_prefill", True):
            budget = max(longest, budget)
        budget = min(knobs.get("max_num_seqs", 256) * longest, budget)
        knobs["max_num_batched_tokens"] = budget
    knobs.setdefault("max_num_seqs", min(256, budget))


def _blocks(server: Server, memory: Memory) -> int:
    if server.settings.kv_bytes is not None:
        return vllm_blocks_in(memory, server.settings.kv_bytes)
    return vllm_blocks(memory, server.memory_fraction)


# What the two engines share.
SHARED = (
    Flag("--model", setting="model"),
    Flag("--dtype", setting="dtype"),
    Flag("--kv-cache-dtype", setting="kv_dtype"),
    Flag("--max-model-len", setting="max_length", read=length),
    Flag("--block-size", setting="block_size", read=whole),
    Flag("--gpu-memory-utilization", setting="memory_fraction", read=real),
    Flag("--max-num-seqs", "max_num_seqs", read=human),
    Flag("--max-num-batched-tokens", "max_num_batched_tokens", read=human),
    *refuse(_PARTITION, "--pipeline-parallel-size -pp", "--data-parallel-size -dp", unless=("1",)),
    *refuse("speculative decoding is not modelled; remove it", "--speculative-config -sc"),
    *refuse("KV that moves between engines is not modelled; remove it", "--kv-transfer-config"),
    *refuse("a scheduler of your own is not modelled; remove it", "--scheduler-cls"),
    *refuse("only text generation is modelled", "--task", unless=("auto", "generate")),
    *refuse("only text generation is modelled", "--runner", unless=("auto", "generate")),
    *refuse(_UNKNOWN, "--num-lookahead-slots", unless=("0",)),
    *refuse_switch("the number of adapters bounds a batch, which is not modelled", "--enable-lora"),
)
CHUNKED = on_off(
    "--enable-chunked-prefill", "--no-enable-chunked-prefill", "enable_chunked_prefill"
)
VALUES = """
--host --port --uds --api-key --root-path --uvicorn-log-level --chat-template --response-role
--chat-template-content-format --tool-call-parser --tool-parser-plugin --reasoning-parser
--tool-server --max-log-len --log-config-file --ssl-keyfile --ssl-certfile --ssl-ca-certs
--ssl-cert-reqs --ssl-ciphers --tokenizer --tokenizer-mode --tokenizer-revision --seed --revision
--code-revision --hf-config-path --hf-overrides --hf-token --config-format --load-format
--download-dir --model-loader-extra-config --ignore-patterns --quantization -q --model-impl
--max-logprobs --logprobs-mode --rope-scaling --rope-theta --generation-config
--override-generation-config --tensor-parallel-size -tp --distributed-executor-backend
--max-parallel-loading-workers --worker-cls --worker-extension-cls --device --cpu-offload-gb
--limit-mm-per-prompt --mm-processor-kwargs --otlp-traces-endpoint --compilation-config -O
--additional-config --logits-processor-pattern --allowed-local-media-path
--collect-detailed-traces --show-hidden-metrics-for-version
"""
SWITCHES = """
--trust-remote-code --enforce-eager --disable-log-stats --disable-log-requests
--enable-log-requests --enable-auto-tool-choice --enable-request-id-headers --disable-fastapi-docs
--disable-custom-all-reduce --disable-frontend-multiprocessing --skip-tokenizer-init
--disable-sliding-window --enable-sleep-mode --ray-workers-use-nsight --calculate-kv-scales
--allow-credentials --return-tokens-as-token-ids --enable-prompt-tokens-details
--enable-server-load-tracking -O0 -O1 -O2 -O3
"""
LISTS = """
--served-model-name --lora-modules --middleware --allowed-origins --allowed-methods
--allowed-headers
"""

TABLE = Table(
    commands=SERVE,
    model_first=True,
    config="--config",
    dashes=True,
    negatable=True,
    defaults=Settings(block_size=16, memory_fraction=0.92),
    flags=(
        *SHARED,
        # The null block is part of the number there and not here.
        Flag(
            "--num-gpu-blocks-override", setting="num_blocks",
            read=lambda word: human(word) - 1, write=lambda blocks: str(blocks + 1),
        ),
        Flag("--kv-cache-memory-bytes --kv-cache-memory", setting="kv_bytes", read=human),
        *CHUNKED,
        *on_off("--enable-prefix-caching", "--no-enable-prefix-caching", "enable_prefix_caching"),
        *on_off(
            "--scheduler-reserve-full-isl", "--no-scheduler-reserve-full-isl",
            "scheduler_reserve_full_isl",
        ),
        Flag("--long-prefill-token-threshold", "long_prefill_token_threshold", read=human),
        Flag("--scheduling-policy", "policy"),
        Flag("--watermark", "watermark", read=real),
        *refuse(_PARTITION, "--decode-context-parallel-size -dcp", unless=("1",)),
        *refuse(
            "V1 never enforced it and has dropped it; remove it", "--max-num-partial-prefills",
            "--max-long-partial-prefills", unless=("1",),
        ),
        *refuse(_UNKNOWN, "--max-num-scheduled-tokens", "--max-num-active-seqs"),
        *refuse(_UNKNOWN, "--prefill-schedule-interval", unless=("1",)),
        *refuse(_UNKNOWN, "--kv-offloading-size"),
        *refuse_switch(_UNKNOWN, "--long-prefill-token-threshold-adaptive"),
        *refuse_switch(
            "scheduling one step ahead is not modelled; give --no-async-scheduling",
            "--async-scheduling",
        ),
    ),
    values=VALUES + """
--convert --prefix-caching-hash-algo --data-parallel-rank -dpn
--data-parallel-start-rank -dpr --data-parallel-size-local -dpl --data-parallel-address -dpa
--data-parallel-rpc-port -dpp --data-parallel-backend -dpb --api-server-count -asc --swap-space
--all2all-backend --eplb-config --expert-placement-strategy --dbo-decode-token-threshold
--dbo-prefill-token-threshold --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size
--mm-processor-cache-gb --mm-processor-cache-type --mm-encoder-tp-mode --mm-encoder-attn-backend
--video-pruning-rate --media-io-kwargs --io-processor-plugin --pooler-config
--structured-outputs-config --kv-events-config --max-cudagraph-capture-size
--safetensors-load-strategy --pt-load-map-location --override-attention-dtype --attention-backend
--default-chat-template-kwargs --fingerprint-mode --fingerprint-value
--h11-max-incomplete-event-size --h11-max-header-count --disable-access-log-for-endpoints
""",
    switches=SWITCHES + """
--headless --enable-expert-parallel --enable-eplb --enable-dbo --data-parallel-hybrid-lb
--disable-hybrid-kv-cache-manager --disable-chunked-mm-input --disable-cascade-attn
--enable-prompt-embeds --enable-mm-embeds --interleave-mm-strings --skip-mm-profiling
--kv-sharing-fast-prefill --aggregate-engine-logging --use-tqdm-on-load
--trust-request-chat-template --exclude-tools-when-tool-choice-none --enable-force-include-usage
--enable-tokenizer-info-endpoint --enable-log-outputs --enable-log-deltas --log-error-stack
--tokens-only --disable-uvicorn-access-log --enable-ssl-refresh --enable-offline-docs
--no-async-scheduling
""",
    lists=LISTS + " --cudagraph-capture-sizes --cuda-graph-sizes --logits-processors",
    blocks=_blocks,
    finish=_finish,
    notes={
        "max_num_seqs": "chosen by the device there (1024 from 70 GiB on, A100 aside); 256 here",
        "max_num_batched_tokens": "chosen by the device there (8192 from 70 GiB on, A100 aside, "
        "16384 from 160 GiB on); 2048 here",
        "enable_prefix_caching": "on by default there; off here, because it needs token ids",
    },
    env_prefix="VLLM_",
    env_ignored="""
VLLM_USE_V1 VLLM_LOGGING_LEVEL VLLM_HOST_IP VLLM_PORT VLLM_API_KEY VLLM_CACHE_ROOT
VLLM_CONFIG_ROOT VLLM_ATTENTION_BACKEND VLLM_WORKER_MULTIPROC_METHOD VLLM_USE_MODELSCOPE
VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_ALLOW_LONG_MAX_MODEL_LEN
""",
)
