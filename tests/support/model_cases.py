"""Golden models as artifacts, bound and open."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ninfer.artifact.reader import ArtifactReader
from ninfer.config import EngineConfig
from ninfer.host.device import HostDevice
from ninfer.models.qwen_hybrid.binding import BoundModel, bind
from ninfer.program.program import ModelProgram
from ninfer.program.program_builder import build_program
from tests.support.tiny_model import artifact_path

CASES = ("tiny-dense", "tiny-moe", "real-head-dense", "real-head-moe")


@dataclass(frozen=True)
class ModelCase:
    bound: BoundModel
    reader: ArtifactReader

    def build(self, config: EngineConfig, device: HostDevice) -> ModelProgram:
        return build_program(config, self.bound, self.reader, device)


@contextmanager
def open_case(case: str, weights_id: str = "bf16") -> Iterator[ModelCase]:
    """Open the artifact of a golden model in one storage profile."""
    with ArtifactReader.open(artifact_path(case, weights_id)) as reader:
        yield ModelCase(bind(reader), reader)
