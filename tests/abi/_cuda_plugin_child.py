"""What Python says of the NVIDIA slot, as JSON, and whether the CPU computes. See test_cuda_plugin.py."""

import json

import _library
import numpy as np
from _backend_child import count, info

import infiniop_py

library = _library.load()
said = {"count": count(library, 1), "reason": info(library, 1).reason.decode()}
try:
    infiniop_py.Stream("nvidia")
except infiniop_py.InfiniopError as error:
    said |= {"error": type(error).__name__, "message": str(error)}
x = np.array([1, 2], "f4")
print(json.dumps(said | {"after": infiniop_py.add(x, x).tolist()}))
