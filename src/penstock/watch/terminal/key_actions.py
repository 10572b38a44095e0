"""The actions of the keys while a run trains: save, stop, open the page, help."""

import signal
import time
from collections.abc import Callable

from penstock.run.folder import RunFolder
from penstock.watch.terminal.keys import Keyboard
from penstock.watch.terminal.page_process import PageProcess
from penstock.watch.terminal.screen import Footer

NOTE_S = 8.0  # that a note is shown
LONG_NOTE_S = 80.0  # for one that the user wants to copy or answer


class KeyActions:
    """Reads keys, does what they ask for, and holds the footer of the screen."""

    def __init__(self, folder: RunFolder, ask: Callable[[str], None] | None = None) -> None:
        """Read keys for a run; `ask` takes "save" and "stop" to one on other machines."""
        self.folder, self.ask = folder, ask
        self.page = PageProcess(folder)
        self.keyboard = Keyboard()
        self.keys = False  # whether keys can be pressed
        self.note, self.style, self.until_s = "", "", 0.0
        self.confirming = self.showing_help = False
        self.stopping = False  # the run is about to stop

    def start(self) -> None:
        """Begin to read keys, if there is a keyboard."""
        self.keys = self.keyboard.start()
        if self.ask:
            self.show_note("Ctrl-C leaves the run to itself; it goes on")

    def poll(self) -> bool:
        """Handle pressed keys; return whether the footer of the screen has changed."""
        changed = False
        if self.note and time.monotonic() >= self.until_s:
            self.note, self.confirming, changed = "", False, True
        for key in self.keyboard.read().lower():
            self._press(key)
            changed = True
        if self.page.poll():
            self.show_note(self.page.address or f"no page: {self.page.problem}", stay_s=LONG_NOTE_S)
            changed = True
        return changed

    def show_note(self, words: str, style: str = "cyan", stay_s: float = NOTE_S) -> None:
        self.note, self.style, self.until_s = words, style, time.monotonic() + stay_s

    def footer(self) -> Footer:
        if self.note:
            return Footer(self.keys, self.note, self.style, self.showing_help)
        if self.stopping and self.ask:
            return Footer(self.keys, "stopping: saving first", "yellow", self.showing_help)
        if self.stopping:
            words = "stopping: saving first; Ctrl-C ends it at once"
            return Footer(self.keys, words, "yellow", self.showing_help)
        return Footer(self.keys, help=self.showing_help)

    def close(self) -> None:
        self.keyboard.stop()
        self.page.close()

    def _press(self, key: str) -> None:
        if self.confirming:
            self.confirming, self.note = False, ""
            if key in "qy":
                self._stop()
        elif key == "s":
            (self.ask or self.folder.request)("save")
            self.show_note("a checkpoint is saved after this step")
        elif key == "q" and not self.stopping:
            self.confirming = True
            self.show_note(
                "save and stop? y or q again: yes; any other key: no", "bold yellow", LONG_NOTE_S
            )
        elif key == "o":
            self.page.open()
            self.show_note(self.page.address or "the page is being opened …", stay_s=LONG_NOTE_S)
        elif key in "h?":
            self.showing_help = not self.showing_help

    def _stop(self) -> None:
        """Stop as one Ctrl-C does, and by the control file in case no one handles the signal.

        Ctrl-C does not stop a run on other machines, but ends the following.
        """
        if self.ask:
            self.ask("stop")
            self.stopping = True
            return
        self.folder.request("stop")
        signal.raise_signal(signal.SIGINT)
