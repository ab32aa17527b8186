"""Schemas for the tests: a list of those that people write, a generator of others with instances that satisfy them, and
hostile ones."""
import json

NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/node"},
                                         "right": {"$ref": "#/$defs/node"}}, "required": ["value"]}
PERSON = {"type": "object", "required": ["name", "age"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    "role": {"enum": ["admin", "user", None]}}, "additionalProperties": False}

COMMON = [
    True, {}, PERSON,
    {"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": "array"},
    {"type": "object"}, {"type": ["string", "null", "integer"]},
    {"enum": ["red", "green", "blue"]}, {"enum": [1, 2.5, "x", None, True, [1, "a"], {"k": {"l": []}}]}, {"const": 42},
    {"const": "a\"b\\c\n\u0001é\U0001f600"}, {"const": {"a": [1, {"b": None}]}}, {"const": 0.1}, {"const": 1e300},
    {"enum": [1, 2, 3, "4", 5.5], "type": "integer", "minimum": 2}, {"enum": ["a", "bb", "ccc"], "minLength": 2},
    {"enum": ["ab", "cd", 1], "pattern": "^a"},
    {"type": "integer", "minimum": 3, "maximum": 17}, {"type": "integer", "minimum": -128, "maximum": 127},
    {"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "exclusiveMaximum": 0},
    {"type": "integer", "minimum": 99}, {"type": "integer", "maximum": -100}, {"type": "integer", "minimum": 1.5, "maximum": 2.5},
    {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    {"type": "integer", "multipleOf": 7}, {"type": "integer", "multipleOf": 12, "minimum": 100, "maximum": 200},
    {"type": "number", "multipleOf": 3, "exclusiveMinimum": 10},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -0.5, "maximum": 0.25}, {"type": "number", "minimum": 0.001}, {"type": "number", "maximum": -1e-5},
    {"type": "number", "exclusiveMinimum": 99.99, "maximum": 100.01}, {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0},
    {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.30000000000000004}, {"minimum": 10}, {"maximum": 1e6, "type": "number"},
    {"type": "string", "minLength": 3}, {"type": "string", "maxLength": 5}, {"type": "string", "minLength": 2, "maxLength": 2},
    {"type": "string", "maxLength": 0}, {"type": "string", "minLength": 30, "maxLength": 300}, {"minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[a-z]{2,4}$"}, {"type": "string", "pattern": "[0-9]"}, {"type": "string", "pattern": "^(a|bc)*d?$"},
    {"type": "string", "pattern": "^\\w+@\\w+\\.(com|org)$"}, {"type": "string", "pattern": "^[^\\d\\s]+$"}, {"type": "string", "pattern": "^\\D\\W\\S$"},
    {"type": "string", "pattern": "^.{1,4}$"}, {"type": "string", "pattern": "^\\u00e9|\\x41$"}, {"type": "string", "pattern": "a\"b\\\\c\\n"},
    {"type": "string", "pattern": "^(\\(\\d{3}\\))?\\d{3}-\\d{4}$"}, {"type": "string", "pattern": "^a", "maxLength": 4},
    {"type": "string", "pattern": "^[A-Z]+$", "minLength": 3, "maxLength": 6}, {"type": "string", "pattern": "^[αβγ]+$"},
    {"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"type": "string", "maxLength": 6}]},
    *[{"type": "string", "format": f} for f in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
                                                 "uri-reference", "json-pointer", "regex", "idn-email", "unknown-format")],
    {"type": "string", "format": "date", "pattern": "^2[0-9]{3}-0[1-6]"}, {"type": "string", "format": "email", "maxLength": 12},
    {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 30, "maxItems": 40}, {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": {"type": "integer"}, "maxItems": 5},
    {"type": "array", "prefixItems": [{"const": 1}, False]}, {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
    {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {}}, "required": ["a", "zz"], "additionalProperties": {"type": "string"}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}, {"type": "object", "minProperties": 1},
    {"type": "object", "properties": {k: {"type": "null"} for k in "abcdef"}, "additionalProperties": False, "minProperties": 2, "maxProperties": 4},
    {"type": "object", "properties": {"a": False, "b": {"type": "null"}}}, {"type": "object", "maxProperties": 0},
    {"type": "object", "patternProperties": {"^i_": {"type": "integer"}, "_s$": {"type": ["string", "integer"]}}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "properties": {"xa": {"minimum": 5}}},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "propertyNames": {"enum": ["p", "q"]}}, {"type": "object", "propertyNames": {"maxLength": 2}, "minProperties": 1},
    {"type": "object", "properties": {"we\"ird\\\n": {"const": 1}, "é": {"const": 2}, "": {"const": 3}}, "required": ["we\"ird\\\n", "é", ""]},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(60)}, "additionalProperties": False},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]}, {"anyOf": [{"minimum": 3}, {"type": "string"}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, k: {"type": "integer"}}, "required": ["kind", k]} for k in ("cat", "dog", "eel")]},
    {"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
    {"oneOf": [{"type": "number", "maximum": 5}, {"type": "number", "exclusiveMinimum": 5}]},
    {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]},
    {"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"maximum": 3}, "b": {"const": 1}}}]},
    {"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"minLength": 2}, {"minimum": 2}]}]},
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, {"definitions": {"a/b~c%": {"type": "null"}}, "$ref": "#/definitions/a~1b~0c%25"},
    {"$defs": {"n": {"$anchor": "here", "type": "integer"}}, "type": "array", "items": {"$ref": "#here"}, "maxItems": 3},
    {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "additionalProperties": False},
    {"$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
     "allOf": [{"$ref": "#/$defs/base"}], "properties": {"name": {"type": "string"}}, "unevaluatedProperties": False},
    {"type": "string", "title": "t", "description": "d", "default": 3, "examples": [1], "deprecated": True, "$comment": "c", "x-own": {"not": 1}},
    {"not": {"const": 1}}, {"type": "string", "not": {"enum": ["a", "b", "ab"]}}, {"type": "string", "not": {"pattern": "a"}},
    {"type": "integer", "not": {"minimum": 5}}, {"type": "object", "not": {"required": ["a"]}}, {"not": {"type": "integer"}, "type": "number"},
    {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, "required": ["k"], "additionalProperties": False,
     "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}, "else": {"properties": {"n": {"minimum": 10}}}},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentSchemas": {"b": {"properties": {"a": {"type": "null"}}}}},
    {"type": "array", "contains": {"type": "string"}, "items": {"type": ["string", "integer"]}},
    {"oneOf": [{"type": "integer", "multipleOf": 2, "maximum": 10}, {"type": "integer", "minimum": 5}]}, {"oneOf": [{"minLength": 2}, {"type": "string"}]},
    {"not": {"type": ["object", "array", "string", "number"]}}, {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]},
]

