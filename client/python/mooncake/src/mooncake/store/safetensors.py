"""Tensors between the pool and files in the format of safetensors, which is loaded on first use."""

from __future__ import annotations

import logging
from typing import Any

from .codes import INVALID_PARAMS, OK
from .tensors import Tensors

_log = logging.getLogger(__name__)

_FILE_NOT_FOUND = -1100


class Safetensors(Tensors):
    """Calls that save and load one tensor."""

    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Write the tensor to a file, called like its key by default. 0, or a negative code."""
        tensor = self.get_tensor(key)
        if tensor is None:
            _log.error("save_tensor_to_safetensor: there is no tensor %r", key)
            return _FILE_NOT_FOUND
        try:
            from safetensors.torch import save_file

            save_file({key: tensor}, file_name or key)
        except Exception as error:
            _log.error("cannot save the tensor %r to %r: %s", key, file_name or key, error)
            return INVALID_PARAMS
        return OK

    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str | None = None) -> Any:
        """Store a tensor of the file under the key, or under the file's name. Returns the tensor, or None.

        A file without such a tensor gives its first one.
        """
        if file_name is None:
            raise TypeError("load_tensor_from_safetensor() needs the argument 'file_name'")
        try:
            from safetensors.torch import load_file

            tensors = load_file(file_name)
        except Exception as error:
            _log.error("cannot load tensors from %r: %s", file_name, error)
            return None
        if not tensors:
            _log.error("%r holds no tensors", file_name)
            return None
        if key is not None and key not in tensors:
            _log.warning("%r has no tensor %r: taking its first one", file_name, key)
        tensor = tensors[key] if key in tensors else next(iter(tensors.values()))
        code = self.put_tensor(file_name if key is None else key, tensor)
        if code != OK:
            _log.error("cannot store the tensor %r of %r: %d", key, file_name, code)
            return None
        return tensor
