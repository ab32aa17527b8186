"""jinja2, set up as Hugging Face sets it up for chat templates: the meaning of `quern template`."""
import datetime
import functools
import json
import warnings

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2024, 7, 26, 12, 30, 5)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(lineno)

    def _pass(self, caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore")


class Raised(jinja2.exceptions.TemplateError):
    """What raise_exception raises: its message must come out."""


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = Namespace
    return env


ENV = environment()


@functools.lru_cache(64)
def compiled(template):
    with warnings.catch_warnings():  # escapes in a template's strings are its author's affair
        warnings.simplefilter("ignore")
        return ENV.from_string(template)


def render(template, context):
    """{"out": text} or {"error": class of the exception, "message": of raise_exception or None}."""
    try:
        text = compiled(template).render(**context)
        text.encode()
        return {"out": text}
    except Raised as e:
        return {"error": "Raised", "message": str(e)}
    except Exception as e:  # whatever Python raises, the template failed
        return {"error": type(e).__name__, "message": None, "text": str(e)}
