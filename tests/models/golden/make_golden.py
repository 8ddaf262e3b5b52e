"""Make the golden files beside this script with torch and transformers (neither is needed to test).

    python make_golden.py [SmolLM2-135M-Instruct.Q4_1.gguf]

Needs torch, transformers, accelerate and gguf. For each family a tiny random model is saved as
transformers saves it, with its logits at a few positions of a 96-token input. Norms and biases are
random too, so that one left out shows. For SmolLM2 the greedy continuations of eight prompts are
kept, and the prompts' token ids.
"""

import json
import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
POSITIONS = [0, 1, 17, 40, 63, 64, 79, 95]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
# name -> (kind, settings, dtype on disk, shard size)
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": True}, torch.float32, "1GB"),
    "llama-untied-sharded": ("Llama", {"tie_word_embeddings": False}, torch.float32, "40KB"),
    "llama-bfloat16": ("Llama", {"tie_word_embeddings": False}, torch.bfloat16, "1GB"),
    "llama31": ("Llama", {"rope_parameters": LLAMA31}, torch.float32, "1GB"),
    "llama-linear-float16": ("Llama", {"rope_parameters": LINEAR}, torch.float16, "1GB"),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 12}, torch.float32, "1GB"),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, torch.float32, "1GB"),
    "qwen3": ("Qwen3", {"head_dim": 16}, torch.float32, "1GB"),
}
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    "List three uses of a paper clip:\n1.",
    "人工知能とは、",
    "In 1969, the first people landed on the Moon. They were",
    "<|im_start|>user\nWhy is the sky blue? Answer in one sentence.<|im_end|>\n"
    "<|im_start|>assistant\n",
]


def make_model(name: str) -> None:
    kind, settings, dtype, shard = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    torch.manual_seed(list(MODELS).index(name))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            if "norm" in tensor or tensor.endswith("bias"):
                values.copy_(torch.randn_like(values) * 0.3 + (0.0 if "bias" in tensor else 1.0))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    # Logits of the numbers as saved, computed in float32.
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(3, SIZES["vocab_size"], (1, 96))
    with torch.no_grad():
        logits = model(ids).logits[0, POSITIONS]
    np.savez_compressed(
        folder / "expected.npz",
        token_ids=ids[0].numpy().astype(np.int32),
        positions=np.array(POSITIONS, np.int32),
        logits=logits.numpy(),
    )


def make_smollm2(path: Path) -> None:
    load = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # 32 tokens of each, whatever comes
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        made = model.generate(
            ids,
            do_sample=False,
            max_new_tokens=32,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(made.logits).squeeze(1).topk(2).values
        new = made.sequences[0, ids.shape[1] :]
        cases.append(
            {
                "prompt": prompt,
                "prompt_ids": ids[0].tolist(),
                "continuation_ids": new.tolist(),
                "continuation": tokenizer.decode(new, skip_special_tokens=True),
                "smallest_margin": float((best[:, 0] - best[:, 1]).min()),
            }
        )
    text = json.dumps({"file": path.name, "cases": cases}, indent=1, ensure_ascii=False)
    (HERE / "smollm2.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    for name in MODELS:
        make_model(name)
    if len(sys.argv) > 1:
        make_smollm2(Path(sys.argv[1]))
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
