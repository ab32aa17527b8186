"""Makes tiny models that see with settings drawn at random, as make_towers.py makes those that are listed.

    python test/e2e/random_towers.py OUT [--count N] [--seed S] [FAMILY...]     (what make_towers.py needs)

Each folder has the same files, and in ref.json the SHA-256 of the processor's pixels. What transformers refuses is drawn
again. test_random_towers.py compares the folders with the program."""
import argparse
import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers as T
from PIL import Image

import make_prepare
from make_towers import (CLIP, HALF, HYBRID, MROPE, MROPE3, NEXT, SEES, TEXT, Gemma3, Gemma4, Idefics3, InternVL, Llava, LlavaNext, Pixtral, Qwen,
                         make)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

SIZES = [(1, 1), (1, 4000), (4000, 1), (3, 200), (200, 3), (70, 50), (41, 90), (128, 128), (250, 170), (131, 300), (17, 400), (640, 90),
         (55, 57), (2, 2), (333, 334)]
ACTS = ["gelu", "gelu_pytorch_tanh", "silu", "relu", "quick_gelu", "gelu_new"]


class Draw(random.Random):
    def some(self, **choices):
        """Each name with one of its values, or left out: then the library's default holds."""
        return {k: self.choice(v) for k, v in choices.items() if self.random() < 0.6}

    def tower(self, dims=(8, 12, 16, 20, 24, 36), layers=(1, 2, 3, 4)):
        heads = self.choice([1, 2, 3, 5])
        return dict(hidden_size=heads * self.choice(dims), intermediate_size=self.choice([24, 40, 48, 68]),
                    num_hidden_layers=self.choice(layers), num_attention_heads=heads)

    def colours(self):
        return self.choice([{}, HALF, dict(image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25]),
                            dict(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])])

    def steps(self):
        return self.some(resample=[0, 1, 2, 3, 4, 5]) if self.random() < 0.3 else {}

    def text(self, kinds=("llama", "qwen2", "mistral", "qwen3", "qwen3_moe", "phi3")):
        """A text model of some family. None that does more behind its last product: the classes of models that see leave that out."""
        kind, heads, dim = self.choice(kinds), self.choice([2, 4, 6]), self.choice([8, 16, 24])
        full = {**TEXT, "hidden_size": heads * dim, "num_attention_heads": heads, "num_key_value_heads": self.choice([1, 2, heads]) if heads % 2 == 0 else 1,
                "head_dim": dim, "tie_word_embeddings": self.random() < 0.4, "rms_norm_eps": self.choice([1e-5, 1e-6]),
                "num_hidden_layers": self.choice([1, 2, 3]),
                "rope_parameters": {"rope_type": "default", "rope_theta": self.choice([10000.0, 500000.0])}}
        more = {"mistral": dict(sliding_window=self.choice([None, 16])), "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1)}.get(kind, {})
        if kind in ("qwen2", "phi3"):
            full.pop("head_dim")
        config = T.AutoConfig.for_model(kind, **full, **more)
        config._attn_implementation = "eager"
        return config

    def sizes(self):
        return self.sample(SIZES, self.choice([2, 3]))


def llava(d):
    patch, side = d.choice([8, 14, 16]), d.choice([2, 3, 4, 5])
    see, size = {**d.tower(layers=(2, 3, 4)), "image_size": patch * side, "patch_size": patch, **d.some(hidden_act=ACTS, layer_norm_eps=[1e-5, 1e-6])}, patch * side
    siglip = d.random() < 0.4
    top = d.some(projector_hidden_act=ACTS, vision_feature_select_strategy=["default", "full"], multimodal_projector_bias=[True, False],
                 vision_feature_layer=[-1, -2, 1, [-1, 1], [-2, -1], 0])
    text = d.text()
    square = {"height": size, "width": size}
    ways = [lambda: CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size=square, **d.colours(), **d.steps()),
            lambda: CLIPImageProcessorPil(size={"shortest_edge": size + d.choice([1, 9])}, crop_size=square, **d.colours()),
            lambda: CLIPImageProcessorPil(size=square, do_center_crop=False, **d.colours(), **d.steps()),
            lambda: LlavaImageProcessorPil(size=square, do_center_crop=False, do_pad=d.random() < 0.7, **d.colours()),
            lambda: LlavaImageProcessorPil(size={"shortest_edge": size + 4}, crop_size=square, do_pad=True),
            lambda: SiglipImageProcessorPil(size=square, **d.colours())]
    vision = T.SiglipVisionConfig(**see, vision_use_head=False) if siglip else T.CLIPVisionConfig(**see, projection_dim=32)
    return Llava(vision=vision, processor=d.choice(ways)(), text=text, tie_word_embeddings=text.tie_word_embeddings, **top)


