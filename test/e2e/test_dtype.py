"""Tensor types against other programs: decoders and reference encoders to the last bit against the package
gguf, encoders that search by their error against the package libgguf."""
import ctypes as C
import os
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="the package numpy is not installed (test/e2e/requirements.txt)")
gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (test/e2e/requirements.txt)")

ROOT = Path(__file__).resolve().parents[2]
SIZES = gguf.GGML_QUANT_SIZES
TYPES = list(gguf.GGMLQuantizationType)
DECODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
           "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
           "MXFP4", "NVFP4"]
REFERENCE = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
WEIGHTED = SEARCHED + ["Q4_0", "Q4_1", "Q5_0", "Q5_1"]


class Info(C.Structure):
    _fields_ = [("name", C.c_char_p), ("block_values", C.c_uint32), ("block_bytes", C.c_uint32),
                ("decode", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_size_t)),
                ("encode", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p))]


@pytest.fixture(scope="module")
def table():
    path = Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "test" / "libquern_testlib.so"
    if not path.is_file():
        pytest.fail(f"{path} is not there: make build")
    lib = C.CDLL(str(path))
    lib.dtype_get.restype = C.POINTER(Info)
    return lambda number: lib.dtype_get(number).contents if lib.dtype_get(number) else None


def qtype(name):
    return gguf.GGMLQuantizationType[name]


