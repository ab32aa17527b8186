"""Draws models at random, saves them in the ways that folders have, and compares quern's answers with transformers'.

A table of families (vary_hybrids.py, vary_attention.py) gives the configurations. A seed draws a configuration, weights and how
they are saved: type, shards, experts in one tensor or one each, config.json as this version of transformers writes it, with the
keys of older files, or without the keys that have their default value. The folder, and the GGUF file that quern writes of it, are
held to the limits of the tests: 0.002 of the definition's logits and every best token with --exact, 0.1 and 95% of them by
default, 1e-4 between places where a prompt is cut. Needs torch and transformers.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import traceback
from collections import namedtuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from make_refs import fill

logging.set_verbosity_error()
logging.disable_progress_bar()
LINEAR, FULL = "linear_attention", "full_attention"

# families: names; draw: a class; build(kind, draw) gives a model; older(kind, config) changes config.json to older keys in place;
# before_save(kind, model)
Table = namedtuple("Table", "families draw build older before_save")


class Draw(random.Random):
    """What several families share."""

    def flip(self):
        return self.random() < 0.5

    def layers(self, n, kinds):
        """Patterns of every sort, those of one kind of layer among them."""
        only = self.choice(kinds) if self.random() < 0.2 else None
        return [only or self.choice(kinds) for _ in range(n)]

    def factor(self):
        return round(self.uniform(0.4, 1.7), 2)

    def base(self, width=(24, 32, 40, 64)):
        n = self.randint(1, 5)
        return dict(vocab_size=self.choice((64, 97)), hidden_size=self.choice(width), num_hidden_layers=n, bos_token_id=1,
                    eos_token_id=2, pad_token_id=0, tie_word_embeddings=self.flip())

    def attention(self, width=(24, 32, 40, 64), even=False):
        c = self.base(width)
        kv = self.choice((1, 2, 3)) if not even else self.choice((1, 2))
        heads = kv * self.choice((1, 2, 3)) if not even else kv * self.choice((1, 2))
        if even:
            c["hidden_size"] = heads * self.choice((4, 8, 12, 16))
        return dict(c, intermediate_size=self.choice((20, 24, 36)), num_attention_heads=heads, num_key_value_heads=kv,
                    max_position_embeddings=128)

    def rope(self, partial=None, scaled=True):
        kind = self.choice(("default", "default", "linear", "yarn", "llama3")) if scaled else "default"
        more = {"default": {}, "linear": dict(factor=self.choice((2.0, 4.0))),
                "yarn": dict(factor=4.0, original_max_position_embeddings=32),
                "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                               original_max_position_embeddings=32)}[kind]
        if partial:
            more["partial_rotary_factor"] = partial
        return {"rope_parameters": dict(rope_type=kind, rope_theta=self.choice((1e4, 5e5, 1e7)), **more)}

    def moe(self):
        n = self.choice((2, 3, 4, 6))
        return n, self.randint(1, n)


def older_rope(c):
    rope = c.get("rope_parameters")
    if not rope or "rope_type" not in rope or rope.get("rope_theta") is None:
        return
    c.pop("rope_parameters")
    rope = dict(rope)
    kind = rope.pop("rope_type")
    c["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    c["rope_scaling"] = {"type": kind, **rope} if kind != "default" or rope else None


def causal(kind, config):
    config = AutoConfig.for_model(kind, **config)
    config._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(config)


def configuration(c):
    """What transformers reads from these keys."""
    c = json.loads(json.dumps(c))
    try:
        said = AutoConfig.for_model(c.pop("model_type"), **c).to_dict()
    except Exception:
        return None
    return {k: v for k, v in said.items() if k not in ("rope_scaling", "torch_dtype", "dtype")}


def drop_defaults(c, r):
    """Files of the Hub do not have all keys: those that have the value of transformers' class may be absent."""
    said, defaults = configuration(c), type(AutoConfig.for_model(c["model_type"]))().to_dict()
    for key in list(c):
        if key in defaults and defaults[key] == c[key] and key not in ("model_type", "vocab_size") and r.flip():
            kept = c.pop(key)
            if configuration(c) != said:
                c[key] = kept


def save(table, kind, model, r, folder):
    table.before_save(kind, model)
    how = {"dtype": r.choice(("bfloat16", "float16", "float32")), "shards": r.flip(), "plain": r.flip(),
           "keys": r.choice(("as written", "older", "older", "few"))}
    model.to(getattr(torch, how["dtype"])).save_pretrained(
        folder, safe_serialization=True, save_original_format=not how["plain"],
        **({"max_shard_size": "20KB"} if how["shards"] else {}))
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        c = json.load(f)
    if how["keys"] == "older":
        written, text = json.loads(json.dumps(c)), c.get("text_config", c)
        older_rope(text)
        if "dtype" in text:
            text["torch_dtype"] = text.pop("dtype")
        if table.older(kind, text) and configuration(c) != configuration(written):
            c, how["keys"] = written, "as written"
    elif how["keys"] == "few":
        drop_defaults(c, r)
    how["own head"] = c.get("tie_word_embeddings") is False and r.random() < 0.2  # a head that is there counts
    if how["own head"]:
        c["tie_word_embeddings"] = True
    with open(path, "w") as f:
        json.dump(c, f)
    return how


def rows(model, ids):
    ids = torch.tensor([ids])
    with torch.no_grad():
        if predicts(model):
            return model(ids, use_cache=False).logits[0].float()
        return model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].float()


