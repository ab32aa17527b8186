"""Makes tiny models that see, with random weights, and what the transformers library gives for them: folders as those in
test/data/vision (config.json, model.safetensors, preprocessor_config.json, images, ref.json).

    python test/e2e/make_towers.py OUT [NAME...]     (torch, transformers, Pillow, numpy)

Weights are exact in bf16, the arithmetic is F32. The tokenizer is test/data/vision/tokenizer.json. `--f32` keeps weights as
F32, which converters to GGUF take as they are."""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers as T
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

VOCAB = Path(__file__).resolve().parent.parent / "data" / "vision" / "tokenizer.json"
HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
TEXT = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            vocab_size=320, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-6,
            tie_word_embeddings=False)
SEES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
CLIP = {**SEES, "num_hidden_layers": 3, "image_size": 56, "patch_size": 14}
QWEN = dict(depth=3, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=14, spatial_merge_size=2)
BREAK, END = 311, 312  # [IMG_BREAK], [IMG_END]


def picture(seed, w, h):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w]
    waves = [np.sin(x * rng.uniform(.02, .3) + y * rng.uniform(.02, .3) + rng.uniform(0, 6)) for _ in range(3)]
    return Image.fromarray(np.clip(127 + 90 * np.stack(waves, -1) + rng.normal(0, 12, (h, w, 3)), 0, 255).astype(np.uint8))


class Case:
    """One model: how it is made, prepared and asked. A family says what differs."""
    sizes = [(70, 50), (41, 90)]
    image_id, begin, end = 309, [], []
    kinds = False  # mm_token_type_ids
    model = processor = None

    def pixels(self, image):
        return dict(self.processor(images=[image], return_tensors="pt"))

    def rows(self, given):
        out = self.model.get_image_features(**given)
        out = getattr(out, "pooler_output", out)
        return torch.cat([o.reshape(-1, o.shape[-1]) for o in out]) if isinstance(out, (list, tuple)) else out.reshape(-1, out.shape[-1])

    def tokens(self, given, n):
        return self.begin + [self.image_id] * n + self.end

    def ask(self, ids, given):
        more = {k: torch.cat([g[k] for g in given]) for k in (given[0] if given else {})}
        if self.kinds:
            more[self.kinds] = torch.tensor([[int(i == self.image_id) for i in ids]])
        return self.model(input_ids=torch.tensor([ids]), **more).logits[0]


class Llava(Case):
    def __init__(self, vision=None, processor=None, text=None, **top):
        vision = vision or T.CLIPVisionConfig(**CLIP, projection_dim=32)
        self.model = T.LlavaForConditionalGeneration(T.LlavaConfig(
            vision_config=vision, text_config=text or T.LlamaConfig(**TEXT), image_token_index=309, **top))
        self.processor = processor or CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})


class LlavaNext(Case):
    sizes = [(70, 50), (41, 90), (200, 60)]

    def __init__(self, pins, processor=None, vision=None, text=None, **top):
        self.model = T.LlavaNextForConditionalGeneration(T.LlavaNextConfig(
            vision_config=vision or T.CLIPVisionConfig(**CLIP, projection_dim=32), text_config=text or T.LlamaConfig(**TEXT),
            image_token_index=309, image_grid_pinpoints=pins, **top))
        self.processor = LlavaNextImageProcessorPil(**(processor or dict(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})),
                                                    image_grid_pinpoints=pins)

    def ask(self, ids, given):
        most = max((g["pixel_values"].shape[1] for g in given), default=0)
        pad = [torch.nn.functional.pad(g["pixel_values"], (0, 0) * 3 + (0, most - g["pixel_values"].shape[1])) for g in given]
        more = dict(pixel_values=torch.cat(pad), image_sizes=torch.cat([g["image_sizes"] for g in given])) if given else {}
        return self.model(input_ids=torch.tensor([ids]), **more).logits[0]


