"""Writes a run: an event file that TensorBoard shows, and a file of full-resolution arrays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stabilitylens import arrayrecord
from stabilitylens.arrayrecord import Layout
from stabilitylens.axes import axes_of
from stabilitylens.errors import BadInput
from stabilitylens.header import Header
from stabilitylens.tags import ABOUT_TAG, HEADER_TAG, Tags, clean, name_of, tag_of
from stabilitylens.writers import _protobuf as protobuf
from stabilitylens.writers._about import about
from stabilitylens.writers._dashboard import Arrays, Dashboard
from stabilitylens.writers._protobuf import ScalarEvent
from stabilitylens.writers._session import FOLDER, first_step, open_session, session_of

#: scalars that get a tag with their largest values over growing windows
WINDOWED = ("loss", "grad_norm", "grad_norm_clipped")


def is_begun(logdir: Path) -> bool:
    """Whether a folder holds sessions of a run already.

    Raises:
        BadInput: nothing can be written there.
    """
    folder = Path(logdir) / FOLDER
    if not folder.is_dir() or not any(session_of(name) is not None for name in os.listdir(folder)):
        return False
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"cannot record in {logdir}: permission denied; give a log directory that can be written to")
    return True


class RunWriter:
    """Appends one session to the recording in ``logdir/stabilitylens``.

    Every call hands its record to the operating system before it returns. Scalars are stored as
    float32, as TensorBoard has them, and so are arrays. Calls may come from any thread, one at a time.

    Args:
        logdir: where the recording's folder is made.
        resume_step: the first step that this session will record. What earlier sessions recorded from
            there on is superseded: TensorBoard drops it, our reader keeps it apart. None is 0.

    Raises:
        BadInput: nothing can be written there.
    """

    def __init__(self, logdir: Path, *, resume_step: int | None = None) -> None:
        folder = Path(logdir) / FOLDER
        try:
            first = first_step(folder)
            session, self._events, self._arrays = open_session(folder)
        except OSError as error:
            raise BadInput(
                f"cannot record in {logdir}: {error.strerror or error}; give a log directory that can be written to"
            ) from error
        wall, restart = time.time(), resume_step if resume_step is not None else (0 if session else None)
        for record in protobuf.opening(wall, restart):
            self._events.append(record)
        self._start = restart or 0
        first = min(self._start, first if first is not None else self._start)
        note = json.dumps({"resume_step": restart, "first_step": first}).encode()
        self._arrays.append(arrayrecord.pack(arrayrecord.SESSION, self._start, wall, note))
        self._closed = False
        self._header = Header()
        self._tags = Tags(HEADER_TAG, ABOUT_TAG)
        self._scalar_tags: dict[str, str] = {}
        self._encoders: dict[tuple[str, ...], ScalarEvent] = {}
        self._layouts: dict[tuple, Layout] = {}
        self._dashboard = Dashboard(self._events, self._tags, first)

    def header(self, header: Header) -> None:
        """Record what the run says of itself; the last one counts.

        Raises:
            OSError: the record could not be written.
        """
        self._header = header
        self._dashboard.header(header)
        self._layouts.clear()
        text, wall = header.to_json(), time.time()
        values = [protobuf.text_value(HEADER_TAG, text), protobuf.text_value(ABOUT_TAG, about(header))]
        self._arrays.append(arrayrecord.pack(arrayrecord.HEADER, self._start, wall, text.encode("utf-8", "replace")))
        self._events.append(protobuf.event(protobuf.HEADER, self._start, wall, values))

    def step(self, step: int | np.integer, scalars: Mapping[str, float | np.number]) -> None:
        """Record the scalars of a step: ``loss``, ``lr``, … and whatever the loop adds.

        Raises:
            OSError: the record could not be written.
        """
        at, numbers, wall = int(step), {name: float(value) for name, value in scalars.items()}, time.time()
        names = tuple(numbers)
        encoder = self._encoders.get(names) or self._encoder(names)
        self._events.append(encoder.encode(at, wall, list(numbers.values())))
        self._dashboard.step(at, wall, numbers)

    def sample(self, step: int, arrays: Arrays) -> None:
        """Record the arrays of a sampled step, by name: ``resid_rms/layer``, or ``log_z`` for a scalar.

        Raises:
            OSError: a record could not be written.
        """
        values = [np.asarray(array) for array in arrays.values()]
        key = tuple((name, value.shape) for name, value in zip(arrays, values, strict=True))
        wall = time.time()
        self._arrays.append((self._layouts.get(key) or self._layout(key)).pack(step, wall, values))
        named = zip(arrays, values, strict=True)
        self._dashboard.sample(step, wall, {n: v for n, v in named if v.ndim or n not in self._scalar_tags})

    def event(self, step: int, kind: str, text: str) -> None:
        """Record something that happened, e.g. ``step_skipped``, with one sentence.

        Raises:
            OSError: the record could not be written.
        """
        tag = f"events/{clean(kind)}"
        values = [protobuf.scalar_value(tag, 1.0), protobuf.text_value(f"{tag}/text", text, display_name=kind)]
        self._events.append(protobuf.event(protobuf.EVENT, step, time.time(), values))

    def in_place(self) -> bool:
        """Whether both files can still be found; what is written to one that was deleted is lost."""
        return self._events.in_place() and self._arrays.in_place()

    def close(self) -> None:
        """Write what the unfinished windows hold, and close both files; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._dashboard.close()
        finally:
            self._events.close()
            self._arrays.close()

    def _encoder(self, names: tuple[str, ...]) -> ScalarEvent:
        """The encoder of these scalars; the one that brings a new name describes it to TensorBoard, once."""
        new = [name for name in names if name not in self._scalar_tags]
        for name in new:
            self._scalar_tags[name] = self._tags.claim(tag_of(name))
            self._dashboard.scalar(self._scalar_tags[name])
            if name in WINDOWED:
                self._dashboard.watch(name, self._scalar_tags[name])
        tags = [self._scalar_tags[name] for name in names]
        encoder = ScalarEvent(protobuf.STEP, tags, [self._describe(name, name in new) for name in names])
        if not new:
            self._encoders[names] = encoder
        return encoder

    def _describe(self, name: str, new: bool) -> bytes:
        # a name that the tag does not tell is in every record, so that each can be read alone
        shown = "" if name_of(self._scalar_tags[name]) == name else name
        meta = self._header.metrics.get(name)
        text = f"{meta.definition} ({meta.unit})" if new and meta else ""
        return protobuf.metadata(shown, text, plugin="scalars") if shown or text else b""

    def _layout(self, key: tuple) -> Layout:
        arrays = [(name, axes_of(name, len(shape), self._header), shape) for name, shape in key]
        return self._layouts.setdefault(key, Layout(arrays))
