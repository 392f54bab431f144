"""Which of a machine's GPUs a process may use, by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int | None]  # a GPU by its number, and one of the parts that MIG cut it into


def visible(value: str | None, gpus: Sequence[str], parts: Sequence[Sequence[str]]) -> list[Place]:
    """Those that CUDA shows, in its order.

    Args:
        value: of CUDA_VISIBLE_DEVICES; None where it is not set.
        gpus: their UUIDs, by number. By numbers CUDA means the fastest first unless CUDA_DEVICE_ORDER says PCI_BUS_ID,
            NVML the order of the bus; they are the same where all GPUs are alike.
        parts: the UUIDs of each GPU's parts; none where MIG is off.

    As CUDA reads it: what follows an entry that names nothing is not visible. A UUID may be cut short. A GPU in parts
    is seen by its first part, and of parts a process sees one only.
    Source: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html;
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    entries = (
        [str(number) for number in range(len(gpus))] if value is None else [each.strip() for each in value.split(",")]
    )
    found: list[Place] = []
    for entry in entries:
        place = _named(entry, gpus, parts)
        if place is None or place in found:
            break
        found.append(place)
    cut = [place for place in found if place[1] is not None]
    return cut[:1] or found


def _named(entry: str, gpus: Sequence[str], parts: Sequence[Sequence[str]]) -> Place | None:
    if entry.isdigit():
        number = int(entry)
        return (number, 0 if parts[number] else None) if number < len(gpus) else None
    if entry.startswith("MIG-"):
        known: list[Place] = [(gpu, part) for gpu, each in enumerate(parts) for part in range(len(each))]
        named = [(gpu, part) for gpu, part in known if parts[gpu][part or 0].startswith(entry)]
    else:
        named = [(gpu, 0 if parts[gpu] else None) for gpu, uuid in enumerate(gpus) if entry and uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None
