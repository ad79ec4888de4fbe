"""The plugin that TensorBoard loads: its routes, and what each answers."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from stabilitylens.dashboard import _http as http
from stabilitylens.dashboard._about import about
from stabilitylens.dashboard._anatomy import drawn
from stabilitylens.dashboard._cells import cell
from stabilitylens.dashboard._curves import curve
from stabilitylens.dashboard._maps import COLUMNS, draw
from stabilitylens.dashboard._places import Places, began, roots_of
from stabilitylens.dashboard._recording import Recording, Snapshot, Track
from stabilitylens.dashboard._report import report
from stabilitylens.dashboard._summary import Summaries
from stabilitylens.dashboard._verdicts import Verdicts
from stabilitylens.errors import BadInput


class StabilityLensPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """A tab with recordings layer by step.

    Args:
        context: of TensorBoard; only the log directories are taken from it. Its data provider is not asked, for it
            cuts arrays to some points a tag.
    """

    plugin_name = "stabilitylens"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._places = Places(roots_of(context.logdir, getattr(context.flags, "logdir_spec", None)))
        self._recordings: dict[str, Recording] = {}
        self._summaries, self._verdicts = Summaries(), Verdicts()
        self._lock = threading.Lock()

    def is_active(self) -> bool:
        """Whether there is any recording."""
        return bool(self._places.recordings())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Where the tab's script lies. It follows runs by itself, without TensorBoard's reload button."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Stability", disable_reload=True)

    def get_plugin_apps(self) -> dict[str, http.App]:
        """Every route; all others are refused by TensorBoard."""
        answers = {
            "/runs": self._runs, "/about": self._about, "/verdicts": self._verdict, "/map": self._map,
            "/curve": self._curve, "/cell": self._cell, "/anatomy": self._anatomy,
        }
        apps = {route: http.answers(handle) for route, handle in answers.items()}
        apps["/report"] = http.page(lambda request: report(*self._asked(request)))
        apps |= {f"/{name}": http.serves(name) for name in http.own_files()}
        return apps | {"/plotly.js": http.plotly()}

    def _runs(self, request: wrappers.Request) -> list[dict[str, Any]]:
        return [
            {"name": name, "version": self._recording(name).stamp(), "began": began(path)} for name, path in self._places.recordings().items()
        ]

    def _about(self, request: wrappers.Request) -> dict[str, Any]:
        return about(*self._asked(request))

    def _verdict(self, request: wrappers.Request) -> dict[str, Any]:
        return self._verdicts.of(*self._asked(request))

    def _anatomy(self, request: wrappers.Request) -> dict[str, Any]:
        name, snapshot = self._asked(request)
        return drawn(snapshot.header.anatomy, self._verdicts.of(name, snapshot)["findings"])

    def _map(self, request: wrappers.Request) -> dict[str, Any]:
        name, snapshot = self._asked(request)
        track, columns = _array(request, snapshot), _columns(request)
        first, last = _span(request, track)
        row = _index(request, "row", track.shape[0]) if "row" in request.args else None
        with self._lock:
            out = draw(self._summaries, name, snapshot, track, first, last, columns, row)
        self._recordings[name].release()
        return out | {"version": snapshot.version}

    def _curve(self, request: wrappers.Request) -> dict[str, Any]:
        _, snapshot = self._asked(request)
        track = _series(request, snapshot)
        if track.axes:
            raise BadInput(f"{track.name} has axes; ask for a map of it")
        return curve(track.steps, track.at(), *_span(request, track), _columns(request))

    def _cell(self, request: wrappers.Request) -> dict[str, Any]:
        _, snapshot = self._asked(request)
        track = _array(request, snapshot)
        inner = _index(request, "inner", prod(track.shape[1:])) if "inner" in request.args else None
        near = http.integer(request, "near_first"), http.integer(request, "near_last")
        return cell(snapshot, track, _index(request, "row", track.shape[0]), inner, near, _span(request, track), _columns(request))

    def _asked(self, request: wrappers.Request) -> tuple[str, Snapshot]:
        name = request.args.get("run", "")
        if name not in self._places.recordings():
            raise http.Unknown("there is no run of this name below the log directory")
        return name, self._recording(name).look()

    def _recording(self, name: str) -> Recording:
        path = self._places.recordings()[name]
        with self._lock:
            if name not in self._recordings or self._recordings[name].path != path:
                self._recordings[name] = Recording(path)
            return self._recordings[name]


def _series(request: wrappers.Request, snapshot: Snapshot) -> Track:
    track = snapshot.tracks.get(request.args.get("series", ""))
    if track is None or not len(track.steps):
        raise http.Unknown("the run has no series of this name")
    return track


def _array(request: wrappers.Request, snapshot: Snapshot) -> Track:
    track = _series(request, snapshot)
    if not track.axes or 0 in track.shape:
        raise BadInput(f"{track.name} has no axes; ask for a curve of it")
    return track


def _span(request: wrappers.Request, track: Track) -> tuple[int, int]:
    return http.integer(request, "from", int(track.steps[0])), http.integer(request, "to", int(track.steps[-1]))


def _columns(request: wrappers.Request) -> int:
    return min(COLUMNS, http.integer(request, "columns", 1000, least=1))


def _index(request: wrappers.Request, name: str, size: int) -> int:
    index = http.integer(request, name, least=0)
    if index >= size:
        raise http.Unknown(f"there is no {name} {index}, only {size}")
    return index
