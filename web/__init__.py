"""Files of the chat page; a package only so that they are installed as ``ninfer.web``."""
