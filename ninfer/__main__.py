"""``python -m ninfer``: the same program as the console script."""

from ninfer.cli.entry import entry

if __name__ == "__main__":
    entry()