def decode(table, name, raw):
    """(rows, bytes) -> (rows, values)"""
    t = table(qtype(name).value)
    raw = np.ascontiguousarray(raw)
    out = np.empty((raw.shape[0], raw.shape[1] // t.block_bytes * t.block_values), np.float32)
    t.decode(raw.ctypes.data, out.ctypes.data, out.size)
    return out


def encode(table, name, x, importance=None):
    """(rows, values) -> (rows, bytes); importance is (values)"""
    t = table(qtype(name).value)
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty((x.shape[0], x.shape[1] // t.block_values * t.block_bytes), np.uint8)
    for row, to in zip(x, out):
        t.encode(row.ctypes.data, to.ctypes.data, row.size, None if importance is None else importance.ctypes.data)
    return out


def same_floats(a, b):
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


def test_every_type_is_in_the_table(table):
    for t in TYPES:
        ours = table(t.value)
        assert ours is not None and ours.name.decode() == t.name, t
        # The package has 40 bytes for Q8_1; files and kernels have a half where it has a float.
        size = (32, 36) if t.name == "Q8_1" else SIZES[t]
        assert (ours.block_values, ours.block_bytes) == size, t


def test_nothing_that_gguf_decodes_is_left_out():
    for t in TYPES:
        try:
            gguf.quants.dequantize(np.zeros((1, SIZES[t][1]), np.uint8), t)
        except NotImplementedError:
            continue
        assert t.name in DECODED


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", DECODED)
def test_decode(table, name):
    rng = np.random.default_rng(qtype(name).value)
    values, size = SIZES[qtype(name)]
    raw = rng.integers(0, 256, (max(3000, 65536 // values), size), dtype=np.uint8)
    raw[:64] = 0
    raw[64:128] = 255
    got, want = decode(table, name, raw), gguf.quants.dequantize(raw, qtype(name))
    bad = ~same_floats(got, want)
    assert not bad.any(), (got[bad][:4], want[bad][:4])
    assert np.isfinite(got).mean() > 0.5


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_decode_all_halves(table, name):
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    assert same_floats(decode(table, name, raw), gguf.quants.dequantize(raw, qtype(name))).all()


def odd_rows(rng):
    """Rows on which a rounding can go wrong, by what they are."""
    shape = (200, 256)
    normal = lambda: rng.standard_normal(shape)
    rows = {"normal": normal(), "heavy tails": rng.standard_t(2, shape), "zeros": np.zeros(shape),
            "ties": rng.integers(-16, 17, shape) / 2, "more ties": rng.integers(-127, 128, shape) / 4,
            "one value": np.repeat(rng.standard_normal((200, 1)), 256, 1), "minus zero": np.zeros(shape) * -1.0,
            "zeros of both signs": np.copysign(0.0, normal()), "mostly zero": np.where(rng.random(shape) < 0.02, normal(), 0),
            "huge": normal() * 1e38, "past half": normal() * 65504, "small": normal() * 1e-6, "tiny": normal() * 1e-38,
            "subnormal": normal() * 1e-41, "last bits": normal() * 1e-44, "spread": 10.0 ** rng.uniform(-45, 38, shape)}
    with np.errstate(all="ignore"):
        rows = {k: np.clip(v, -3.4e38, 3.4e38).astype(np.float32) for k, v in rows.items()}
    rows["any bits"] = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32).copy()
    rows["any bits"][np.isnan(rows["any bits"])] = 1
    infinite = normal().astype(np.float32)
    infinite[rng.random(shape) < 0.02] = np.inf
    infinite[rng.random(shape) < 0.02] = -np.inf
    return {**rows, "infinities": infinite}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", REFERENCE)
def test_reference_encoders(table, name):
    for what, x in odd_rows(np.random.default_rng(7)).items():
        got = encode(table, name, x)
        want = np.ascontiguousarray(gguf.quants.quantize(x, qtype(name))).view(np.uint8).reshape(got.shape)
        if what == "zeros of both signs":  # which of them is the least differs from one processor to the next
            got, want = (decode(table, name, raw) for raw in (got, want))
        wrong = np.flatnonzero((got != want).any(1))
        assert wrong.size == 0, (what, wrong[:4])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", REFERENCE)
def test_nan_stays_visible(table, name):
    x = np.random.default_rng(8).standard_normal((50, 256)).astype(np.float32)
    x[:, 37] = np.nan
    assert np.isnan(decode(table, name, encode(table, name, x))[:, 37]).all()


def samples(rng, n):
    shape = (32, n)
    return {"gaussian": rng.standard_normal(shape) * 0.02, "laplace": rng.laplace(size=shape),
            "heavy tails": rng.standard_t(3, shape) * 0.05, "outliers": rng.standard_t(1.5, shape),
            "sparse": rng.standard_normal(shape) * (rng.random(shape) < 0.1), "one-sided": rng.random(shape) + 0.5}


def rms(x, y, weight):
    return np.sqrt((weight * (x.astype(np.float64) - y) ** 2).mean())


@pytest.mark.parametrize("weights", ["none", "uniform", "wide"])
@pytest.mark.parametrize("name", WEIGHTED)
def test_error_not_above_libgguf(table, name, weights):
    libgguf = pytest.importorskip("libgguf",
                                  reason="the package libgguf is not installed (test/e2e/requirements.txt)")
    n = 1024
    rng = np.random.default_rng(qtype(name).value)
    w = {"none": None, "uniform": rng.random(n), "wide": np.exp(2 * rng.standard_normal(n))}[weights]
    w = None if w is None else w.astype(np.float32)
    if w is None and name not in SEARCHED:
        return  # the reference rounding, tested above
    for what, x in samples(rng, n).items():
        x = x.astype(np.float32)
        ours = decode(table, name, encode(table, name, x, w))
        theirs = decode(table, name, libgguf.quantize_rows(x, qtype(name).value, w))
        weight = 1 if w is None else w
        assert rms(x, ours, weight) <= rms(x, theirs, weight), (what, rms(x, ours, weight) / rms(x, theirs, weight))


def test_decode_q1_0(table):
    libgguf = pytest.importorskip("libgguf",
                                  reason="the package libgguf is not installed (test/e2e/requirements.txt)")
    raw = np.random.default_rng(1).integers(0, 256, (1000, 18), dtype=np.uint8)
    assert same_floats(decode(table, "Q1_0", raw), libgguf.dequantize_rows(raw, qtype("Q1_0").value)).all()