def predicts(model):
    return model.get_output_embeddings() is not None


def references(model, r, vocab):
    """None where rounding shows: the definition does not say more exactly what is right."""
    out, firm = [], True
    for n in (1, r.randint(2, 12), r.choice((33, 64, 100))):
        ids = [r.randrange(3, vocab) for _ in range(n)]
        want = rows(model, ids)
        best = want.topk(2).values
        out.append((ids, want, (best[:, 0] - best[:, 1]).tolist()))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 1e-7 * torch.randn(p.shape))
    for ids, want, _ in out:
        firm = firm and bool((rows(model, ids) - want).abs().max() < 2e-4)
    model.load_state_dict(weights)
    return out if firm else None


def logits(quern, model, ids, encoder, *flags):
    command = ["embed", "--pooling", "none", "--no-normalize", "--ctx", str(len(ids))] if encoder else ["logits"]
    done = subprocess.run([quern, *command, model, "--tokens", ",".join(map(str, ids)), "--json", *flags], capture_output=True,
                          text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"exit {done.returncode}")
    got = json.loads(done.stdout)
    return {"argmax": [max(range(len(row)), key=row.__getitem__) for row in got], "last": got[-1]} if encoder else got


def held(what, got, want, margins, most, share, bad):
    far = max(abs(a - float(b)) for a, b in zip(got["last"], want[-1]))
    best = want.argmax(-1).tolist()
    wrong = [i for i, (a, b) in enumerate(zip(got["argmax"], best)) if a != b and margins[i] > 2 * most]
    if not far <= most or len(wrong) > (1 - share) * len(best):
        bad.append(f"{what} ({len(best)} tokens): {far:.2g} away, {len(wrong)} other best tokens")


def compare(quern, folder, refs, r, encoder, rounds, bad):
    gguf = os.path.join(folder, "written.gguf")
    done = subprocess.run([quern, "quantize", folder, gguf, r.choice(("F32", "F16"))], capture_output=True, text=True)
    models = [("folder", folder)]
    if done.returncode:
        bad.append("quantize: " + done.stderr.strip())
    else:
        models.append(("gguf", gguf))
    for name, model in models:
        for ids, want, margins in refs:
            try:
                exact = logits(quern, model, ids, encoder, "--exact")
                held(name + " --exact", exact, want, margins, 2e-3, 1, bad)
                if rounds:
                    held(name, logits(quern, model, ids, encoder), want, margins, 0.1, 0.95, bad)
                for chunk in sorted({1, r.randint(1, len(ids))} if len(ids) > 1 and not encoder and name == "folder" else ()):
                    cut = logits(quern, model, ids, encoder, "--exact", "--chunk", str(chunk))
                    far = max(abs(a - b) for a, b in zip(cut["last"], exact["last"]))
                    if not far <= 1e-4 * max(1, *map(abs, exact["last"])) or cut["argmax"] != exact["argmax"] and min(margins) > 1e-3:
                        bad.append(f"{name} cut at {chunk}: {far:.2g} away")
            except RuntimeError as e:
                bad.append(f"{name}: {e}")
                break


def one(table, quern, kind, seed, keep):
    r = table.draw(f"{kind} {seed}")
    torch.manual_seed(seed)
    model = table.build(kind, r).float().eval()
    model.set_attn_implementation("eager")
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    with torch.no_grad():
        fill(model, torch.Generator().manual_seed(seed))
    folder = os.path.join(keep or tempfile.gettempdir(), f"{kind}-{seed}-{os.getpid()}")
    refs, bad = references(model, r, model.config.get_text_config().vocab_size), []
    if not refs:
        return None, []
    os.makedirs(folder)
    try:
        how = save(table, kind, model, r, folder)
    except Exception as e:
        shutil.rmtree(folder)
        return f"not saved: {e}"[:200], []
    rounds = not hasattr(model.config, "index_topk")  # rounding chooses other keys
    compare(quern, folder, refs, r, not predicts(model), rounds, bad)
    if not (bad and keep):
        shutil.rmtree(folder)
    return how, bad


def main(table):
    p = argparse.ArgumentParser()
    p.add_argument("quern")
    p.add_argument("--family", action="append")
    p.add_argument("--from", type=int, default=0, dest="first")
    p.add_argument("--count", type=int, default=10)
    p.add_argument("--keep")
    a = p.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for kind in a.family or table.families:
        good = refused = skipped = 0
        for seed in range(a.first, a.first + a.count):
            try:
                how, bad = one(table, a.quern, kind, seed, a.keep)
            except Exception:
                how, bad = None, []
                print(f"  {kind} {seed}: not made: {traceback.format_exc().strip().splitlines()[-1]}"[:220])
            if not isinstance(how, dict):
                skipped += 1
                if how:
                    print(f"  {kind} {seed}: {how}")
                continue
            if bad and all(" cannot " in line or " no form " in line for line in bad):
                refused += 1
                print(f"  {kind} {seed}: {bad[0]}", flush=True)
                continue
            good += not bad
            failed += bool(bad)
            for line in bad[:3]:
                print(f"  {kind} {seed}: {line}", flush=True)
            if bad:
                print(f"    {how}")
        print(f"{kind}: {good} of {a.count - skipped} agree, {refused} were refused, {skipped} could not be made", flush=True)
    return failed > 0
