"""What the keys do while a run trains, and what they answer: save, stop, open the page, help."""

import signal
import time

from penstock.run.folder import RunFolder
from penstock.watch.terminal.keys import Keyboard
from penstock.watch.terminal.page import Page
from penstock.watch.terminal.screen import Foot

NOTE_S = 8.0  # that an answer stays
LONG_S = 80.0  # of one that is to be copied


class Deeds:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.page = Page(folder)
        self.keyboard = Keyboard()
        self.keys = self.keyboard.start()
        self.note, self.style, self.until_s = "", "", 0.0
        self.asking = self.helping = False
        self.ending = False  # the run is about to stop

    def heard(self) -> bool:
        """Takes in what was pressed; whether the foot of the screen has changed."""
        changed = False
        if self.note and time.monotonic() >= self.until_s:
            self.note, self.asking, changed = "", False, True
        for key in self.keyboard.read().lower():
            self._pressed(key)
            changed = True
        if self.page.look():
            self.say(self.page.address or f"no page: {self.page.problem}", stay_s=LONG_S)
            changed = True
        return changed

    def say(self, words: str, style: str = "cyan", stay_s: float = NOTE_S) -> None:
        self.note, self.style, self.until_s = words, style, time.monotonic() + stay_s

    def foot(self) -> Foot:
        if self.note:
            return Foot(self.keys, self.note, self.style, self.helping)
        if self.ending:
            words = "stopping: saving first; Ctrl-C ends it at once"
            return Foot(self.keys, words, "yellow", self.helping)
        return Foot(self.keys, help=self.helping)

    def close(self) -> None:
        self.keyboard.stop()
        self.page.close()

    def _pressed(self, key: str) -> None:
        if self.asking:
            self.asking, self.note = False, ""
            if key in "qy":
                self._stop()
        elif key == "s":
            self.folder.wish("save")
            self.say("a checkpoint is saved after this step")
        elif key == "q" and not self.ending:
            self.asking = True
            self.say("save and stop? y or q again: yes; any other key: no", "bold yellow", LONG_S)
        elif key == "o":
            self.page.open()
            self.say(self.page.address or "the page is being opened …", stay_s=LONG_S)
        elif key in "h?":
            self.helping = not self.helping

    def _stop(self) -> None:
        """As Ctrl-C does, once; a run whose Ctrl-C nobody hears is asked in its folder."""
        self.folder.wish("stop")
        signal.raise_signal(signal.SIGINT)
