"""Reads a TensorFlow profiler trace: what was active, and why the rest was idle.

The format is XSpace (also written by JAX): planes of lines of events. Only the fields used here are
declared, as a protobuf message built at run time, so reading needs no TensorFlow; what is not
declared is skipped.

On GPUs, planes `/device:GPU:N` hold one line per stream; the other lines there are derived from
them and would count everything twice. Without GPU planes, the operations on the host count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from xonar_prefect.profiling.activity import (
    COMMUNICATION_KERNEL,
    Activity,
    StepTimes,
    busiest,
)
from xonar_prefect.profiling.intervals import Span, union
from xonar_prefect.profiling.recording import Mark

_PICOSECONDS = 1e12
_GPU_PLANE = "/device:GPU:"
_HOST_PLANE = "/host:CPU"
_STREAM_LINE = "Stream"
_INPUT_LINE = "tf_data"

_OPERATION = re.compile(r"^[^:]+:(?P<type>_?[A-Z]\w*)$")
_COMMUNICATION_OPERATION = re.compile(r"^_?(Collective|Nccl|Send$|Recv$|HostSend$|HostRecv$)")
# Waiting for input, calls into Python, and control flow that only contains other operations.
_INPUT_OPERATION = re.compile(r"^(Iterator|Optional|GeneratorDataset)")
_IDLE_OPERATION = re.compile(
    r"^(PyFunc|EagerPyFunc|PyFuncStateless|PartitionedCall|StatefulPartitionedCall|RemoteCall"
    r"|Enqueue|(Stateless)?(While|If|Case)|NoOp|Const|Identity|ReadVariableOp"
    r"|_(SINK|SOURCE|Arg|Retval|DeviceArg|DeviceRetval))$"
)
# TensorFlow writes it on a line `tf_data_iterator_get_next`, or where its operation runs.
_INPUT_EVENT = "IteratorGetNextOp"

# Field numbers of tsl/profiler/protobuf/xplane.proto.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Event": (
        ("metadata_id", 1, "int64", False),
        ("offset_ps", 2, "int64", False),
        ("duration_ps", 3, "int64", False),
    ),
    "Line": (
        ("name", 2, "string", False),
        ("timestamp_ns", 3, "int64", False),
        ("events", 4, "Event", True),
    ),
    "Metadata": (("id", 1, "int64", False), ("name", 2, "string", False)),
    "MetadataEntry": (("key", 1, "int64", False), ("value", 2, "Metadata", False)),
    "Plane": (
        ("name", 2, "string", False),
        ("lines", 3, "Line", True),
        ("event_metadata", 4, "MetadataEntry", True),
    ),
    "Space": (("planes", 1, "Plane", True),),
}


class TraceError(Exception):
    """The trace cannot be read."""


@functools.cache
def space_class() -> type[Any]:
    """Return the protobuf message class of a trace, with the fields that are read here."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xonar_xplane.proto", package="xonar")
    for message_name, message_fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind, repeated in message_fields:
            label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".xonar.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xonar.Space"))


def read_steps(trace: bytes) -> tuple[StepTimes, ...]:
    """Return the times of the steps that were marked in a trace, in order.

    With several GPUs the busiest one counts: a gang is as slow as it.

    Raises:
        TraceError: It is no trace, or cut off.
    """
    try:
        space = space_class().FromString(trace)
    except DecodeError as error:
        raise TraceError("the trace is damaged or cut off") from error
    hosts = [plane for plane in space.planes if plane.name.startswith(_HOST_PLANE)]
    gpus = [plane for plane in space.planes if plane.name.startswith(_GPU_PLANE)]
    windows = _step_windows(hosts)
    if not windows:
        return ()
    waits = union(span for plane in hosts for span in _input_waits(plane))
    activities = [_gpu_activity(plane, waits) for plane in gpus] or [_host_activity(hosts, waits)]
    return busiest(activities, windows)


def read_directory(directory: Path) -> tuple[StepTimes, ...]:
    """Read the newest trace that TensorFlow wrote below its log directory.

    Raises:
        TraceError: There is none, or it cannot be read.
    """
    files = sorted(directory.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        raise TraceError(f"no trace was written below {directory}")
    return read_steps(files[-1].read_bytes())


def _spans(plane: Any, line: Any) -> Iterator[tuple[str, Span]]:
    """Yield name and time in picoseconds for the events of a line."""
    names = {entry.key: entry.value.name for entry in plane.event_metadata}
    start = line.timestamp_ns * 1000
    for event in line.events:
        begin = start + event.offset_ps
        # A name may carry its arguments: `name#step_num=3#`.
        name = names.get(event.metadata_id, "").partition("#")[0]
        yield name, (begin, begin + event.duration_ps)


def _step_windows(hosts: list[Any]) -> list[Span]:
    return sorted(
        span
        for plane in hosts
        for line in plane.lines
        for name, span in _spans(plane, line)
        if name == Mark.STEP.value
    )


def _input_waits(plane: Any) -> Iterator[Span]:
    for line in plane.lines:
        for name, span in _spans(plane, line):
            if name == Mark.INPUT.value or name.startswith(_INPUT_EVENT):
                yield span


def _host_activity(hosts: list[Any], waits: list[Span]) -> Activity:
    active: list[Span] = []
    communication: list[Span] = []
    for plane in hosts:
        for line in plane.lines:
            if line.name.startswith(_INPUT_LINE):  # the input pipeline is no device work
                continue
            for name, span in _spans(plane, line):
                operation = _OPERATION.match(name)
                if operation is None:
                    continue
                kind = operation["type"]
                if _COMMUNICATION_OPERATION.match(kind):
                    communication.append(span)
                elif not _INPUT_OPERATION.match(kind) and not _IDLE_OPERATION.match(kind):
                    active.append(span)
    return Activity(active, communication, waits, ticks_per_second=_PICOSECONDS)


def _gpu_activity(plane: Any, waits: list[Span]) -> Activity:
    active: list[Span] = []
    communication: list[Span] = []
    for line in plane.lines:
        if not line.name.startswith(_STREAM_LINE):
            continue
        for name, span in _spans(plane, line):
            is_communication = COMMUNICATION_KERNEL.search(name)
            (communication if is_communication else active).append(span)
    return Activity(active, communication, waits, ticks_per_second=_PICOSECONDS)
