"""gdb commands for programs that run fibers (crate fiber):

  (gdb) source tools/gdb/fibers.py
  (gdb) info fibers            every fiber: number, state, name, what it waits for, where it was spawned
  (gdb) fiber NUMBER           backtrace of a fiber that waits
  (gdb) fiber NUMBER COMMAND   any command in its innermost frame, for example `fiber 7 info locals`

They call functions of the program, so it must be alive: `gdb -p PID`. A fiber that runs is in its
processor's thread: `info threads`.
"""

from __future__ import annotations

import gdb

COLUMNS = ("number", "state", "name", "waits for", "spawned at")


class Fiber:
    """A fiber: one line of the program's list."""

    def __init__(self, line: str) -> None:
        number, self.state, *frame, self.name, self.waits_for, self.spawned_at = line.split("\t")
        self.number = int(number)
        self.instruction, self.stack, self.base = (int(register) for register in frame)

    def row(self) -> tuple[str, ...]:
        """The line of `info fibers`."""
        return (str(self.number), self.state, self.name, self.waits_for, self.spawned_at)


def fibers() -> list[Fiber]:
    """Calls the program's function that lists its fibers."""
    try:
        # Without debugging symbols gdb does not know what the function returns.
        text = gdb.parse_and_eval("((char *(*)(void)) weft_debugger_fibers)()").string()
    except gdb.error as error:
        raise gdb.GdbError(f"no fibers here: {error}") from None
    if text == "busy\n":
        raise gdb.GdbError("the list of fibers is being changed just now: `continue` for a moment and try again")
    return [Fiber(line) for line in text.splitlines()]


class InfoFibers(gdb.Command):
    """info fibers: list all fibers and what each waits for."""

    def __init__(self) -> None:
        super().__init__("info fibers", gdb.COMMAND_STATUS)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 (gdb's signature)
        rows = [COLUMNS, *(fiber.row() for fiber in fibers())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


class SelectFiber(gdb.Command):
    """fiber NUMBER [COMMAND]: run COMMAND (backtrace) in the frame where a fiber waits."""

    def __init__(self) -> None:
        super().__init__("fiber", gdb.COMMAND_STACK)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 (gdb's signature)
        number, _, command = argument.partition(" ")
        if not number.isdecimal():
            raise gdb.GdbError("usage: fiber NUMBER [COMMAND]; `info fibers` lists them")
        found = [fiber for fiber in fibers() if fiber.number == int(number)]
        if not found:
            raise gdb.GdbError(f"there is no fiber {number}")
        fiber = found[0]
        if not fiber.stack:
            raise gdb.GdbError(f"fiber {number} has no frame that waits: it is {fiber.state}")
        in_frame(fiber, command or "backtrace")


def in_frame(fiber: Fiber, command: str) -> None:
    """Runs a gdb command with the registers of a fiber, and puts the thread's own back."""
    names = ("pc", "sp", "x29" if "aarch64" in gdb.selected_frame().architecture().name() else "rbp")
    gdb.execute("frame 0", to_string=True)
    saved = [int(gdb.parse_and_eval(f"(unsigned long) ${name}")) for name in names]
    try:
        set_registers(names, (fiber.instruction, fiber.stack, fiber.base))
        gdb.execute(command)
    finally:
        gdb.execute("frame 0", to_string=True)
        set_registers(names, saved)


def set_registers(names: tuple[str, ...], values: list[int] | tuple[int, ...]) -> None:
    """Sets registers of the selected thread's innermost frame."""
    # The stack pointer last: setting it changes the frame.
    for name, value in zip(names, values):
        gdb.execute(f"set ${name} = {value}", to_string=True)


InfoFibers()
SelectFiber()
