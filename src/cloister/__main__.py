"""The command `cloister`, and `python -m cloister`. Nothing is imported before Ctrl-C is provided for."""

from cloister.cli.interrupts import leave_when_interrupted


def main() -> None:
    """The entry point."""
    leave_when_interrupted()
    from cloister.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
