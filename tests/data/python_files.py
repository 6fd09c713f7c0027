"""Writes the files that python_files_test.cpp reads, with numpy and safetensors:  python_files.py FOLDER"""
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

folder = Path(sys.argv[1])
features = np.arange(30).reshape(5, 2, 3)
target = np.arange(10, 15)

for name in ["uint8", "int32", "int64", "float32", "float64", "float16"]:
    np.save(folder / f"{name}.npy", features.astype(name))
np.save(folder / "target_int64.npy", target.astype(np.int64))
np.save(folder / "target_float32.npy", target.astype(np.float32))
for version in [1, 2, 3]:
    with open(folder / f"version{version}.npy", "wb") as file:
        np.lib.format.write_array(file, features.astype(np.float32), version=(version, 0))

np.save(folder / "fortran.npy", np.asfortranarray(features.astype(np.float32)))
np.save(folder / "big_endian.npy", features.astype(">f4"))
np.save(folder / "objects.npy", np.array([{}, [], None, 1, 2], dtype=object), allow_pickle=True)
np.save(folder / "structured.npy", np.zeros(5, dtype=[("a", "<f4"), ("b", "<i8")]))
np.save(folder / "bool.npy", features > 3)
np.save(folder / "scalar.npy", np.float32(3))
np.save(folder / "empty.npy", np.zeros((0, 3), np.float32))
np.savez(folder / "archive.npz", features=features)

tensors = {
    "features": features.astype(np.float32),
    "target": target.astype(np.int64),
    "x64": features.astype(np.float64),
    "target32": target.astype(np.int32),
    "bytes": features.astype(np.uint8),
    "half": features.astype(np.float16),
    "scalar": np.array(3, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}
for name in ["int8", "uint16", "int16", "uint32", "bool"]:
    tensors[name] = features.astype(name)
save_file(tensors, folder / "data.safetensors", metadata={"made by": "python_files.py", "text": "äöü"})

for name in ["uint16", "uint32", "int32", "int64"]:
    np.arange(100).astype(name).tofile(folder / f"{name}.bin")