def llava_next(d):
    patch, side = d.choice([8, 14]), d.choice([2, 3, 4])
    size = patch * side
    see = {**d.tower(layers=(2, 3)), "image_size": size, "patch_size": patch}
    siglip = d.random() < 0.3
    pins = [[size * a, size * b] for a, b in d.sample([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (4, 1), (2, 3)], d.choice([1, 2, 4]))]
    way = d.choice([dict(size={"shortest_edge": size}, crop_size={"height": size, "width": size}),
                    dict(size={"height": size, "width": size}, crop_size={"height": size, "width": size}, do_center_crop=False)])
    text = d.text(("llama", "mistral", "qwen2"))
    top = d.some(projector_hidden_act=ACTS, multimodal_projector_bias=[True, False], vision_feature_layer=[-1, -2, 1, [-1, 1]])
    top["vision_feature_select_strategy"] = "full" if siglip else "default"
    vision = T.SiglipVisionConfig(**see, vision_use_head=False) if siglip else T.CLIPVisionConfig(**see, projection_dim=32)
    return LlavaNext(pins, {**way, **d.colours()}, vision, text, tie_word_embeddings=text.tie_word_embeddings, **top)


def gemma3(d):
    pool, side, patch = d.choice([1, 2, 3, 4]), d.choice([1, 2, 3]), d.choice([8, 14, 16])
    text = dict(tie_word_embeddings=d.random() < 0.7, **d.some(sliding_window=[8, 16, 40], num_hidden_layers=[2, 7],
                                                               attention_bias=[True], query_pre_attn_scalar=[8, 24], num_key_value_heads=[1, 4]))
    vision = {**d.tower(), "image_size": patch * side * pool, "patch_size": patch, **d.some(hidden_act=ACTS, layer_norm_eps=[1e-5, 1e-6])}
    pan = d.choice([{}, {}, dict(do_pan_and_scan=True, pan_and_scan_min_crop_size=d.choice([10, 20, 60]), pan_and_scan_max_num_crops=d.choice([2, 3, 5]),
                             pan_and_scan_min_ratio_to_activate=d.choice([1.1, 1.5]))])
    return Gemma3(text, vision, side * side, **pan, **d.colours(), **d.steps())


def gemma4(d):
    pool, patch, heads = d.choice([1, 2, 3, 4]), d.choice([8, 14, 16]), d.choice([2, 4, 6])
    vision = dict(num_attention_heads=heads, num_key_value_heads=d.choice([1, 2, heads]), head_dim=d.choice([8, 16, 24]), hidden_size=d.choice([32, 40, 48]),
                  intermediate_size=d.choice([24, 48]), num_hidden_layers=d.choice([1, 2, 3]), patch_size=patch, position_embedding_size=1200,
                  pooling_kernel_size=pool, **d.some(hidden_activation=ACTS, standardize=[True], rms_norm_eps=[1e-5], attention_bias=[True],
                                                     rope_parameters=[{"rope_type": "default", "rope_theta": 1000.0}]))
    text = dict(tie_word_embeddings=d.random() < 0.7, **d.some(use_bidirectional_attention=["vision", None], sliding_window=[8, 30], final_logit_softcapping=[30.0],
                                                               attention_k_eq_v=[True], num_hidden_layers=[3, 6], global_head_dim=[16, 32]))
    if d.random() < 0.3:
        text.update(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=24)
    if d.random() < 0.4:
        text.update(hidden_size_per_layer_input=16, num_hidden_layers=6, num_kv_shared_layers=d.choice([0, 3]), use_double_wide_mlp=d.random() < 0.5)
    return Gemma4(text, vision, clips=d.random() < 0.3, max_soft_tokens=d.choice([70, 140]), **d.steps())