class Gemma3(Case):
    image_id, begin, end, kinds = 306, [319, 304], [305, 319], "token_type_ids"

    def __init__(self, text={}, vision={}, tokens=4, **processor):
        full = {**TEXT, "num_hidden_layers": 6, "sliding_window": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True, **text}
        see = {**SEES, "image_size": 112, "patch_size": 14, "vision_use_head": False, **vision}
        self.each = tokens
        self.model = T.Gemma3ForConditionalGeneration(T.Gemma3Config(
            vision_config=T.SiglipVisionConfig(**see), text_config=T.Gemma3TextConfig(**full), mm_tokens_per_image=tokens,
            boi_token_index=304, eoi_token_index=305, image_token_index=306, tie_word_embeddings=full["tie_word_embeddings"]))
        self.processor = Gemma3ImageProcessorPil(size={"height": see["image_size"], "width": see["image_size"]}, **{**HALF, **processor})

    def pixels(self, image):
        given = super().pixels(image)
        given.pop("num_crops", None)
        return given

    def tokens(self, given, n):
        return [t for _ in range(n // self.each) for t in super(Gemma3, self).tokens(given, self.each)]


class Gemma4(Case):
    image_id, begin, end, kinds = 306, [304], [305], "mm_token_type_ids"

    def __init__(self, text={}, vision={}, clips=False, **processor):
        full = {**TEXT, "num_hidden_layers": 6, "sliding_window": 16, "tie_word_embeddings": True, "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 320, "attention_k_eq_v": False, "global_head_dim": 16, **text}
        see = {**SEES, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 16, "position_embedding_size": 64, **vision}
        self.model = T.Gemma4ForConditionalGeneration(T.Gemma4Config(
            text_config=T.Gemma4TextConfig(**full), vision_config=T.Gemma4VisionConfig(**see, use_clipped_linears=clips), audio_config=None,
            boi_token_id=304, eoi_token_id=305, image_token_id=306, video_token_id=307, audio_token_id=308,
            tie_word_embeddings=full["tie_word_embeddings"]))
        self.processor = Gemma4ImageProcessorPil(patch_size=see["patch_size"], pooling_kernel_size=see.get("pooling_kernel_size", 3),
                                                 **{"max_soft_tokens": 70, **processor})

    def pixels(self, image):
        given = super().pixels(image)
        return {k: torch.as_tensor(given[k]) for k in ("pixel_values", "image_position_ids")}


class Idefics3(Case):
    def __init__(self, smol=False, splits=False, longest=56, processor=None, vision={}, text=None, **top):
        kind = (T.SmolVLMForConditionalGeneration, T.SmolVLMConfig, T.SmolVLMVisionConfig) if smol else (
            T.Idefics3ForConditionalGeneration, T.Idefics3Config, T.Idefics3VisionConfig)
        from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
        from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
        see = {**SEES, "image_size": 56, "patch_size": 14, **vision}
        self.model = kind[0](kind[1](vision_config=(SmolVLMVisionConfig if smol else Idefics3VisionConfig)(**see),
                                     text_config=text or T.LlamaConfig(**TEXT), image_token_id=309, **{"scale_factor": 2, **top}))
        self.processor = (SmolVLMImageProcessorPil if smol else Idefics3ImageProcessorPil)(
            size={"longest_edge": longest}, max_image_size={"longest_edge": see["image_size"]}, do_image_splitting=splits,
            **{**HALF, **(processor or {})})

    def pixels(self, image):
        out = self.processor(images=[[image]], return_tensors="pt", return_row_col_info=True)
        self.grid = out["rows"][0][0], out["cols"][0][0]
        return {k: out[k] for k in ("pixel_values", "pixel_attention_mask")}

    def tokens(self, given, n):
        each, (rows, cols) = n // given["pixel_values"].shape[1], given["grid"]
        line = []
        for _ in range(rows):
            for _ in range(cols):
                line += [307] + [self.image_id] * each
            line += [13]
        return line + [307, 308] + [self.image_id] * each + [307]

    def ask(self, ids, given):
        more = {}
        if given:
            pixels = torch.cat([g["pixel_values"][0] for g in given])[None]
            mask = torch.cat([g["pixel_attention_mask"][0] for g in given])[None]
            more = dict(pixel_values=pixels, pixel_attention_mask=mask)
        return self.model(input_ids=torch.tensor([ids]), **more).logits[0]


class Pixtral(Case):
    image_id = 310

    def __init__(self, merge=2, llava=False, vision={}, text=None, processor={}, **top):
        see = {**SEES, "num_hidden_layers": 3, "head_dim": 16, "image_size": 112, "patch_size": 14, "hidden_act": "silu", **vision}
        vision = T.PixtralVisionConfig(**see)
        text = text or T.MistralConfig(**TEXT, sliding_window=None)
        if llava:
            self.model = T.LlavaForConditionalGeneration(T.LlavaConfig(
                vision_config=vision, text_config=text, image_token_index=310,
                **{"vision_feature_layer": -1, "vision_feature_select_strategy": "full", **top}))
        else:
            self.model = T.Mistral3ForConditionalGeneration(T.Mistral3Config(
                vision_config=vision, text_config=text, image_token_index=310, spatial_merge_size=merge, **top))
        self.unit = see["patch_size"] * (1 if llava else merge)
        self.processor = PixtralImageProcessorPil(**{"size": {"longest_edge": see["image_size"]}, **processor},
                                                  patch_size={"height": self.unit, "width": self.unit})

    def pixels(self, image):
        given = super().pixels(image)
        given["image_sizes"] = torch.as_tensor(np.array(given["image_sizes"]))
        h, w = given["image_sizes"][0].tolist()
        given["pixel_values"] = given["pixel_values"][:, :, :h, :w]
        return given

    def tokens(self, given, n):
        cols = int(given["image_sizes"][0][1]) // self.unit
        out = []
        for i in range(n // cols):
            out += [310] * cols + [BREAK if (i + 1) * cols < n else END]
        return out

    def ask(self, ids, given):
        most = [max((g["pixel_values"].shape[i] for g in given), default=0) for i in (2, 3)]
        pad = [torch.nn.functional.pad(g["pixel_values"], (0, most[1] - g["pixel_values"].shape[3], 0, most[0] - g["pixel_values"].shape[2]))
               for g in given]
        more = dict(pixel_values=torch.cat(pad), image_sizes=torch.cat([g["image_sizes"] for g in given])) if given else {}
        return self.model(input_ids=torch.tensor([ids]), **more).logits[0]


class Qwen(Case):
    sizes = [(250, 170), (131, 300)]
    image_id, begin, end, kinds = 302, [300], [301], "mm_token_type_ids"

    def __init__(self, kind, vision, text, patch=14, size=None, **processor):
        ids = dict(image_token_id=302, video_token_id=303, vision_start_token_id=300, vision_end_token_id=301)
        config = getattr(T, kind + "Config")
        self.model = getattr(T, kind + "ForConditionalGeneration")(config(
            vision_config=vision, text_config={**TEXT, **text}, **ids, tie_word_embeddings=text.get("tie_word_embeddings", False)))
        self.processor = Qwen2VLImageProcessorPil(size=size or {"shortest_edge": 6272, "longest_edge": 100352}, patch_size=patch, **processor)


class InternVL(Case):
    image_id, begin, end = 315, [313], [314]

    def __init__(self, vision={}, tiles=1, ratio=0.5, text=None, processor={}, **top):
        see = T.InternVLVisionConfig(**{**SEES, "image_size": [56, 56], "patch_size": [14, 14], **vision})
        self.model = T.InternVLForConditionalGeneration(T.InternVLConfig(
            vision_config=see, text_config=text or T.Qwen2Config(**{k: v for k, v in TEXT.items() if k != "head_dim"}), image_token_id=315,
            downsample_ratio=ratio, **top))
        self.processor = GotOcr2ImageProcessorPil(**{
            "size": dict(zip(("height", "width"), see.image_size)), "crop_to_patches": tiles > 1, "max_patches": tiles,
            "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], **processor})

    def pixels(self, image):
        return {"pixel_values": super().pixels(image)["pixel_values"]}


MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
MROPE3 = {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
SIGLIP = dict(vision=T.SiglipVisionConfig(**SEES, image_size=56, patch_size=14, vision_use_head=False),
              processor=SiglipImageProcessorPil(size={"height": 56, "width": 56}))
QWEN3 = {**QWEN, "patch_size": 16, "num_position_embeddings": 16, "out_hidden_size": 64, "hidden_act": "gelu_pytorch_tanh"}
NEXT = {k: v for k, v in TEXT.items() if k != "head_dim"}
HYBRID = dict(head_dim=16, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
              linear_value_head_dim=16, rope_parameters={**MROPE3, "partial_rotary_factor": 1.0})

MODELS = {
    "llava": lambda: Llava(),
    "llava_pad": lambda: Llava(processor=LlavaImageProcessorPil(do_pad=True, size={"height": 56, "width": 56}, do_center_crop=False)),
    "llava_pad_crop": lambda: Llava(processor=LlavaImageProcessorPil(do_pad=True, size={"shortest_edge": 60}, crop_size={"height": 56, "width": 56})),
    "llava_full": lambda: Llava(vision_feature_select_strategy="full", vision_feature_layer=-1),
    "llava_layers": lambda: Llava(vision_feature_layer=[-3, -1, 1]),
    "llava_siglip": lambda: Llava(**SIGLIP, vision_feature_select_strategy="full", vision_feature_layer=-1),
    "llava_siglip_default": lambda: Llava(**SIGLIP, multimodal_projector_bias=False),
    "llava_next": lambda: LlavaNext([[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]),
    "llava_next_full": lambda: LlavaNext([[56, 112], [112, 112]], vision=SIGLIP["vision"], vision_feature_select_strategy="full"),
    "llava_next_square": lambda: LlavaNext([[112, 112]], dict(size={"height": 56, "width": 56}, crop_size={"height": 56, "width": 56})),
    "gemma3_vl": lambda: Gemma3(),
    "gemma3_pan": lambda: Gemma3(do_pan_and_scan=True, pan_and_scan_min_crop_size=20, pan_and_scan_max_num_crops=4,
                                 pan_and_scan_min_ratio_to_activate=1.2),
    "gemma4_vl": lambda: Gemma4(),
    "gemma4_vl_std": lambda: Gemma4(text=dict(use_bidirectional_attention="vision"), vision=dict(standardize=True)),
    "gemma4_clip": lambda: Gemma4(clips=True),
    "gemma4_groups": lambda: Gemma4(vision=dict(num_attention_heads=4, num_key_value_heads=2, pooling_kernel_size=2), max_soft_tokens=140),
    "idefics3": lambda: Idefics3(),
    "idefics3_split": lambda: Idefics3(splits=True, longest=168),
    "smolvlm": lambda: Idefics3(smol=True),
    "smolvlm_split": lambda: Idefics3(smol=True, splits=True, longest=112, scale_factor=4),
    "mistral3_vl": lambda: Pixtral(),
    "mistral3_bias": lambda: Pixtral(merge=1, multimodal_projector_bias=True),
    "mistral3_layer": lambda: Pixtral(vision_feature_layer=-2),
    "pixtral": lambda: Pixtral(llava=True),
    "qwen2_vl": lambda: Qwen("Qwen2VL", dict(depth=3, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=14),
                             {**NEXT, "rope_parameters": MROPE}),
    "qwen2_5_vl": lambda: Qwen("Qwen2_5_VL", {**QWEN, "fullatt_block_indexes": [1], "window_size": 112, "out_hidden_size": 64},
                               {**NEXT, "rope_parameters": MROPE}),
    "qwen3_vl": lambda: Qwen("Qwen3VL", {**QWEN3, "deepstack_visual_indexes": [0, 1]}, {"rope_parameters": MROPE3, "num_hidden_layers": 3},
                             16, **HALF),
    "qwen3_5_vl": lambda: Qwen("Qwen3_5", QWEN3, HYBRID, 16, **HALF),
    "internvl": lambda: InternVL(),
    "internvl_tiles": lambda: InternVL(tiles=6, vision=dict(use_qk_norm=True, attention_bias=True, norm_type="rms_norm")),
    "internvl_layer": lambda: InternVL(tiles=3, vision_feature_layer=-2, vision=dict(attention_bias=True, use_mean_pooling=False)),
}


def fill(model, seed):
    """Random weights: matrices so that rows keep their size, vectors of norms around 1."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        saved = model.state_dict()
        for name, p in list(model.named_parameters()) + [b for b in model.named_buffers() if b[0] in saved]:
            r = torch.randn(p.shape, generator=g)
            if name.endswith(("_min", "_max")):  # clips: near enough to matter
                p.fill_((-1 if name.endswith("min") else 1) * (1.2 + 0.4 * float(torch.rand((), generator=g))))
            elif p.dim() > 1:
                fan = p[0].numel() if "embed" not in name or "patch" in name else p.shape[-1] if "position" in name else 1
                p.copy_(r * (1.4 / fan**0.5 if fan > 1 else 0.5))
            else:
                p.copy_(1 + 0.2 * r if "norm" in name.lower() and name.endswith("weight") or any(w in name for w in ("std_scale", "lambda", "scalar")) else 0.1 * r)
            p.copy_(p.to(torch.bfloat16).float())


def make(case, folder, seed, f32):
    """The folder of a case: its model, images, and what it gives for them."""
    case.model.float().eval()
    fill(case.model, 100 + seed)
    folder.mkdir(parents=True, exist_ok=True)
    images, given = [], []
    for i, size in enumerate(case.sizes):
        picture(10 * seed + i, *size).save(folder / f"image{i}.png")
        g = case.pixels(Image.open(folder / f"image{i}.png"))
        with torch.no_grad():
            rows = case.rows(g)
        given.append({**g, **({"grid": case.grid} if hasattr(case, "grid") else {})})
        images.append({"file": f"image{i}.png", "features": {"rows": [[round(float(x), 5) for x in r] for r in rows]}})
    cases = []
    for used in [[0], [1, 0], [len(given) - 1]]:
        ids = [46, 81, 81]
        for i in used:
            ids += case.tokens(given[i], len(images[i]["features"]["rows"])) + [60 + i, 70, 75]
        with torch.no_grad():
            logits = case.ask(ids, [{k: v for k, v in given[i].items() if k != "grid"} for i in used])
        best = logits.topk(2).values
        cases.append({"images": used, "tokens": ids, "last_logits": [round(float(x), 5) for x in logits[-1]],
                      "argmax": logits.argmax(-1).tolist(), "min_margin": round(float((best[:, 0] - best[:, 1]).min()), 6)})
    case.model.to(torch.float32 if f32 else torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    case.processor.save_pretrained(folder)
    if f32:
        (folder / "tokenizer.json").write_bytes(VOCAB.read_bytes())
    (folder / "ref.json").write_text(json.dumps({"images": images, "cases": cases}))
    print(folder.name, [len(i["features"]["rows"]) for i in images], [len(c["tokens"]) for c in cases], flush=True)


def main(out, names, f32):
    for at, (name, how) in enumerate(MODELS.items()):
        if not names or name in names:
            torch.manual_seed(at)
            make(how(), Path(out) / name, at, f32)


if __name__ == "__main__":
    rest = [a for a in sys.argv[1:] if a != "--f32"]
    torch.set_num_threads(1)
    main(rest[0], rest[1:], "--f32" in sys.argv)