REFUSED = [
    False, {"$ref": "#"}, {"$ref": "#/$defs/none"}, {"$ref": "http://example.com/x"}, {"type": "strin"}, {"type": 3}, {"enum": []}, {"anyOf": []},
    {"type": "array", "uniqueItems": True}, {"type": "array", "contains": {"type": "integer"}, "maxContains": 2}, {"$dynamicRef": "#x"},
    {"type": "number", "multipleOf": 0.1}, {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": "(a)\\1"},
    {"type": "string", "pattern": "a\\b"}, {"type": "string", "pattern": "["}, {"type": "string", "pattern": "(?i)a"}, {"minLength": -1},
    {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "string", "minLength": 3, "maxLength": 2}, {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "object", "required": ["a"], "properties": {"a": False}}, {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"enum": [1, 2], "type": "string"}, {"const": 1, "enum": [2]}, [], "x", 3,
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, {"properties": 3, "type": "object"},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]}, {"items": 3, "type": "array"}, {"type": "object", "required": "a"},
]


def hostile():
    """(kind, text): each must end in an error, soon."""
    out = [("schema", s if isinstance(s, str) else json.dumps(s)) for s in REFUSED if not isinstance(s, str)]
    nest = lambda inner, n, k: json.dumps(inner) if n == 0 else f'{{"type":"array","items":{nest(inner, n - 1, k)}}}'
    out += [("schema", nest({}, n, 0)) for n in (65, 100, 300)]
    out += [("schema", json.dumps({"anyOf": [{"$ref": "#/$defs/%d" % (i + 1)} for i in range(n)], "$defs": {
        str(i): {"anyOf": [{"$ref": "#/$defs/%d" % (i % n + 1)}] * 2} for i in range(1, n + 1)}})) for n in (2, 10, 50, 200)]
    out += [("schema", json.dumps({"allOf": [{"anyOf": [{"minLength": i * 10 + k} for k in range(10)]} for i in range(n)]})) for n in (6, 12, 40)]
    out += [("schema", json.dumps({"type": "string", "pattern": p, "maxLength": 5000})) for p in ("a.*b", "(x|y)*x(x|y){12}")]
    out += [("schema", json.dumps({"allOf": [{"type": "string", "pattern": f"{c}.{{{n}}}$"} for c in "abc"]})) for n in (8, 12, 20, 50)]
    out += [("schema", json.dumps({"type": "object", "patternProperties": {f"^{i}": {} for i in range(n)}})) for n in (5, 20, 100)]
    out += [("schema", json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(300)}, "maxProperties": 299, "minProperties": n})) for n in (100, 200)]
    out += [("schema", json.dumps({"type": "object", "minProperties": n})) for n in (2, 1000, 10**9)]
    out += [("schema", json.dumps({"type": "integer", "multipleOf": n})) for n in (0, -1, 0.5, 4097, 1e300)]
    out += [("schema", json.dumps({"oneOf": [{"type": "object"}] * n})) for n in (2, 50, 300)]
    out += [("schema", json.dumps({"not": {"pattern": "(a|b)*a(a|b){15}"}})), ("schema", '{"type":"integer","minimum":' + "9" * 400 + "}")]
    out += [("schema", json.dumps({"allOf": [{"$ref": "#/$defs/a"}] * 3, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}))]
    out += [("schema", json.dumps({"type": "object", "required": [f"r{i}" for i in range(n)], "additionalProperties": False})) for n in (1, 3000)]
    patterns = ["(a{1000}){1000}", "((a{100}){100}){100}", "((((a*)*)*)*){99999}", "(a|b)*a(a|b){16}", "(a+)+b", "a{99999}b"]
    out += [("schema", json.dumps({"type": "string", "pattern": p, "maxLength": 9000})) for p in patterns]
    out += [("regex", p) for p in ("(" * 60000, "[" * 60000, "a" * 10 + "(" * 51 + ")" * 51, "a{1000001}", "a{2,1}", "(?<=a)b", "(?!a)", "a\\", "[z-a]", "*a",
                                   "\\p{Nope}", "(a", "a)", "a**", "x{1,", "[a", "\\u12", "\\c", "a++", "(^a)*", "a^b", "\\q", "[[:alpha:]]", "\\k<a>")
            if p not in ("x{1,", "a**")]
    out += [("gbnf", g) for g in (
        "", "x", "root", "root ::= (", "root ::= " + "(" * 60000, "root ::= " + "[" * 60000, 'root ::= "a', "root ::= [a", "root ::= root",
        "root ::= root \"a\"", 'root ::= a\na ::= b\nb ::= a "x"', "root ::= a", "a ::= \"x\"", 'root ::= "a" root', "root ::= (((root)))", 'root ::= "x"\nroot ::= "y"',
        'root ::= "a"{2,1}', 'root ::= "a"{9999999}', 'root ::= "\\q"', 'root ::= "\\x4"', "root ::= [z-a]", 'root ::= "a" )', "root ::= \x00", 'root ::= ("a"? root)',
        "root ::= " + " ".join(f"r{i}" for i in range(30000)), "\n".join(f"r{i} ::= r{i + 1}" for i in range(30000)), 'root ::= "' + "\\U00110000" + '"',
        'root ::= "' + "\\ud800" + '"', "root ::= a b\na ::= b?\nb ::= a?", "root ::= a\na ::= \"\"? a | \"x\"", "::= x", "root := x", "root ::= *", "root ::= | |)",
        "root ::= <[1]>", "root ::= " + "(" * 100 + '"a"' + ")" * 100, "root ::= a\n" + "a ::= " + "a?" * 1000)]
    # Cut anywhere inside, a text in quotes or brackets is not whole.
    whole = 'root ::= ("a" | [b-c\\n] | x{2,3})* \nx ::= "(" root ")" '
    out += [("gbnf", whole[:n]) for n in range(9, len(whole), 2) if whole[:n].count('"') % 2]
    out += [("regex", "(" * n + "a" + ")" * (n - 1)) for n in range(1, 40)] + [("regex", "(a|" * n) for n in range(1, 40)]
    return out


