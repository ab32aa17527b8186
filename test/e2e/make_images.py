"""Writes test/data/images: small images of every kind, and expect.txt: what PIL makes of them.

    python test/e2e/make_images.py      (Pillow; numpy)

expect.txt has one line a case: "decode FILE WIDTH HEIGHT SHA256", "resize FILE WIDTH HEIGHT FILTER SHA256" (of the RGB
bytes; transparent pixels on white, EXIF's orientation applied), or "bad FILE WORDS": it is refused, with these words."""
import hashlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

OUT = Path(__file__).resolve().parent.parent / "data" / "images"
rng = np.random.default_rng(21)


def picture(w, h, channels=3):
    """Smooth colours with some noise."""
    y, x = np.mgrid[0:h, 0:w]
    planes = [128 + 100 * np.sin(x / (5 + c) + c) * np.cos(y / (7 - c)) for c in range(channels)]
    a = np.stack(planes, -1) + rng.normal(0, 6, (h, w, channels))
    return np.clip(a, 0, 255).astype(np.uint8)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, depth, colour, rows, extra=b"", interlace=0):
    """A PNG by hand: the kinds that PIL does not write."""
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, interlace)) + extra +
            png_chunk(b"IDAT", zlib.compress(rows, 9)) + png_chunk(b"IEND", b""))


def adam7(a):
    """The rows of an image of (h, w, bytes) in Adam7's seven passes, filter 0."""
    out = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = a[y0::dy, x0::dx]
        if part.size:
            out += b"".join(b"\0" + row.tobytes() for row in part)
    return out


def plain(a):
    return b"".join(b"\0" + row.tobytes() for row in a)


def saved(image, kind, **how):
    b = io.BytesIO()
    image.save(b, kind, **how)
    return b.getvalue()


def exif(orientation):
    e = Image.Exif()
    e[0x112] = orientation
    return e


def files():
    rgb, rgba = Image.fromarray(picture(37, 23)), Image.fromarray(picture(37, 23, 4))
    yield "baseline.jpg", saved(rgb, "JPEG", quality=85)
    yield "chroma444.jpg", saved(rgb, "JPEG", quality=90, subsampling=0)
    yield "progressive.jpg", saved(rgb, "JPEG", quality=80, progressive=True)
    yield "grey.jpg", saved(rgb.convert("L"), "JPEG")
    yield "cmyk.jpg", saved(rgb.convert("CMYK"), "JPEG", quality=90)
    for o in range(1, 9):
        yield f"turned{o}.jpg", saved(Image.fromarray(picture(9, 5)), "JPEG", exif=exif(o), subsampling=0)
    yield "rgb.png", saved(rgb, "PNG")
    yield "rgba.png", saved(rgba, "PNG")
    yield "turned.png", saved(rgb.crop((0, 0, 9, 5)), "PNG", exif=exif(6))
    yield "grey.png", saved(rgb.convert("L"), "PNG")
    yield "grey-alpha.png", saved(rgba.convert("LA"), "PNG")
    yield "one-bit.png", saved(rgb.convert("1"), "PNG")
    yield "palette.png", saved(rgb.quantize(16), "PNG")
    yield "palette-clear.png", saved(rgb.quantize(8), "PNG", transparency=3)
    yield "rgb-clear.png", saved(Image.fromarray(picture(4, 4)), "PNG", transparency=tuple(map(int, picture(4, 4)[0, 0])))
    wide = rng.integers(0, 65536, (7, 11, 4)).astype(">u2")
    yield "rgb16.png", png(11, 7, 16, 2, plain(wide[:, :, :3].copy().view(np.uint8)))
    yield "rgba16.png", png(11, 7, 16, 6, plain(wide.copy().view(np.uint8)))
    yield "interlaced.png", png(37, 23, 8, 2, adam7(picture(37, 23)), interlace=1)
    yield "interlaced-alpha.png", png(13, 9, 8, 6, adam7(picture(13, 9, 4)), interlace=1)
    yield "interlaced-tiny.png", png(1, 2, 8, 2, adam7(picture(1, 2)), interlace=1)
    for bits in (2, 4):
        row = rng.integers(0, 256, (5, 6), dtype=np.uint8)
        yield f"grey{bits}.png", png(6 * 8 // bits, 5, bits, 0, plain(row))
    yield "lossy.webp", saved(rgb, "WEBP", quality=80)
    yield "lossless.webp", saved(rgb, "WEBP", lossless=True)
    yield "alpha.webp", saved(rgba, "WEBP", lossless=True, exact=True)
    yield "lossy-alpha.webp", saved(rgba, "WEBP", quality=80)
    yield "turned.webp", saved(rgb.crop((0, 0, 9, 5)), "WEBP", lossless=True, exif=exif(5))
    frames = [Image.fromarray(picture(20, 14, 4)) for _ in range(2)]
    yield "frames.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    yield "plain.gif", saved(rgb.quantize(200), "GIF")
    yield "interlaced.gif", saved(rgb.quantize(30), "GIF", interlace=1)
    yield "clear.gif", saved(rgb.quantize(8), "GIF", transparency=2)
    yield "frames.gif", saved(rgb.quantize(16), "GIF", save_all=True, append_images=[rgb.rotate(180).quantize(16)])
    noise = Image.fromarray(rng.integers(0, 256, (90, 90), dtype=np.uint8))
    yield "full-table.gif", saved(noise, "GIF")
    yield "one.png", saved(Image.fromarray(picture(1, 1)), "PNG")
    yield "line.png", saved(Image.fromarray(picture(1, 400)), "PNG")
    yield "small-frame.gif", small_frame()


def odd():
    """What is rarer, with a generator of its own: the files above stay as they are."""
    own = np.random.default_rng(22)
    a = np.clip(np.cumsum(own.normal(0, 9, (23, 37, 4)), 1) + 128, 0, 255).astype(np.uint8)
    rgb, rgba = Image.fromarray(a[:, :, :3].copy()), Image.fromarray(a)
    yield "moving.png", saved(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)], duration=100)
    yield "moving-later.png", saved(rgba, "PNG", save_all=True, default_image=True, append_images=[rgba.rotate(180)])
    yield "moving-lossy.webp", saved(rgba, "WEBP", save_all=True, append_images=[rgba.rotate(180)], quality=60)
    yield "grey-alpha16.png", png(11, 7, 16, 4, plain(own.integers(0, 65536, (7, 11, 2)).astype(">u2").view(np.uint8)))
    yield "palette4-clear.png", saved(rgb.quantize(16), "PNG", bits=4, transparency=bytes(own.integers(0, 255, 16, dtype=np.uint8)))
    yield "grey-clear.png", png(11, 7, 8, 0, plain(own.integers(0, 8, (7, 11), dtype=np.uint8)), png_chunk(b"tRNS", b"\0\3"))
    cmyk = saved(rgb.convert("CMYK"), "JPEG", quality=95)
    at = cmyk.index(b"Adobe")
    yield "ycck.jpg", cmyk[:at + 11] + b"\2" + cmyk[at + 12:]
    yield "cmyk-plain.jpg", cmyk[:at - 4] + cmyk[at + 12:]
    yield "restarts.jpg", saved(rgb, "JPEG", restart_marker_blocks=2, subsampling="4:2:2")
    yield "plain-rgb.jpg", saved(rgb, "JPEG", keep_rgb=True)
    yield "turned0.jpg", saved(rgb, "JPEG", exif=exif(0))
    for name in ("arithmetic.jpg", "arithmetic-progressive.jpg"):  # which PIL reads and does not write
        yield name, (OUT / name).read_bytes()


