"""The constraints of src/lang through their C interface, and vocabularies to walk them with."""
import ctypes as C
import json
import os
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TEXT, END, NEVER = 0, 1, 2


class Err(C.Structure):
    _fields_ = [("code", C.c_int), ("crowded", C.c_bool), ("text", C.c_char * 768)]  # struct err


BYTES = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_int32, C.POINTER(C.c_size_t))
KIND = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int32)


class Source(C.Structure):
    _fields_ = [("count", C.c_int32), ("of", C.c_void_p), ("bytes", BYTES), ("kind", KIND)]


class Refused(Exception):
    pass


def load():
    path = Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "test" / "libquern_testlang.so"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: make build")
    lib = C.CDLL(str(path))
    for name in ("from_gbnf", "from_schema", "from_json_object", "from_regex", "from_choices", "vocab_open", "bind",
                 "state_open", "state_clone"):
        getattr(lib, "constraint_" + name).restype = C.c_void_p
    lib.constraint_forced.restype = C.c_size_t
    lib.constraint_accepts_end.restype = C.c_bool
    return lib


lib = load()
jansson = C.CDLL("libjansson.so.4")
jansson.json_loadb.restype = C.c_void_p


class Vocab:
    """tokens: bytes of each id, None for a control token; ends: ids that end a generation."""

    def __init__(self, tokens, ends):
        self.tokens, self.ends = tokens, set(ends)
        keep = [C.create_string_buffer(t or b"", len(t or b"")) for t in tokens]

        def get(_, i, n):
            n[0] = len(tokens[i] or b"")
            return C.addressof(keep[i])

        def kind(_, i):
            return END if i in self.ends else NEVER if tokens[i] is None else TEXT

        e = Err()
        source = Source(len(tokens), None, BYTES(get), KIND(kind))
        self.at = lib.constraint_vocab_open(C.byref(source), C.byref(e))
        if not self.at:
            raise Refused(e.text.decode())
        self.words = (len(tokens) + 31) // 32


def byte_vocab():
    """Every byte, and what JSON is made of: small, so that tests are quick."""
    pieces = ['"', '":', '": ', '",', '", "', '{"', '"}', '"]', '},', '[]', '{}', "true", "false", "null", ": ", ", ", "  ",
              "\n  ", "the", " the", "name", "abc", "é", "日本", "\\n", "\\u00", "12", "100", "0.5", "-1", "e+1", 'a"', 'x":"',
              "2024", "-0", "T1", "Z", "@", ".com", "://", "::", "1.", ".1", "a@b.c", '{"a', "red", "green", " 1", "]]", "[["]
    tokens = [bytes([i]) for i in range(256)] + [p.encode() for p in pieces] + [None, None]
    return Vocab(tokens, [len(tokens) - 2])


def gguf_vocab(path):
    """The vocabulary of a model with a byte-level BPE tokenizer, or SentencePiece's."""
    import gguf
    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields["tokenizer.ggml." + name]
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    back = {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in kept)}
    types = field("token_type").contents()
    if field("model").contents() == "llama":  # 6: a byte, written <0x0A>
        tokens = [bytes([int(t[3:5], 16)]) if k == 6 else t.replace("\u2581", " ").encode() if k == 1 else None
                  for t, k in zip(field("tokens").contents(), types)]
    else:
        tokens = [bytes(back[c] for c in t) if k == 1 else None for t, k in zip(field("tokens").contents(), types)]
    return Vocab(tokens, [field("eos_token_id").contents()])


class Constraint:
    def __init__(self, kind, value, vocab, memory=0):
        e = Err()
        self.c = self.bound = None
        if kind == "schema":
            text = (value if isinstance(value, str) else json.dumps(value)).encode()
            error = C.create_string_buffer(1024)
            tree = jansson.json_loadb(text, C.c_size_t(len(text)), 4, error)
            if not tree:
                raise Refused("not JSON")
            self.c = lib.constraint_from_schema(C.c_void_p(tree), C.byref(e))
        elif kind == "object":
            self.c = lib.constraint_from_json_object(C.byref(e))
        elif kind == "choices":
            texts = (C.c_char_p * len(value))(*[v.encode() for v in value])
            self.c = lib.constraint_from_choices(texts, C.c_size_t(len(value)), C.byref(e))
        else:
            text = value.encode()
            make = lib.constraint_from_gbnf if kind == "gbnf" else lib.constraint_from_regex
            self.c = make(text, C.c_size_t(len(text)), C.byref(e))
        if not self.c:
            assert e.code and e.text
            raise Refused(e.text.decode(errors="replace"))
        self.vocab = vocab
        self.bound = lib.constraint_bind(C.c_void_p(self.c), C.c_void_p(vocab.at), C.c_size_t(memory), C.byref(e))
        if not self.bound:
            lib.constraint_free(C.c_void_p(self.c))
            raise Refused(e.text.decode())

    def warm(self):
        lib.constraint_warm(C.c_void_p(self.bound))

    def close(self):
        lib.constraint_unbind(C.c_void_p(self.bound))
        lib.constraint_free(C.c_void_p(self.c))

    def state(self):
        return State(self)

    def accepts(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        s = self.state()
        try:
            return s.feed(data) and s.may_end()
        finally:
            s.close()

    def walk(self, rng, most=150):
        """A text made of tokens drawn evenly from those that are allowed; None when it does not end. Once it is long,
        an end is taken where it may be."""
        s, out = self.state(), b""
        try:
            for step in range(most):
                token = s.draw(rng)
                if s.may_end() and (token in self.vocab.ends or rng.random() < 0.3 or step > most // 4):
                    return out
                assert s.take(token), (out, self.vocab.tokens[token])
                out += self.vocab.tokens[token]
            return None
        finally:
            s.close()


class State:
    def __init__(self, constraint):
        e = Err()
        self.vocab = constraint.vocab
        self.at = C.c_void_p(lib.constraint_state_open(C.c_void_p(constraint.bound), C.byref(e)))
        self.mask = (C.c_uint32 * self.vocab.words)()

    def close(self):
        lib.constraint_state_close(self.at)

    def allowed(self):
        e = Err()
        if lib.constraint_mask(self.at, self.mask, C.byref(e)):
            raise Refused(e.text.decode())
        return np.flatnonzero(np.unpackbits(np.frombuffer(self.mask, np.uint8), bitorder="little")).tolist()

    def draw(self, rng):
        """One of the allowed tokens, each as likely as the others."""
        e = Err()
        if lib.constraint_mask(self.at, self.mask, C.byref(e)):
            raise Refused(e.text.decode())
        for _ in range(64):
            i = rng.randrange(len(self.vocab.tokens))
            if self.mask[i // 32] >> i % 32 & 1:
                return i
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), bitorder="little")
        return int(rng.choice(np.flatnonzero(bits)))

    def take(self, token):
        return lib.constraint_accept(self.at, token, None) == 0

    def feed(self, data):
        return lib.constraint_accept_bytes(self.at, data, C.c_size_t(len(data)), None) == 0

    def back(self, n):
        return lib.constraint_rollback(self.at, C.c_size_t(n), None) == 0

    def may_end(self):
        return lib.constraint_accepts_end(self.at)

    def forced(self, cap=4096):
        out = C.create_string_buffer(cap)
        n = lib.constraint_forced(self.at, out, C.c_size_t(cap))
        return out.raw[:n]