class Maker:
    """Random schemas with a way to make instances of them."""

    def __init__(self, rng):
        self.rng = rng

    def schema(self, depth=3):
        r = self.rng
        kinds = ["integer", "number", "string", "boolean", "null", "enum", "const", "pattern"]
        kinds += ["array", "object", "object", "object", "anyOf", "tuple", "allOf", "map"] if depth else []
        return getattr(self, "_" + r.choice(kinds))(depth)

    def _integer(self, _):
        r = self.rng
        lo = r.choice([None, r.randint(-1000, 1000), r.randint(-9, 9)])
        hi = r.choice([None, (lo or 0) + r.randint(0, 2000)])
        s = {"type": "integer"}
        if lo is not None:
            s["minimum"] = lo
        if hi is not None:
            s["maximum"] = hi
        return s, lambda: r.randint(lo if lo is not None else min(-5, hi or 0), hi if hi is not None else max(lo or 0, 5))

    def _number(self, _):
        r = self.rng
        lo, width = round(r.uniform(-100, 100), r.randint(0, 3)), r.randint(1, 100)
        return {"type": "number", "minimum": lo, "maximum": lo + width}, lambda: round(lo + width * r.uniform(.25, .75), r.randint(3, 6))

    def _text(self, n):
        return "".join(self.rng.choice("abcXYZ 019_-\"\\/\n\t\x01éß日😀") for _ in range(n))

    def _string(self, _):
        r = self.rng
        lo, more = r.choice([0, 0, 1, 5]), r.choice([None, 0, 3, 40])
        s = {"type": "string"}
        if lo:
            s["minLength"] = lo
        if more is not None:
            s["maxLength"] = lo + more
        return s, lambda: self._text(r.randint(lo, lo + (more if more is not None else 12)))

    def _pattern(self, _):
        r = self.rng
        p, make = r.choice([
            ("^[a-f0-9]{4}$", lambda: "%04x" % r.randrange(65536)), ("^(ab|c)+$", lambda: "".join(r.choice(["ab", "c"]) for _ in range(r.randint(1, 5)))),
            ("^\\d{1,3}(\\.\\d+)?$", lambda: str(r.randrange(1000)) + r.choice(["", ".5"])), ("x", lambda: self._text(3) + "x" + self._text(2)),
            ("^[A-Z]\\w*( \\w+)?$", lambda: r.choice(["A", "Bc d", "Z_9 x"]))])
        return {"type": "string", "pattern": p}, make

    def _boolean(self, _):
        return {"type": "boolean"}, lambda: self.rng.random() < .5

    def _null(self, _):
        return {"type": "null"}, lambda: None

    def _enum(self, _):
        values = self.rng.sample(["a", "b\"", "", 1, -2, 3.5, None, True, "日本", [1], {"k": 1}], self.rng.randint(1, 5))
        return {"enum": values}, lambda: self.rng.choice(values)

    def _const(self, _):
        value = self.rng.choice(["x", 0, 7, -1.5, False, None, "long constant text", [1, [2]], {"a": {"b": 1}}])
        return {"const": value}, lambda: value

    def _array(self, depth):
        item, make = self.schema(depth - 1)
        lo, more = self.rng.choice([0, 0, 1, 2]), self.rng.choice([None, 0, 2, 30])
        s = {"type": "array", "items": item}
        if lo:
            s["minItems"] = lo
        if more is not None:
            s["maxItems"] = lo + more
        return s, lambda: [make() for _ in range(self.rng.randint(lo, lo + (3 if more is None else min(more, 3))))]

    def _tuple(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]
        rest, make = self.schema(0)
        s = {"type": "array", "prefixItems": [p for p, _ in parts], "items": self.rng.choice([False, rest]), "minItems": len(parts)}
        return s, lambda: [m() for _, m in parts] + ([make()] * self.rng.randint(0, 2) if s["items"] else [])

    def _object(self, depth):
        r = self.rng
        names = r.sample(["a", "ab", "abc", "b", "name", "x y", "é", "q\"", "id", "z\\"], r.randint(0, 5))
        made = {n: self.schema(depth - 1) for n in names}
        required = [n for n in names if r.random() < .5]
        extra, make = self.schema(0)
        s = {"type": "object", "properties": {n: p for n, (p, _) in made.items()}, "additionalProperties": r.choice([False, False, extra])}
        if required:
            s["required"] = required
        if r.random() < .1:
            s["minProperties"] = len(required)

        def one():
            out = {n: m() for n, (_, m) in made.items() if n in required or r.random() < .5}
            if s["additionalProperties"] is not False:
                out |= {k: make() for k in r.sample(["other", "ac", "nam", "named"], r.randint(0, 2))}
            return out
        return s, one

    def _map(self, depth):
        value, make = self.schema(depth - 1)
        return ({"type": "object", "patternProperties": {"^k\\d$": value}, "additionalProperties": False},
                lambda: {f"k{i}": make() for i in range(self.rng.randint(0, 3))})

    def _anyOf(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]
        return {"anyOf": [p for p, _ in parts]}, lambda: self.rng.choice(parts)[1]()

    def _allOf(self, depth):
        part, make = self.schema(depth - 1)
        return {"allOf": [part, {"title": "t"}, True]}, make


