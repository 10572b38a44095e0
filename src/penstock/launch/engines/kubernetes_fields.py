"""The texts of `[cluster.kubernetes]` as Kubernetes wants them, and names that it can take."""

import hashlib
import re

from penstock.launch.engines.yaml_text import Value
from penstock.run.schema.engines import KubernetesSection

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LONGEST_NAME = 40
"""Of a JobSet: the names of its pods add `-node-99999-0-abcde`, and may have 63 characters."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_NAME_PART = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_QUALIFIED = re.compile(rf"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_NAME_PART}")
_LABEL_VALUE = re.compile(rf"({_NAME_PART})?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_WHOLE = re.compile(r"[0-9]+")


def object_name(run: str) -> str:
    """Return the name of a run's objects: a DNS label that begins with a letter.

    Two runs never share one: where a character has to go, a piece of the name's hash takes its
    place.
    """
    name = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = name if name[:1].isalpha() else f"run-{name}".rstrip("-")
    if name == run and len(name) <= LONGEST_NAME:
        return name
    mark = hashlib.sha256(run.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7].rstrip('-')}-{mark}"


def resources(section: KubernetesSection) -> dict[str, str]:
    """Return the resources of a pod. Raises ValueError for a text that is none."""
    found: dict[str, str] = {}
    for text in section.resources:
        name, equals, amount = text.partition("=")
        whole = "/" in name
        right = equals and _QUALIFIED.fullmatch(name) and _QUANTITY.fullmatch(amount)
        if not right or (whole and not _WHOLE.fullmatch(amount)):
            what = "a whole number of a device" if right else "no resource"
            raise ValueError(f'"{text}": {what}; write "rdma/ib=8", "cpu=16" or "memory=512Gi"')
        if name in found:
            raise ValueError(f'"{text}": {name} stands there twice; remove one')
        found[name] = amount
    return found


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is an accelerator: nvidia.com/gpu, amd.com/gpu, MIGs."""
    vendor, slash, kind = resource.partition("/")
    return bool(slash) and ("gpu" in kind or kind.startswith("mig-") or "gpu" in vendor)


def tolerations(section: KubernetesSection) -> list[Value]:
    """Return the tolerations of a pod. Raises ValueError for a text that is none."""
    found: list[Value] = []
    for text in section.tolerations:
        taint, colon, effect = text.partition(":")
        key, equals, value = taint.partition("=")
        if not _QUALIFIED.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise ValueError(f'"{text}": no taint; write "KEY=VALUE:EFFECT" or "KEY:EFFECT"')
        if colon and effect not in EFFECTS:
            raise ValueError(f'"{text}": no effect "{effect}"; write {" or ".join(EFFECTS)}')
        one: dict[str, Value] = {"key": key, "operator": "Equal" if equals else "Exists"}
        one |= {"value": value} if equals else {}
        found.append(one | ({"effect": effect} if colon else {}))
    return found


def node_selector(section: KubernetesSection) -> dict[str, Value]:
    """Return the labels that nodes must have. Raises ValueError for a text that is none."""
    found: dict[str, Value] = {}
    for text in section.node_selector:
        key, equals, value = text.partition("=")
        if not (equals and _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            raise ValueError(f'"{text}": no label; write "KEY=VALUE", such as "pool=h100"')
        found[key] = value
    return found


def refused_fields(section: KubernetesSection) -> list[str]:
    """Say which fields Kubernetes cannot take, a line each."""
    problems = [
        f'cluster.kubernetes.{name} = "{value}": no name in Kubernetes; write lower-case letters, '
        "digits and '-', as `kubectl get` shows it"
        for name, value, pattern in _names(section)
        if not pattern.fullmatch(value)
    ]
    for name, read in (
        ("resources", resources),
        ("tolerations", tolerations),
        ("node_selector", node_selector),
    ):
        try:
            read(section)
        except ValueError as error:
            problems.append(f"cluster.kubernetes.{name}: {error}")
    if section.image and re.search(r"\s", section.image):
        problems.append(
            f'cluster.kubernetes.image = "{section.image}": no name of an image; write '
            '"REGISTRY/penstock:TAG"'
        )
    return problems


def _names(section: KubernetesSection) -> list[tuple[str, str, re.Pattern[str]]]:
    """Return field, name and pattern of every object that the section names."""
    single = {
        "namespace": (section.namespace, _LABEL),
        "service_account": (section.service_account, _SUBDOMAIN),
        "claim": (section.claim, _SUBDOMAIN),
        "priority": (section.priority, _SUBDOMAIN),
        "queue": (section.queue, _LABEL),
    }
    several = {"pull_secrets": section.pull_secrets, "secrets": section.secrets}
    found = [(name, value, pattern) for name, (value, pattern) in single.items() if value]
    return found + [(name, one, _SUBDOMAIN) for name, all_ in several.items() for one in all_]
