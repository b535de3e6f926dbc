"""Kernel names of every library and year, to their category."""

from __future__ import annotations

import pytest

from zerotrace.ingest.classify import canonical_cat, device_category
from zerotrace.model import Category

COMM = [
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "nccldevkernel_allgather_ring_ll",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_float_LL(ncclDevComm*, mscclAlgo*)",
    "void multimem_all_reduce_kernel<c10::BFloat16>(c10::BFloat16*, unsigned long)",
    "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float>(float**)",
    "two_shot_all_reduce_kernel_inplace",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "void deep_ep::intranode::dispatch<8, 768>(int4*)",
    "void nvshmemi_transfer_rma_kernel(int)",
    "oneapi::ccl::v1::allreduce_kernel",
    "hcclAllReduce",
]
COMPUTE = [
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "void at::native::batch_norm_collect_statistics_SyncBatchNorm(float*)",
    "hipblaslt_gemm_bf16",
    "fused_dma_kernel",
    "reduce_kernel_of_nothing_nccl_related",
]


@pytest.mark.parametrize("name", COMM)
def test_collective_kernels_are_comm_by_name(name: str) -> None:
    assert device_category("kernel", name, False) is Category.COMM


@pytest.mark.parametrize("name", COMPUTE)
def test_other_kernels_are_compute(name: str) -> None:
    assert device_category("kernel", name, False) is Category.COMPUTE


@pytest.mark.parametrize("cat", ["gpu_memcpy", "gpu_memset", "Memcpy", "Memset"])
def test_copies_and_sets_are_copy_unless_a_collective_makes_them(cat: str) -> None:
    assert device_category(canonical_cat(cat), "Memcpy PtoP", False) is Category.COPY
    assert device_category(canonical_cat(cat), "Memcpy PtoP", True) is Category.COMM


@pytest.mark.parametrize("cat", ["gpu_user_annotation", "cuda_sync", "cpu_op", "python_function", "", "cuda_runtime"])
def test_nothing_else_is_device_time(cat: str) -> None:
    assert device_category(cat, "ncclDevKernel_AllReduce", True) is None