# Values of every kind, to look among them for one that satisfies a schema.
POOL = [None, True, False, -7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 100, 10**18, 0.5, 1.5, -0.5, 3.25, 1e-20, 1.5e-20, 1e300]
POOL += ["", "a", "b", "ab", "abc", "xy", "1", "12", "1a", "A", "é", "日", "a b", "\n", "aaaa", "_", "2020-01-01", "a@b.co", "1.2.3.4", "::1", "http://a.b/c"]
POOL += [[], [1], ["a"], [None], [1, 2], [1, 1], [1, "a"], ["a", 1], ["a", "b"], [1, 2, 3], ["a", "a"], [[1]], [{}], [6], [0.5], [{"a": 1}], ["a", 1, None]]
POOL += [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"b": "y"}, {"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"a": None}, {"c": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 3},
         {"x1": 1}, {"x1": 1, "x2": 2}, {"a": {"a": 1}}, {"a": [1]}, {"a": 6}, {"a": {}}, {"a": 1, "x1": 2}, {"": 1}, {"é": 1}]


class Mixer:
    """Schemas of keywords thrown together, most of which nobody would write."""

    def __init__(self, rng):
        self.rng = rng

    def keyword(self):
        r, names = self.rng, ["a", "b", "c", "x1"]
        types = ["integer", "number", "string", "boolean", "null", "array", "object"]
        patterns = ["^a", "b$", "^[a-c]+$", "^\\d+$", "^\\w$", "^\\W$", "^\\D$", "^\\s$", "^.{2}$", "^[^a]*$", "^(?:ab|xy)$", "\\S"]
        numbers = [-3, 0, 1, 1.5, 2, 5, 1e18, 1e20, 1e-20, 2e-20]
        return r.choice([
            lambda: {"type": r.choice(types)}, lambda: {"type": r.sample(types, 2)}, lambda: {"not": {"type": r.choice(types)}},
            lambda: {"enum": r.sample(POOL, r.randint(1, 4))}, lambda: {"const": r.choice(POOL)}, lambda: {"multipleOf": r.choice([1, 2, 3, 4, 6, 10])},
            lambda: {r.choice(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]): r.choice(numbers)},
            lambda: {r.choice(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]): r.randint(0, 3)},
            lambda: {"pattern": r.choice(patterns)}, lambda: {"format": r.choice(["date", "email", "uri", "ipv4", "ipv6", "hostname"])},
            lambda: {r.choice(["items", "contains", "additionalProperties"]): self.inner()}, lambda: {"prefixItems": [self.inner() for _ in range(r.randint(1, 2))]},
            lambda: {"properties": {n: self.inner() for n in r.sample(names, 2)}}, lambda: {"required": r.sample(names, r.randint(1, 2))},
            lambda: {"patternProperties": {r.choice(["^x", "a", "^[a-c]$", "\\W"]): self.inner()}},
            lambda: {"propertyNames": r.choice([{"pattern": "^[a-c]"}, {"maxLength": 1}, {"enum": ["a", "b"]}, {"minLength": 2}])},
            lambda: {"dependentRequired": {r.choice(names): [r.choice(names)]}}, lambda: {"dependentSchemas": {r.choice(names): self.inner()}},
            lambda: {r.choice(["unevaluatedProperties", "unevaluatedItems"]): r.choice([False, {"type": "integer"}])}])()

    def inner(self):
        return self.rng.random() < .5 if self.rng.random() < .1 else self.plain()

    def plain(self):
        out = {}
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            out.update(self.keyword())
        return out

    def schema(self):
        r, out = self.rng, self.plain()
        for word in r.sample(["oneOf", "anyOf", "allOf", "not", "if"], r.choice([0, 1, 1, 2])):
            out[word] = self.plain() if word in ("not", "if") else [self.plain() for _ in range(r.randint(1, 3))]
        if "if" in out:
            out[r.choice(["then", "else"])] = self.plain()
        return out