def idefics3(d, smol=False):
    scale, side, patch = d.choice([1, 2, 3, 4]), d.choice([1, 2]), d.choice([8, 14, 16])
    text = d.text(("llama", "mistral", "qwen2") if not smol else ("llama",))
    vision = {**d.tower(), "image_size": patch * side * scale, "patch_size": patch, **d.some(hidden_act=ACTS, layer_norm_eps=[1e-5])}
    splits = d.random() < 0.6
    return Idefics3(smol, splits, vision["image_size"] * d.choice([1, 2, 3]), {**d.colours(), **d.steps()}, vision, text, scale_factor=scale,
                    tie_word_embeddings=text.tie_word_embeddings)


def smolvlm(d):
    return idefics3(d, True)


def pixtral_vision(d):
    see = d.tower((8, 12, 16, 24))
    patch = d.choice([8, 14, 16])
    see.update(head_dim=see["hidden_size"] // see["num_attention_heads"], patch_size=patch, image_size=patch * d.choice([6, 8, 12]),
               hidden_act=d.choice(["silu", "gelu", "gelu_pytorch_tanh"]))
    if d.random() < 0.5:
        see["rope_parameters"] = {"rope_type": "default", "rope_theta": d.choice([100.0, 5000.0])}
    return see


def mistral3(d):
    text = d.text(("mistral", "ministral3", "llama"))
    return Pixtral(d.choice([1, 2, 3]), False, pixtral_vision(d), text, {**d.colours(), **d.steps()}, tie_word_embeddings=text.tie_word_embeddings,
                   **d.some(projector_hidden_act=ACTS, multimodal_projector_bias=[True, False], vision_feature_layer=[-1, -2, 1]))


def pixtral(d):
    text = d.text(("mistral", "llama"))
    return Pixtral(1, True, pixtral_vision(d), text, {**d.colours(), **d.steps()}, tie_word_embeddings=text.tie_word_embeddings,
                   **d.some(projector_hidden_act=ACTS, multimodal_projector_bias=[True, False], vision_feature_layer=[-1, -2]))


def qwen_vision(d):
    see = d.tower((8, 12, 16, 24, 36))
    see = dict(depth=see["num_hidden_layers"], hidden_size=see["hidden_size"], intermediate_size=see["intermediate_size"], num_heads=see["num_attention_heads"],
               patch_size=d.choice([8, 14, 16]), spatial_merge_size=d.choice([1, 2, 2, 3]), temporal_patch_size=d.choice([2, 2, 1]))
    if d.random() < 0.3:
        see["hidden_act"] = d.choice(ACTS)
    return see


def qwen(d, kind, vision, text):
    unit = vision["patch_size"] * vision["spatial_merge_size"]
    least = d.choice([1, 4, 9]) * unit * unit
    return Qwen(kind, vision, text, vision["patch_size"], {"shortest_edge": least, "longest_edge": least * d.choice([4, 10, 30])},
                merge_size=vision["spatial_merge_size"], temporal_patch_size=vision["temporal_patch_size"], **d.colours(), **d.steps())


def qwen_text(d, base):
    heads = d.choice([2, 4])
    return {**base, "num_attention_heads": heads, "num_key_value_heads": d.choice([1, 2]), "num_hidden_layers": d.choice([2, 3, 4]), "hidden_size": 16 * heads,
            "tie_word_embeddings": d.random() < 0.4, "rms_norm_eps": d.choice([1e-5, 1e-6])}


def qwen2_vl(d):
    see, text = qwen_vision(d), qwen_text(d, {**NEXT, "rope_parameters": {**MROPE, **d.choice([{}, {"mrope_section": [4, 2, 2], "rope_theta": 1e6}])}})
    see.update(embed_dim=see.pop("hidden_size"), mlp_ratio=d.choice([2, 3]), hidden_size=text["hidden_size"])
    see.pop("intermediate_size")
    return qwen(d, "Qwen2VL", see, text)


def qwen2_5_vl(d):
    see, text = qwen_vision(d), qwen_text(d, {**NEXT, "rope_parameters": MROPE})
    unit = see["patch_size"] * see["spatial_merge_size"]
    see.update(fullatt_block_indexes=d.sample(range(see["depth"]), d.randint(0, see["depth"])), window_size=unit * d.choice([1, 2, 3, 5]) + d.choice([0, 0, 3]),
               out_hidden_size=text["hidden_size"])
    return qwen(d, "Qwen2_5_VL", see, text)


