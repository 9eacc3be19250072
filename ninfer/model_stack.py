"""One model on one device: what both purposes of the library stand on.

    artifact -> contract -> frontend, device -> Program

The only place that picks a concrete device and builds a Program. Who drives the Program, and for
what, is not known here.
"""

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig, KvDtype, fitted
from ninfer.device import CompileAhead, Device
from ninfer.errors import ConfigurationError, DeviceUnavailable
from ninfer.frontend.frontend import Frontend
from ninfer.host.device import HostDevice
from ninfer.models.package import GROUPWISE_INT as GROUPWISE_INT
from ninfer.models.package import WEIGHTS_IDS as WEIGHTS_IDS
from ninfer.models.qwen_hybrid.binding import BoundModel, bind
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.models.qwen_hybrid.limits import ModelLimits
from ninfer.models.qwen_hybrid.synthetic import synthetic_model
from ninfer.program.kv_planes import SCALE_GROUP, element_dtype
from ninfer.program.model_units import ModelUnits
from ninfer.program.program import ModelProgram
from ninfer.program.program_builder import build_program
from ninfer.program.round_times import RoundTimes as RoundTimes
from ninfer.program.synthetic_weights import SyntheticWeights
from ninfer.program.timeline import Timeline
from ninfer.tensor import DType
from ninfer.version import __version__

Progress = Callable[[int, int], None]

_KV_ELEMENT_BYTES = {DType.F32: 4.0, DType.BF16: 2.0, DType.I8: 1 + 2 / SCALE_GROUP}

_KV_DTYPES = {DType.F32: KvDtype.F32, DType.BF16: KvDtype.BF16, DType.I8: KvDtype.INT8_G64}

