"""One small log of each format that the readers know, of our own making; all tell of one run."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto import event_pb2

from stabilitylens.tfrecord import frame

STEPS = list(range(10, 410, 10))
LOSSES = [round(2 + 4 / (1 + step / 50), 4) for step in STEPS]
NORMS = [round(1 + 50 / step, 3) for step in STEPS]
ROWS = [{"step": s, "loss": x, "grad_norm": g} for s, x, g in zip(STEPS, LOSSES, NORMS, strict=True)]


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content, encoding="utf-8") and None


def table(separator: str = ",", header: tuple[str, ...] = ("step", "loss", "grad_norm")) -> Callable[[Path], None]:
    lines = [header, *((str(r["step"]), str(r["loss"]), str(r["grad_norm"])) for r in ROWS)]
    return text("".join(separator.join(line) + "\n" for line in lines))


def trainer_state(path: Path) -> None:
    history = [{"epoch": s / 400, "learning_rate": 1e-4} | row for s, row in zip(STEPS, ROWS, strict=True)]
    summary = {"epoch": 1.0, "step": 400, "train_loss": 2.9, "train_runtime": 12.0, "train_steps_per_second": 33.3}
    path.write_text(json.dumps({"global_step": 400, "log_history": [*history, summary]}, indent=2), encoding="utf-8")


def json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def events(path: Path, rows: list[dict[str, float]] = ROWS, start: int | None = None) -> None:
    found = [event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")]
    if start is not None:
        found.append(event_pb2.Event(wall_time=1.0, step=start, session_log={"status": event_pb2.SessionLog.START}))
    for i, row in enumerate(rows):
        for name in ("loss", "grad_norm"):
            value = [{"tag": f"train/{name}", "simple_value": row[name]}]
            found.append(event_pb2.Event(wall_time=2.0 + i, step=int(row["step"]), summary={"value": value}))
    path.write_bytes(b"".join(frame(event.SerializeToString()) for event in found))


def mlflow(path: Path) -> None:
    (path / "metrics").mkdir(parents=True)
    (path / "meta.yaml").write_text("status: 3\n", encoding="utf-8")
    for name in ("loss", "grad_norm"):
        lines = [f"{1700000000000 + i} {row[name]} {row['step']}\n" for i, row in enumerate(ROWS)]
        (path / "metrics" / name).write_text("".join(lines), encoding="utf-8")


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _history(row: dict[str, float]) -> bytes:
    items = [_field(1, _field(2, key.encode()) + _field(16, json.dumps(value).encode())) for key, value in row.items()]
    return _varint(1 << 3) + _varint(1) + _field(2, b"".join(items))


def wandb(path: Path, pad: int = 600) -> None:
    """In blocks of 32 KiB, as LevelDB writes its log; the padding makes records that span two of them."""
    out = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for row in ROWS:
        data, first = _history(row | {"note": "x" * pad}), True
        while True:
            room = 32768 - len(out) % 32768 - 7
            if room < 0:
                out, room = out + bytes(room + 7), 32761
            part, data, kind = data[:room], data[room:], (1 if first else 4) if len(data) <= room else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
            if kind in (1, 4):
                break
    path.write_bytes(out)


def wandb_folder(path: Path) -> None:
    (path / "files").mkdir(parents=True)
    (path / "files" / "output.log").write_text("starting\n", encoding="utf-8")
    wandb(path / "run-abc.wandb")


COLUMNS = {"step": STEPS, "train": {"loss": LOSSES, "grad_norm": NORMS}}
LONG = "step,metric,value\n" + "".join(f"{r['step']},{k},{r[k]}\n" for r in ROWS for k in ("loss", "grad_norm"))
#: file, the reader that reads it, and what writes it
FORMATS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "trainer_state": ("trainer_state.json", "trainer_state", trainer_state),
    "json_lines": ("log.jsonl", "json_lines", json_lines),
    "records": ("history.json", "json_document", text(json.dumps(ROWS))),
    "columns": ("metrics.json", "json_document", text(json.dumps(COLUMNS))),
    "by_step": ("m.json", "json_document", text(json.dumps({str(r["step"]): {k: r[k] for k in ("loss", "grad_norm")} for r in ROWS}))),
    "maps": ("m.json", "json_document", text(json.dumps({k: {str(r["step"]): r[k] for r in ROWS} for k in ("loss", "grad_norm")}))),
    "csv": ("metrics.csv", "csv_table", table()),
    "tsv": ("train.log", "csv_table", table("\t")),
    "long": ("export.csv", "csv_table", text(LONG)),
    "events": ("events.out.tfevents.1.host", "tensorboard_events", events),
    "mlflow": ("run", "mlflow_metrics", mlflow),
    "wandb": ("run-abc.wandb", "wandb_run", wandb),
    "wandb_folder": ("run-20260101_000000-abc", "wandb_run", wandb_folder),
}
