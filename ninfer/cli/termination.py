"""What a SIGTERM becomes inside the process; imports nothing, so that any moment can raise it."""


class Terminated(BaseException):
    """SIGTERM arrived."""