_DRIVER_LIBRARY = "libcuda.so.1"
_FINGERPRINT_BLOCKS = 64
_FINGERPRINT_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """A registered model with random weights instead of an artifact, for measurement.

    Attributes:
        model_id: identity in the registry.
        weights_id: storage profile.
        seed: decides every weight.
    """

    model_id: str
    weights_id: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a benchmark asks of a model; only while no request is active.

    Attributes:
        limits: what the model must read and compute at least.
        rounds: times of decode rounds, and prompts that nobody processes.
    """

    limits: ModelLimits
    rounds: ModelUnits


ModelSource = str | os.PathLike[str] | SyntheticModel


class LoadedModel:
    """Frontend, device and Program of one model; closes them in reverse order.

    Attributes:
        config: start-up options, with the context this model gets.
        model_id, weights_id: identity of the artifact.
        max_positions: longest context the model knows.
        artifact_time: time of the file, seconds since the epoch; 0 without a file.
        device_kind, kv_dtype: what runs it, and what its cache holds; never "auto".
        fingerprint: changes exactly when something that can change bits changes.
        frontend, program: what was built; ``program`` is closed with this.
        start_seconds: how long each step of the start took.
    """

    def __init__(
        self,
        model: ModelSource,
        config: EngineConfig,
        chat_template: str | None,
        progress: Progress | None,
        compiling: Progress | None = None,
    ) -> None:
        timeline = Timeline()
        with ExitStack() as stack:
            with _opened(model) as (reader, bound):
                timeline.note("contract")
                self.max_positions = bound.geometry.max_positions
                self.artifact_time = _artifact_time(reader)
                config = fitted(config, self.max_positions)
                self.config = config
                self.model_id = bound.package.model_id
                self.weights_id = bound.weights_id
                self.frontend = Frontend(bound.resources, chat_template=chat_template)
                timeline.note("frontend")
                device = stack.enter_context(open_device(config.device, compiling))
                timeline.note("device")
                self.program: ModelProgram = build_program(
                    config, bound, reader, device, progress, timeline, self._ahead(compiling)
                )
                stack.callback(self.program.close)
                kv = element_dtype(config.kv_dtype, device.activation_dtype, device.kind)
                self.kv_dtype = _KV_DTYPES[kv]
                self.device_kind = device.kind
                chunk = self.program.memory.prefill_chunk
                self.fingerprint = _fingerprint(reader, config, device, self.kv_dtype, chunk)
            self._limits = ModelLimits(
                bound.geometry, bound.objects[ObjectGroup.TEXT], _KV_ELEMENT_BYTES[kv]
            )
            self.start_seconds = timeline.seconds
            self._stack = stack.pop_all()

    def _ahead(self, progress: Progress | None) -> CompileAhead:
        def ahead(names: Sequence[str], target: str) -> None:
            from ninfer.cuda.compile_ahead import compile_ahead  # as device code, when asked for

            compile_ahead(self.model_id, names, target, progress)

        return ahead

    @property
    def measurement(self) -> Measurement:
        """What a benchmark asks; for a model loaded to generate."""
        return Measurement(self._limits, self.program.rounds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


@contextmanager
def _opened(
    model: ModelSource,
) -> Iterator[tuple[ArtifactReader | SyntheticWeights, BoundModel]]:
    """Source of the weights and the contract of a model."""
    if isinstance(model, SyntheticModel):
        yield SyntheticWeights(model.seed), synthetic_model(model.model_id, model.weights_id)
        return
    with ArtifactReader.open(Path(model)) as reader:
        yield reader, bind(reader)


def _artifact_time(reader: ArtifactReader | SyntheticWeights) -> int:
    return 0 if isinstance(reader, SyntheticWeights) else int(os.stat(reader.path).st_mtime)


def _fingerprint(
    reader: ArtifactReader | SyntheticWeights,
    config: EngineConfig,
    device: Device,
    kv_dtype: KvDtype,
    chunk: int,
) -> str:
    """Digest of the version, the bit-relevant options and samples of the whole file."""
    digest = hashlib.sha256(f"{__version__} {kv_dtype.value}".encode())
    digest.update(f" {config.speculative.value} {config.draft_tokens} {device.kind}".encode())
    if device.kind != "host":  # there every number of columns has the same bits
        digest.update(f" {chunk}".encode())
    if isinstance(reader, SyntheticWeights):
        digest.update(f"{reader}".encode())
        return f"nf_{digest.hexdigest()[:16]}"
    stride = max(1, reader.file_bytes // _FINGERPRINT_BLOCKS)
    with open(reader.path, "rb") as file:
        digest.update(file.read(reader.payload_start))
        for start in range(0, reader.file_bytes, stride):
            file.seek(start)
            digest.update(file.read(_FINGERPRINT_BLOCK_BYTES))
    return f"nf_{digest.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """What ``--device auto`` would run on, for people."""

    driver: str
    device: str


def device_summary() -> DeviceSummary:
    """Look at the device that ``auto`` stands for; it is closed again."""
    try:
        with _open_cuda(0) as device:
            return DeviceSummary(device.driver_version, device.name)
    except DeviceUnavailable as error:
        reason = str(error)
        if isinstance(error.__cause__, ModuleNotFoundError):
            reason = "the extra [cuda] is not installed"
        host = f"host, {platform.machine()}, {os.cpu_count()} processors"
        return DeviceSummary(f"none ({reason})", host)


def open_device(name: str, compiling: Progress | None = None) -> Device:
    """Open the device a configuration names.

    Args:
        name: ``"host"``, the number of a CUDA device, or ``"auto"`` for the best there is.
        compiling: told (kernels compiled, kernels in all) by the host device; for another one
            `Stream.rehearse` asks whoever compiles together.

    Raises:
        ConfigurationError: it is none of these.
        DeviceUnavailable: there is no such device.
    """
    if name == "host":
        return HostDevice(compiling=compiling)
    if name == "auto":
        if not has_driver():
            return HostDevice(compiling=compiling)
        try:
            return _open_cuda(0)
        except DeviceUnavailable:
            return HostDevice(compiling=compiling)
    if not (name.isascii() and name.isdigit()):
        raise ConfigurationError(
            f"device is {name[:64]!r}; allowed is auto, host or a number", field="device"
        )
    return _open_cuda(int(name))


def has_driver() -> bool:
    """Whether an NVIDIA driver is installed; asked before its device code, slow to load, is."""
    try:
        ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def _open_cuda(ordinal: int) -> Device:
    """Open a CUDA device; its code is an optional dependency, loaded when one is asked for.

    Raises:
        DeviceUnavailable: there is no such device, or its dependencies are not installed.
    """
    try:
        from ninfer.cuda.device import CudaDevice
    except ImportError as error:
        raise DeviceUnavailable(
            f"device {ordinal}: {error}; pip install '.[cuda]', or use --device host"
        ) from error
    return CudaDevice(ordinal)
