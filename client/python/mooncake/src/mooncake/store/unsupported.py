"""Names of upstream that have no meaning in this pool. They say why when they are called."""

from __future__ import annotations

from typing import NoReturn

_TASKS = "copies and moves are made by the pool: it restores replicas by itself, and `preferred_segment` chooses the store"
_PARALLELISM = "upstream has removed it in 0.3.14: use the *_with_tp methods"


class UnsupportedCalls:
    """Methods of upstream's store that raise NotImplementedError."""

    def create_copy_task(self, key: str, targets: list[str]) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"create_copy_task: {_TASKS}")

    def create_move_task(self, key: str, source: str, target: str) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"create_move_task: {_TASKS}")

    def query_task(self, task_id: tuple[int, int]) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"query_task: {_TASKS}")

    def begin_weight_snapshot(self, snapshot: object, adapter: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError("begin_weight_snapshot: the pool has no format for weights; put them as tensors")

    def _get_pyclient_capsule(self) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError("_get_pyclient_capsule: there is no C++ client behind this store")

    def put_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"put_tensor_with_parallelism: {_PARALLELISM}")

    def put_tensor_with_parallelism_from(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"put_tensor_with_parallelism_from: {_PARALLELISM}")

    def get_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"get_tensor_with_parallelism: {_PARALLELISM}")

    def get_tensor_with_parallelism_into(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"get_tensor_with_parallelism_into: {_PARALLELISM}")

    def upsert_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"upsert_tensor_with_parallelism: {_PARALLELISM}")

    def upsert_tensor_with_parallelism_from(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"upsert_tensor_with_parallelism_from: {_PARALLELISM}")

    def batch_put_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_put_tensor_with_parallelism: {_PARALLELISM}")

    def batch_put_tensor_with_parallelism_from(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_put_tensor_with_parallelism_from: {_PARALLELISM}")

    def batch_get_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_get_tensor_with_parallelism: {_PARALLELISM}")

    def batch_get_tensor_with_parallelism_into(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_get_tensor_with_parallelism_into: {_PARALLELISM}")

    def batch_upsert_tensor_with_parallelism(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_upsert_tensor_with_parallelism: {_PARALLELISM}")

    def batch_upsert_tensor_with_parallelism_from(self, *args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise NotImplementedError(f"batch_upsert_tensor_with_parallelism_from: {_PARALLELISM}")


class _Unsupported:
    _reason = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{type(self).__name__}: {self._reason}")


class ParallelAxis(_Unsupported):
    """Part of the `*_with_parallelism` calls."""

    _reason = _PARALLELISM


class TensorParallelism(_Unsupported):
    """Part of the `*_with_parallelism` calls."""

    _reason = _PARALLELISM


class ReadTarget(_Unsupported):
    """Part of the `*_with_parallelism` calls."""

    _reason = _PARALLELISM


class EngramStore(_Unsupported):
    """Tables of embeddings that upstream keeps in its store."""

    _reason = "the pool keeps objects, and no tables of embeddings: put the rows as objects"


class EngramStoreConfig(_Unsupported):
    """Configuration of `EngramStore`."""

    _reason = EngramStore._reason


class MooncakeDistributedNoFRegister(_Unsupported):
    """Registration of NVMe-oF targets."""

    _reason = "the pool has no disk tier"
