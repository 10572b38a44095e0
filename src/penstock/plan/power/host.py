"""The power of a host around its accelerators: processors, cards, switches, fans.

Four kinds of machine, by the accelerator that is sold in them. All of it is estimated; eight
accelerators on a board are what the metered nodes have, and there the sum is checked.
"""

from dataclasses import dataclass

from penstock.catalog.accelerators import Accelerator
from penstock.plan.hardware.machine import MOST_IN_A_NODE

# Share of an air-cooled node's fan power that other cooling leaves. With cold plates, fans still
# cool memory and cards. Where the cooling is unknown, half: wrong by half of the fans at most.
FANS_LEFT = {"air": 1.0, "liquid": 0.2, "immersion": 0.0, "unknown": 0.5}


@dataclass(frozen=True)
class HostPower:
    """Watts behind the supplies while training."""

    kind: str
    socket_w: float  # a processor with its memory and disks
    beside_w: float  # for each accelerator: network card, part of the switches
    each_socket: int  # accelerators that share a processor
    fans: float  # in air, of the node's draw at full load
    whole: int = 1  # accelerators that never come in fewer: a run on less has its part
    least_sockets: int = 1
    most_in_rack: int = 8  # nodes, by their height

    def processors_w(self, accelerators: int) -> float:
        if accelerators < self.whole:
            return self.socket_w * accelerators / self.each_socket
        return self.socket_w * max(self.least_sockets, -(-accelerators // self.each_socket))

    def total_w(self, accelerators: int) -> float:
        """Return the watts without fans."""
        return self.processors_w(accelerators) + accelerators * self.beside_w

    def fans_share(self, cooling: str) -> float:
        return self.fans * FANS_LEFT[cooling]


# On a board with its switches, by four or eight: 1.5 kW with eight. Fans: an air-cooled 8 × H100
# node reaches 8.48 kW under gpu-burn (arXiv 2412.08602), an immersed one 7.2 kW in training. With
# it an H100 alone is at 550 W when three quarters busy; OLMo's development runs measured 542 to
# 546 W on theirs (arXiv 2503.05804).
BOARD = HostPower(
    "board", 300.0, 112.5, each_socket=4, fans=0.15, whole=4, least_sockets=2, most_in_rack=4
)
# A rack that is one scale-up domain. NVIDIA's budget of a GB300 tray (ML Engineering 744d01e): 1 kW
# for two Grace with their memory, 0.9 kW for cards, switches and fans beside four accelerators. In
# training the processors have little to do: half of that (estimated).
RACK = HostPower("rack", 250.0, 225.0, each_socket=2, fans=0.0, whole=4, most_in_rack=1)
CARDS = HostPower("server of cards", 300.0, 40.0, each_socket=4, fans=0.15)
DESKTOP = HostPower("desktop", 120.0, 15.0, each_socket=8, fans=0.04)


def is_rack_scale(chip: Accelerator | None) -> bool:
    """Tell whether the scale-up domain of this accelerator is a rack, sold and placed whole."""
    return chip is not None and chip.domain > MOST_IN_A_NODE and chip.link.startswith("NVL")


def host_power(chip: Accelerator | None) -> HostPower:
    """Return the host that an accelerator is usually sold in."""
    if chip is None:
        return BOARD
    if chip.name.startswith("RTX"):
        return DESKTOP
    if is_rack_scale(chip):
        return RACK
    return BOARD if chip.domain > 2 else CARDS
