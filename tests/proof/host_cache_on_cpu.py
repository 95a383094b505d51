"""vLLM's cache in host memory, with copies that vLLM for CPU can make.

The release refuses its own copies where there is no GPU: streams of one, memory that it pins. What
decides is the release's: which blocks are stored, found, loaded and evicted, and what is counted.
Imported by the engine itself, as ``spec_module_path``.
"""

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies blocks at once, in the thread that asks."""

    def __init__(self, caches: CanonicalKVCaches, num_chunks: int) -> None:
        self._blocks = [each.tensor for each in caches.tensors]
        self._chunks = [
            torch.zeros((num_chunks, *each.shape[1:]), dtype=each.dtype) for each in self._blocks
        ]
        self._finished = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, (self._blocks, src_spec), (self._chunks, dst_spec))

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, (self._chunks, src_spec), (self._blocks, dst_spec))

    def _copy(self, job_id, source, target):
        num_bytes = 0
        for each, other in zip(source[0], target[0], strict=True):
            moved = each[torch.from_numpy(source[1].block_ids).long()]
            other[torch.from_numpy(target[1].block_ids).long()] = moved
            num_bytes += moved.numel() * moved.element_size()
        self._finished.append(
            TransferResult(job_id, success=True, transfer_size=num_bytes, transfer_time=1e-6)
        )
        return True

    def get_finished(self):
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids):
        """Do nothing: all was copied."""


class HostCacheOnCpu(CPUOffloadingSpec):
    """The release's own, but for the worker."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = CopyingWorker(kv_caches, self.num_chunks)
        return self._worker
