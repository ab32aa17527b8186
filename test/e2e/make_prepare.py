"""Writes test/data/images/prepare.txt: what the transformers library's PIL processors make of images of odd sizes.

    python test/e2e/make_prepare.py     (transformers, without torchvision; Pillow; numpy)

One line a case: "NAME WIDTH HEIGHT TILES TILE_WIDTH TILE_HEIGHT COLUMNS ROWS SHA256" of all tiles' planes as 32-bit floats, or
"NAME WIDTH HEIGHT refused". The images are made by a formula, which test/model/preprocess.c has, too; that file also has the
settings of each name."""
import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

OUT = Path(__file__).resolve().parent.parent / "data" / "images" / "prepare.txt"
SIZES = [(1, 1), (1, 4000), (4000, 1), (5, 3), (56, 56), (112, 112), (150, 421), (640, 360), (333, 199), (1100, 900), (30, 200),
         (29, 31)]
HALF = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)


def picture(w, h):
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    return np.stack([(x * 7 + y * 3) ^ (x * y >> 4), x * x + y * 5 >> 3, x * 11 + y * y >> 2], -1).astype(np.uint8)


def planes(pixels):
    return [np.asarray(p, np.float32) for p in pixels], 0, 0


def gemma4(p, out):
    """Patches in rows, their colours innermost, padded: back to planes."""
    at = out["image_position_ids"][0]
    used = at[:, 0] >= 0
    cols, rows = at[used].max(0) + 1
    a = np.asarray(out["pixel_values"][0][used], np.float32).reshape(rows, cols, p.patch_size, p.patch_size, 3)
    return [a.transpose(4, 0, 2, 1, 3).reshape(3, rows * p.patch_size, cols * p.patch_size)], 0, 0


def qwen(p, out):
    """Patches in groups of merge x merge, each frame the same: back to planes."""
    _, rows, cols = out["image_grid_thw"][0]
    m, s = p.merge_size, p.patch_size
    a = np.asarray(out["pixel_values"], np.float32).reshape(rows // m, cols // m, m, m, 3, p.temporal_patch_size, s, s)
    assert (a == a[:, :, :, :, :, :1]).all()
    return [a[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * s, cols * s)], 0, 0


def idefics3(p, out):
    tiles = [np.asarray(t, np.float32) for t in out["pixel_values"][0]]
    return tiles, out["cols"][0][0], out["rows"][0][0]


def internvl(p, out):
    tiles = [np.asarray(t, np.float32) for t in out["pixel_values"]]
    return tiles, None, None


def pan(p, out):
    """The whole, then crops along the longer side."""
    tiles = [np.asarray(t, np.float32) for t in out["pixel_values"]]
    n = len(tiles) - 1
    return tiles, None if n else 0, n


def anyres(p, out):
    """The whole, then the tiles of the best of the sizes."""
    tiles = [np.asarray(t, np.float32) for t in out["pixel_values"][0]]
    high, wide = select_best_resolution(tuple(out["image_sizes"][0]), p.image_grid_pinpoints)
    return tiles, wide // 56, high // 56


def simple(p, out):
    return planes(out["pixel_values"])


PROCESSORS = {
    "gemma3": (Gemma3ImageProcessorPil(size={"height": 112, "width": 112}, **HALF), simple, {}),
    "gemma4": (Gemma4ImageProcessorPil(patch_size=16, max_soft_tokens=70, pooling_kernel_size=3), gemma4, {}),
    "qwen3": (Qwen2VLImageProcessorPil(size={"shortest_edge": 1024, "longest_edge": 200000}, patch_size=16, **HALF), qwen, {}),
    "qwen2": (Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 100352}), qwen, {}),
    "idefics3": (Idefics3ImageProcessorPil(size={"longest_edge": 224}, max_image_size={"longest_edge": 56}), idefics3,
                 {"return_row_col_info": True}),
    "unsplit": (Idefics3ImageProcessorPil(size={"longest_edge": 224}, max_image_size={"longest_edge": 56}), idefics3,
                {"return_row_col_info": True, "do_image_splitting": False}),
    "pixtral": (PixtralImageProcessorPil(size={"longest_edge": 224}, patch_size={"height": 28, "width": 28}), simple, {}),
    "llava": (CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}), simple, {}),
    "small": (CLIPImageProcessorPil(do_resize=False, crop_size={"height": 60, "width": 61}), simple, {}),
    "pan": (Gemma3ImageProcessorPil(size={"height": 112, "width": 112}, **HALF, do_pan_and_scan=True, pan_and_scan_min_crop_size=20,
                                    pan_and_scan_max_num_crops=4, pan_and_scan_min_ratio_to_activate=1.2), pan, {}),
    "square": (LlavaImageProcessorPil(size={"shortest_edge": 60}, crop_size={"height": 56, "width": 56}, do_pad=True), simple, {}),
    "both": (CLIPImageProcessorPil(size={"height": 56, "width": 84}, do_center_crop=False), simple, {}),
    "anyres": (LlavaNextImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=[
        [56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]), anyres, {}),
    "internvl": (GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=6), internvl, {}),
}


def line(name, w, h):
    p, read, options = PROCESSORS[name]
    try:
        tiles, cols, rows = read(p, p.preprocess(Image.fromarray(picture(w, h)), **options))
    except (ValueError, ZeroDivisionError):
        return f"{name} {w} {h} refused"
    if name == "small":  # a tower's patches of 14 do not see the rest
        tiles = [t[:, :56, :56] for t in tiles]
    if name == "pan":
        cols, rows = (rows, 1) if cols is None and w >= h else (min(1, rows), rows)
    if cols is None:
        n = len(tiles) - (len(tiles) > 1)
        cols = 0 if n == 1 else next(c for c in range(1, n + 1) if n % c == 0 and same(p, tiles, c, n // c, w, h))
        rows = 0 if n == 1 else n // cols
    sha = hashlib.sha256(b"".join(np.ascontiguousarray(t).tobytes() for t in tiles)).hexdigest()
    return f"{name} {w} {h} {len(tiles)} {tiles[0].shape[2]} {tiles[0].shape[1]} {cols} {rows} {sha}"


def same(p, tiles, cols, rows, w, h):
    """Are the tiles those of an image of cols x rows?"""
    a = np.asarray(Image.fromarray(picture(w, h)).resize((cols * 56, rows * 56), p.resample))
    want = p.normalize(p.rescale(a[:56, -56:].transpose(2, 0, 1), 1 / 255), p.image_mean, p.image_std)
    return np.array_equal(tiles[cols - 1], np.asarray(want, np.float32))


if __name__ == "__main__":
    OUT.write_text("\n".join(line(name, *size) for name in PROCESSORS for size in SIZES) + "\n")
