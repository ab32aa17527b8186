#!/usr/bin/env python3
"""Adapters with random numbers for the tiny models of test/data/arch, with reference results from transformers and PEFT.

    make_lora.py OUT [--small] [NAME...]    --small: the cases that the repository keeps under test/data/lora

A folder holds what PEFT saves (adapter_config.json, adapter_model.safetensors) and ref.json: {"base": folder of
test/data/arch, "tokens", "last", "argmax"}, computed in float32 with eager attention.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ARCH = Path(__file__).resolve().parents[1] / "data" / "arch"
ALL = {"target_modules": "all-linear"}
EXPERTS = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}

# name: (base, PEFT's settings, kept in the repository)
CASES = {
    "llama": ("llama", dict(r=4, lora_alpha=12, **ALL), 1),
    "llama-q": ("llama", dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], use_rslora=True), 1),
    "llama-all": ("llama", dict(r=2, target_modules=["q_proj", "lm_head", "embed_tokens", "down_proj"],
                                rank_pattern={"q_proj": 5, "layers.1.mlp.down_proj": 3},
                                alpha_pattern={"q_proj": 11, r".*\.0\.mlp\.down_proj": 3.5}), 1),
    "llama-bias": ("llama", dict(r=2, lora_bias=True, target_modules=["q_proj", "k_proj", "up_proj"],
                                 layers_to_transform=[1]), 0),
    "phi3": ("phi3", dict(r=4, lora_alpha=8, **ALL), 1),
    "gpt2": ("gpt2", dict(r=3, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]), 1),
    "gemma2": ("gemma2", dict(r=3, target_modules=["q_proj", "embed_tokens", "gate_proj", "down_proj"]), 1),
    "gemma3": ("gemma3", dict(r=3, target_modules=["k_proj", "embed_tokens"]), 0),
    "neox": ("neox", dict(r=3, **ALL), 1),
    "falcon-40b": ("falcon-40b", dict(r=3, **ALL), 1),
    "falcon-7b": ("falcon-7b", dict(r=3, **ALL), 0),
    "qwen2-moe": ("qwen2-moe", dict(r=2, **ALL, **EXPERTS), 1),
    "mixtral": ("mixtral", dict(r=2, target_modules=["q_proj"], target_parameters=[
        "mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.gate.weight"]), 1),
    "gpt-oss": ("gpt-oss", dict(r=2, **ALL, **EXPERTS), 1),
    "granite-moe": ("granite-moe", dict(r=2, **ALL, **EXPERTS), 0),
    "deepseek-v2": ("deepseek-v2", dict(r=3, **ALL), 1),
    "deepseek-v3": ("deepseek-v3", dict(r=3, **ALL, **EXPERTS), 0),
    **{name: (name, dict(r=3, **ALL), 0) for name in (
        "mistral", "qwen2", "qwen3", "phi2", "olmo", "olmo2", "granite", "smollm3", "starcoder2", "stablelm", "cohere",
        "cohere2", "gemma", "stablelm-parallel", "phi3-long", "llama-yarn")},
    **{name: (name, dict(r=2, **ALL, **EXPERTS), 0) for name in ("qwen3-moe", "olmoe")},
}


def make(name, out):
    base, settings, _ = CASES[name]
    torch.manual_seed(len(name) * 131 + sum(map(ord, name)))
    model = AutoModelForCausalLM.from_pretrained(ARCH / base, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(**settings)).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_((0.15 * torch.randn(p.shape)).bfloat16().float())
        tokens = torch.randint(3, model.config.vocab_size, (21,))
        logits = model(tokens[None]).logits[0]
    model.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)
    config = json.loads((out / name / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (out / name / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    ref = {"base": base, "tokens": tokens.tolist(), "argmax": logits.argmax(-1).tolist(),
           "last": [round(v, 6) for v in logits[-1].tolist()]}
    (out / name / "ref.json").write_text(json.dumps(ref) + "\n")


def main():
    out, names = Path(sys.argv[1]), [a for a in sys.argv[2:] if not a.startswith("--")]
    for name in names or [n for n, c in CASES.items() if c[2] or "--small" not in sys.argv]:
        shutil.rmtree(out / name, ignore_errors=True)
        make(name, out)
        print(name)


main()