def small_frame():
    """A frame that covers a part of the screen, with a transparent colour; written by hand."""
    palette = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    codes, bits, out = [4, 0, 1, 4, 2, 3, 4, 1, 5], 0, 0
    for c in codes:
        out |= c << bits
        bits += 3
    data = out.to_bytes((bits + 7) // 8, "little")
    return (b"GIF89a" + struct.pack("<HHBBB", 5, 4, 0xf1, 0, 0) + palette + b"\x21\xf9\x04\x01\0\0\x02\0" +
            b"\x2c" + struct.pack("<HHHHB", 1, 1, 1, 5, 0) + b"\x02" + bytes([len(data)]) + data + b"\0;")


def bad():
    good = dict(files())
    for name in ("baseline.jpg", "progressive.jpg", "rgb.png", "interlaced.png", "lossy.webp", "lossless.webp", "plain.gif"):
        kind = name.split(".")[1]
        yield f"cut-{name.split('.')[0]}.{kind}", good[name][:len(good[name]) * 2 // 3], {
            "jpg": "JPEG: the file ends before the image does", "png": "PNG: the file ends before the image does",
            "webp": "WebP: ", "gif": "GIF: the file ends before the image does"}[kind]
    yield "bomb.png", png(60000, 60000, 1, 0, b"\0" * 100000), "60000 x 60000 pixels; at most"
    yield "bomb.webp", webp_bomb(), "16383 x 16383 pixels; at most"
    yield "bomb.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\x2c" + struct.pack(
        "<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x01\x00\x00;", "65535 x 65535 pixels; at most"
    yield "chunk.png", good["rgb.png"][:33] + b"\x5a\0\0\x1aeXIfMM\0*" + good["rgb.png"][33:], "PNG: the file ends before"
    yield "tiff.jpg", b"II*\0" + bytes(60), "no image that can be read"
    yield "words.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image that can be read"
    yield "empty.png", b"", "no image that can be read"
    yield "magic.jpg", b"\xff\xd8\xff", "JPEG: "
    yield "polyglot.png", b"\x89PNG\r\n\x1a\n" + good["plain.gif"], "PNG: "
    yield "polyglot.gif", b"GIF89a" + good["rgb.png"], "GIF: "
    yield "crc.png", good["rgb.png"][:60] + b"\x55" + good["rgb.png"][61:], "PNG: "


def webp_bomb():
    """A lossless header of 16,383 x 16,383 pixels."""
    bits = 0x2f | (16382 << 8) | (16382 << 22)
    data = bits.to_bytes(5, "little") + bytes(3)
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def decoded(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if "A" in image.mode or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.new("RGB", rgba.size, "white")
        image.paste(rgba, mask=rgba.getchannel("A"))
    return image.convert("RGB")


def sha(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, data in (*files(), *odd()):
        (OUT / name).write_bytes(data)
        image = decoded(data)
        lines.append(f"decode {name} {image.width} {image.height} {sha(image)}")
    for name in ("rgb.png", "one.png", "line.png"):
        image = decoded((OUT / name).read_bytes())
        for w, h in ((1, 1), (2, 3), (37, 5), (19, 23), (112, 84), (3, 200), (224, 224), (64, 1), (30, 8), (30, 10)):
            for f in range(6):
                lines.append(f"resize {name} {w} {h} {int(f)} {sha(image.resize((w, h), f))}")
    for name, data, words in bad():
        (OUT / ("bad-" + name)).write_bytes(data)
        lines.append(f"bad bad-{name} {words}")
    (OUT / "expect.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
