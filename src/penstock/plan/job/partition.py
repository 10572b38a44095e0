"""The layers of a model in pieces, for the stages of a pipeline."""


def pieces(layers: int, count: int) -> list[range]:
    """As even as can be. Where it does not divide, the middle gets more: the last piece has the
    head as well and never gets more, the first has the embedding and does only if it must."""
    least, more = divmod(layers, count)
    longer = set([*range(1, count - 1), 0][:more])
    found, start = [], 0
    for piece in range(count):
        stop = start + least + (piece in longer)
        found.append(range(start, stop))
        start = stop
    return found