def qwen3_vl(d, moe=False):
    see, text = qwen_vision(d), qwen_text(d, {"rope_parameters": {**MROPE3, **d.choice([{}, {"mrope_section": [2, 3, 3]}, {"mrope_section": [6, 1, 1]}])}})
    if moe:
        text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1, **d.some(mlp_only_layers=[[0], []]))
    see.update(num_position_embeddings=d.choice([4, 16, 49]), out_hidden_size=text["hidden_size"],
               deepstack_visual_indexes=d.sample(range(see["depth"]), d.randint(0, min(see["depth"], text["num_hidden_layers"]))))
    if d.random() < 0.6:
        see["deepstack_visual_indexes"].sort()
    text.update(d.some(attention_bias=[True]))
    return qwen(d, "Qwen3VLMoe" if moe else "Qwen3VL", see, text)


def qwen3_vl_moe(d):
    return qwen3_vl(d, True)


def qwen3_5(d, moe=False):
    see, text = qwen_vision(d), qwen_text(d, {**HYBRID, "rope_parameters": {**HYBRID["rope_parameters"], **d.choice([{}, {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}])}})
    text.update(num_hidden_layers=4, linear_num_value_heads=d.choice([2, 4]))
    if moe:
        text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24)
    see.update(num_position_embeddings=d.choice([4, 16, 49]), out_hidden_size=text["hidden_size"])
    return qwen(d, "Qwen3_5Moe" if moe else "Qwen3_5", see, text)


def qwen3_5_moe(d):
    return qwen3_5(d, True)


def internvl(d):
    ratio, side, patch = d.choice([0.5, 0.5, 0.25, 1.0]), d.choice([1, 2, 3]), d.choice([8, 14])
    size = int(patch * side / ratio)
    vision = {**d.tower(), "image_size": [size, size], "patch_size": [patch, patch],
              **d.some(use_qk_norm=[True], attention_bias=[True], norm_type=["rms_norm"], use_mean_pooling=[False], layer_norm_eps=[1e-5], hidden_act=["gelu", "silu", "relu", "quick_gelu"])}
    text = d.text(("qwen2", "llama", "qwen3", "qwen3_moe"))
    return InternVL(vision, d.choice([1, 2, 4, 12]), ratio, text, {**d.colours(), **d.steps(), **d.some(min_patches=[1, 2])}, tie_word_embeddings=text.tie_word_embeddings,
                    **d.some(projector_hidden_act=ACTS, vision_feature_layer=[-1, -2, 1]))


FAMILIES = {f.__name__: f for f in (llava, llava_next, gemma3, gemma4, idefics3, smolvlm, mistral3, pixtral, qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe,
                                    qwen3_5, qwen3_5_moe, internvl)}


def digest(case, image):
    """SHA-256 of the tiles' planes."""
    p, out = case.processor, None
    if isinstance(case, Idefics3):
        tiles = make_prepare.idefics3(p, p.preprocess(image, return_row_col_info=True))[0]
    else:
        out = p.preprocess(image)
        way = {Gemma4: make_prepare.gemma4, Qwen: make_prepare.qwen}.get(type(case), make_prepare.simple)
        tiles = [np.asarray(t, np.float32) for t in out["pixel_values"][0]] if isinstance(case, LlavaNext) else way(p, out)[0]
    return hashlib.sha256(b"".join(np.ascontiguousarray(t).tobytes() for t in tiles)).hexdigest()


def accepted(case, size):
    try:
        case.pixels(Image.new("RGB", size))
        return True
    except (ValueError, ZeroDivisionError, RuntimeError):
        return False


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--count", type=int, default=3)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("families", nargs="*", default=list(FAMILIES))
    a = a.parse_intermixed_args()
    torch.set_num_threads(1)
    for name in a.families or FAMILIES:
        for i in range(a.seed, a.seed + a.count):
            for again in range(20):
                d = Draw(f"{name} {i} {again}")
                folder = Path(a.out) / f"{name}-{i}"
                try:
                    torch.manual_seed(i)
                    case = FAMILIES[name](d)
                    case.sizes = [s for s in d.sizes() if accepted(case, s)] or [(40, 30)]
                    case.sizes = case.sizes * 2 if len(case.sizes) < 2 else case.sizes
                    make(case, folder, i, False)
                    ref = json.loads((folder / "ref.json").read_text())
                    for image in ref["images"]:
                        image["pixels"] = digest(case, Image.open(folder / image["file"]))
                    (folder / "ref.json").write_text(json.dumps(ref))
                    break
                except Exception as e:
                    print("  drawn again:", name, i, type(e).__name__, str(e).splitlines()[0][:140], flush=True)
                    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
