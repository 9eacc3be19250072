"""Files of the frontend among the resources an artifact carries. Source: the artifact format."""

from collections.abc import Mapping

from ninfer.errors import CheckpointError

_PREFIX = "frontend/"
_TEMPLATE = "chat_template.jinja"


def resource_file(resources: Mapping[str, bytes], name: str) -> bytes:
    """Content of a file.

    Raises:
        CheckpointError: it is missing.
    """
    data = resources.get(_PREFIX + name)
    if data is None:
        raise CheckpointError(f"{_PREFIX}{name} is missing", field=_PREFIX + name)
    return bytes(data)


def template_source(resources: Mapping[str, bytes]) -> str:
    """Source of the artifact's chat template.

    Raises:
        CheckpointError: it is missing or not UTF-8.
    """
    try:
        return resource_file(resources, _TEMPLATE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{_TEMPLATE} is not UTF-8", field=_TEMPLATE) from error
