"""What a conversion did: a value, and the descriptive JSON file beside the artifact.

The engine never reads that file.
"""

import contextlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ninfer.artifact.format import TensorDescriptor
from ninfer.convert.plan import ConversionPlan, ConvertOptions

_ARTIFACT_SUFFIX: Final = ".ninfer"
_REPORT_SUFFIX: Final = ".conversion.json"


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Facts of one conversion.

    Attributes:
        source: checkpoint folder.
        draft: folder of the drafter, if one was given.
        output: artifact path; not written in a dry run.
        model_id, weights_id: identity of the artifact.
        groups: optional groups it carries.
        num_tensors, num_resources: objects.
        formats: number of tensors of each stored format.
        payload_bytes: size of the payload.
        file_bytes: size of the file; 0 in a dry run.
        addressable_tokens: ids the tokenizer addresses.
        is_dry_run: whether nothing was written.
        elapsed_s: duration until the last byte was written.
        notes: what the user should know, one sentence each.
    """

    source: str
    draft: str | None
    output: str
    model_id: str
    weights_id: str
    groups: tuple[str, ...]
    num_tensors: int
    num_resources: int
    formats: dict[str, int]
    payload_bytes: int
    file_bytes: int
    addressable_tokens: int
    is_dry_run: bool
    elapsed_s: float
    notes: tuple[str, ...]


def describe(
    options: ConvertOptions, plan: ConversionPlan, file_bytes: int, elapsed_s: float
) -> ConversionReport:
    """Sum up a plan and its outcome."""
    tensors = [found for found in plan.descriptors if isinstance(found, TensorDescriptor)]
    last = plan.descriptors[-1]
    groups = dict.fromkeys(tensor.wanted.group.value for tensor in plan.tensors)
    return ConversionReport(
        source=str(options.source),
        draft=None if options.draft is None else str(options.draft),
        output=str(options.output),
        model_id=plan.package.model_id,
        weights_id=plan.weights_id,
        groups=tuple(groups),
        num_tensors=len(tensors),
        num_resources=len(plan.descriptors) - len(tensors),
        formats=dict(sorted(Counter(found.format.value for found in tensors).items())),
        payload_bytes=last.offset + last.nbytes,
        file_bytes=file_bytes,
        addressable_tokens=plan.resources.addressable_tokens,
        is_dry_run=options.is_dry_run,
        elapsed_s=round(elapsed_s, 3),
        notes=plan.notes,
    )


def report_path(output: Path) -> Path:
    """Where the report of an artifact lies: ``NAME.conversion.json`` beside ``NAME.ninfer``."""
    name = output.name.removesuffix(_ARTIFACT_SUFFIX) or output.name
    return output.with_name(name + _REPORT_SUFFIX)


@contextlib.contextmanager
def placed_report(report: ConversionReport, path: Path) -> Iterator[None]:
    """Put the report in place, and take it back when the block fails.

    An older report is kept aside until the block ends, and comes back with the taking back.

    Raises:
        OSError: the file system refused; nothing has changed.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    older = path.with_name(f".{secrets.token_hex(8)}.older")
    text = json.dumps(asdict(report), indent=2) + "\n"
    is_placed = False
    try:
        partial.write_text(text, "utf-8")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, older)
        os.replace(partial, path)
        is_placed = True
        yield
    except BaseException:
        if is_placed:
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(older, path)
        raise
    finally:
        partial.unlink(missing_ok=True)
        older.unlink(missing_ok=True)
