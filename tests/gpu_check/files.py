"""Tensors in files, with PyTorch alone: a machine with GPUs need not have numpy or safetensors."""
import ctypes
import json
import struct

import torch

TYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}


def to_bytes(tensor):
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def write_safetensors(tensors, path):
    names = {dtype: name for name, dtype in TYPES.items()}
    header, blocks, offset = {}, [], 0
    for name, tensor in tensors.items():
        blocks.append(to_bytes(tensor))
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blocks[-1])]}
        offset += len(blocks[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def read_safetensors(path):
    data = bytearray(path.read_bytes())
    length = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = TYPES[entry["dtype"]]
        flat = torch.empty(0, dtype=dtype)
        if end > begin:
            count = (end - begin) // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=8 + length + begin)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def write_tokens(tokens, path):
    path.write_bytes(to_bytes(tokens.to(torch.int32)))


def worst_difference(ours, theirs):
    """(relative L2 norm of the difference, name) of the worst tensor; both must hold the same tensors."""
    if not theirs or set(ours) != set(theirs):
        raise AssertionError(f"not the same tensors: {sorted(set(ours) ^ set(theirs))} are in one of them")
    worst = (-1.0, "")
    for name, expected in theirs.items():
        got = ours[name].double()
        norm, difference = expected.double().norm(), (got - expected.double()).norm()
        relative = (difference / norm if norm > 0 else difference).item()
        if not relative < float("inf"):
            raise AssertionError(f"{name} is not finite")
        worst = max(worst, (relative, name))
    return worst
