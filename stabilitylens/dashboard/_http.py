"""Answers to the browser: JSON, our own files, and a plain sentence where a request is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from tensorboard.backend import http_util
from werkzeug import wrappers

from stabilitylens.errors import BadInput

Handler = Callable[[wrappers.Request], Any]
App = Callable[[dict[str, Any], Any], Any]

#: seconds for which a browser keeps what never changes while TensorBoard runs
KEPT = 86400
_TYPES = {"js": "text/javascript", "css": "text/css"}


class Unknown(LookupError):
    """What was asked for is not there."""


def answers(handle: Handler) -> App:
    """A WSGI application that answers with JSON what a handler returns for a request."""

    def respond(request: wrappers.Request) -> wrappers.Response:
        if request.method not in ("GET", "HEAD"):
            return _refused(request, "only GET is answered here", 405)
        try:
            content = json.dumps(handle(request), allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
        except Unknown as error:
            return _refused(request, str(error), 404)
        except BadInput as error:
            return _refused(request, str(error), 400)
        except OSError as error:
            return _refused(request, f"the recording cannot be read: {error.strerror}", 503)
        return _response(request, content, "application/json")

    return wrappers.Request.application(respond)


def page(handle: Callable[[wrappers.Request], tuple[str, list[str]]]) -> App:
    """A WSGI application that answers with a page and lets those of its scripts run whose hashes a handler returns."""

    def respond(request: wrappers.Request) -> wrappers.Response:
        try:
            text, hashes = handle(request)
        except Unknown as error:
            return _refused(request, str(error), 404)
        return _response(request, text.encode("utf-8", "replace"), "text/html", csp_scripts_sha256s=hashes)

    return wrappers.Request.application(respond)


def serves(name: str) -> App:
    """A WSGI application that serves one file of the tab's own."""

    def respond(request: wrappers.Request) -> wrappers.Response:
        content = files("stabilitylens.dashboard").joinpath("static", name).read_bytes()
        return _response(request, content, _TYPES[name.rpartition(".")[2]])

    return wrappers.Request.application(respond)


def plotly() -> App:
    """A WSGI application that serves plotly's script, which is never inlined: TensorBoard's policy forbids that."""

    def respond(request: wrappers.Request) -> wrappers.Response:
        return _response(request, _script(), "text/javascript", expires=KEPT, content_encoding="gzip")

    return wrappers.Request.application(respond)


@cache
def _script() -> bytes:
    from plotly.offline import get_plotlyjs

    return gzip.compress(get_plotlyjs().encode(), compresslevel=6, mtime=0)


def own_files() -> list[str]:
    """Names of the tab's own files."""
    folder = files("stabilitylens.dashboard").joinpath("static")
    return sorted(file.name for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES)


def integer(request: wrappers.Request, name: str, default: int | None = None, least: int | None = None) -> int:
    """A parameter of a request that is a whole number.

    Raises:
        BadInput: it is missing or none.
    """
    text = request.args.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        raise BadInput(f"the parameter {name} has to be a whole number") from None
    if abs(number) >= 1 << 62 or (least is not None and number < least):
        raise BadInput(f"the parameter {name} is out of range")
    return number


def _refused(request: wrappers.Request, sentence: str, code: int) -> wrappers.Response:
    return _response(request, sentence.encode("utf-8", "replace"), "text/plain", code=code)


def _response(request: wrappers.Request, content: bytes, kind: str, **more: Any) -> wrappers.Response:
    """TensorBoard's own response, which says ``nosniff`` and packs what is text."""
    response: wrappers.Response = http_util.Respond(request, content, kind, **more)
    return response
