"""Writes a Kineto trace of any size, as torch.profiler would of a ZeRO-3 step with stacks and shapes.

    python tools/big_trace.py run/rank_0.json.gz --size 300MB

With ``--plain``, neither python frames nor shapes of operators are in it: a few times as many events in as much text.
Steps are repeated until the text has the size that is asked for. The same seed, rank and size give the same bytes. The
text is never held whole: host rows come first and device rows behind them, as Kineto has it, and each is made anew from
the seed of its step.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from isal import igzip

from zerotrace.units import format_bytes, parse_bytes

_LAYERS = 24
_PID, _MAIN, _AUTOGRAD = 4001, 4001, 4123
_COMPUTE, _COMM = 7, 20
_BASE_NS = 1_790_000_000_000_000_000
_FIRST_US = 5_128_244_531_000

#: Operators of a layer: what python calls, the operators inside one another, input shapes, and the kernel.
# fmt: off
_OPS = (
    ("layer_norm", ("aten::layer_norm", "aten::native_layer_norm"), "[[4, 1024, 1280], [], [1280], [1280], [], []]",
     "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float, "
     "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"),
    ("linear", ("aten::linear", "aten::addmm"), "[[4096, 1280], [3840, 1280], [3840]]",
     "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNT"),
    ("split", ("aten::split", "aten::narrow", "aten::slice", "aten::as_strided"), "[[4, 1024, 3840], [], []]", None),
    ("scaled_dot_product_attention",
     ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
      "aten::_flash_attention_forward"),
     "[[4, 20, 1024, 64], [4, 20, 1024, 64], [4, 20, 1024, 64], [], [], [], []]",
     "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
     "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"),
    ("linear", ("aten::linear", "aten::addmm"), "[[4096, 1280], [1280, 1280], [1280]]",
     "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT"),
    ("dropout", ("aten::dropout", "aten::native_dropout"), "[[4, 1024, 1280], [], []]",
     "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 8, bool>"
     "(at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, float, at::PhiloxCudaState)"),
    ("add", ("aten::add",), "[[4, 1024, 1280], [4, 1024, 1280], []]",
     "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
     "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"),
    ("linear", ("aten::linear", "aten::addmm"), "[[4096, 1280], [5120, 1280], [5120]]",
     "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"),
    ("gelu", ("aten::gelu",), "[[4, 1024, 5120], []]",
     "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
     "at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::"
     "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl)"),
    ("linear", ("aten::linear", "aten::addmm"), "[[4096, 5120], [1280, 5120], [1280]]",
     "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNT"),
)
# fmt: on

#: Frames around each operator, outermost first.
_FRAMES = (
    "torch/nn/modules/module.py(1775): _wrapped_call_impl",
    "torch/nn/modules/module.py(1781): _call_impl",
    "deepspeed/runtime/zero/parameter_offload.py(245): _pre_forward_module_hook",
    "transformers/models/gpt2/modeling_gpt2.py(404): forward",
)

_HEAD = """
{
  "schemaVersion": 1,
  "deviceProperties": [
  {
    "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0, "numSms": 132
  }
  ],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_count": 1, "nccl_version": "2.28.9"},
  "with_stack": 1, "record_shapes": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %d,
  "traceEvents": [
"""


# fmt: off
class _Step:
    """The rows of one step: on the host and on the device, as text."""

    def __init__(self, rng: random.Random, number: int, start_ns: int, first_id: int, rank: int, world_size: int,
                 plain: bool):
        self.host: list[str] = []
        self.device: list[str] = []
        self._rng = rng
        self._rank, self._world_size, self._plain = rank, world_size, plain
        self.next_id = first_id
        self._now = start_ns
        self._free = {_COMPUTE: start_ns, _COMM: start_ns}
        self._pending: list[tuple[str, int]] = []
        begin = len(self.host)
        self._forward()
        self._backward()
        self._optimizer()
        self.end_ns = max(self._now, *self._free.values()) + 50_000
        self._host_row("user_annotation", f"ProfilerStep#{number}", start_ns, self.end_ns, _MAIN,
                       f'"External id": {self._id()},"Record function id": 0, "Ev Idx": {begin}', begin)

    def _forward(self) -> None:
        for layer in range(_LAYERS):
            self._collective("_allgather_base", 19_660_800 // self._world_size, 19_660_800, _MAIN)
            first, start = len(self.host), self._now
            for call, operators, dims, kernel in _OPS:
                self._call(layer, call, operators, dims, kernel)
            self._frame(f"nn.Module: GPT2Block_{layer}", start, first)

    def _backward(self) -> None:
        for layer in reversed(range(_LAYERS)):
            self._collective("_allgather_base", 19_660_800 // self._world_size, 19_660_800, _AUTOGRAD)
            for _, operators, dims, kernel in reversed(_OPS):
                name = operators[-1].removeprefix("aten::").title().replace("_", "") + "Backward0"
                first, start = len(self.host), self._now
                self._operators((name, operators[-1]), dims, kernel, _AUTOGRAD, more=", \"Fwd thread id\": 1")
                self._host_row("cpu_op", f"autograd::engine::evaluate_function: {name}", start, self._now, _AUTOGRAD,
                               f'"External id": {self._id()},"Record function id": 0, "Sequence number": {layer}, '
                               f'"Fwd thread id": 1, "Ev Idx": {first}', first)
            self._collective("_reduce_scatter_base", 19_660_800, 19_660_800 // self._world_size, _AUTOGRAD)

    def _optimizer(self) -> None:
        for _ in range(4):
            self._call(0, "_multi_tensor_adam", ("aten::_foreach_add_", "aten::add_"), "[[9830400], [9830400], []]",
                       "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float>"
                       "(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>)")

    def _call(self, layer: int, call: str, operators: tuple[str, ...], dims: str, kernel: str | None) -> None:
        first, start = len(self.host), self._now
        self._tick(900)
        self._operators(operators, dims, kernel, _MAIN)
        for depth, frame in enumerate((f"<built-in function {call}>", *reversed(_FRAMES))):
            self._frame(frame, start + 100 * (len(_FRAMES) - depth), first)
        self._frame(f"nn.Module: {call.title()}_{layer}", start, first)

    def _operators(
        self, operators: tuple[str, ...], dims: str, kernel: str | None, tid: int, *, more: str = ""
    ) -> None:
        first = len(self.host)
        starts = [self._tick(1_500) for _ in operators]
        if kernel is not None:
            self._launch(kernel, tid, self._rng.randrange(4_000, 90_000), _COMPUTE, "")
        types = ", ".join(['"c10::BFloat16"'] * dims.count("[") + ['"Scalar"'])
        shapes = (f'"Concrete Inputs": ["", "", "1"], "Input type": [{types}], "Input Strides": {dims}, '
                  f'"Input Dims": {dims}, ')
        for name, start in reversed([*zip(operators, starts)]):
            self._tick(700)
            self._host_row("cpu_op", name, start, self._now, tid,
                           f'"External id": {self._id()},"Record function id": 0, {"" if self._plain else shapes}'
                           f'"Sequence number": {self.next_id}{more}, "Ev Idx": {first}', first)

    def _collective(self, name: str, put: int, got: int, tid: int) -> None:
        ranks = str([*range(self._world_size)])
        args = (f'"Collective name": "{name}", "In msg nelems": {put}, "Out msg nelems": {got}, '
                f'"Group size": {self._world_size}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]"'
                f', "Process Group Name": "0", "Process Group Description": "default_pg", '
                f'"Process Group Ranks": "{ranks}"')
        first, start = len(self.host), self._tick(2_000)
        kernel = "AllGather" if "gather" in name else "ReduceScatter"
        self._launch(f"ncclDevKernel_{kernel}_RING_LL(ncclDevKernelArgsStorage<4096ul>)", tid,
                     self._rng.randrange(200_000, 500_000), _COMM, f", {args}")
        self._tick(3_000)
        self._host_row("cpu_op", "record_param_comms", start, self._now, tid,
                       f'"External id": {self._id()},"Record function id": 0, {args}, "Ev Idx": {first}', first)

    def _launch(self, kernel: str, tid: int, dur_ns: int, stream: int, args: str) -> None:
        start = self._tick(1_000)
        end = self._tick(6_000)
        begins = max(self._free[stream], end + self._rng.randrange(500, 3_000))
        self._free[stream] = begins + dur_ns
        if stream == _COMM:
            # a rank may be late; all end at once, and every fourth time compute waits for it
            late = self._rng.randrange(0, dur_ns // 2, 1_000) * (self._rng.randrange(self._world_size) == self._rank)
            begins, dur_ns = begins + late, dur_ns - late
            if self._rng.randrange(4) == 0:
                self._free[_COMPUTE] = max(self._free[_COMPUTE], self._free[_COMM])
        number = self._id()
        self.device.append(
            f'  {{\n    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {_us(begins)}, "dur": {_dur(dur_ns)},\n    "args": {{\n'
            f'      "External id": {number},      "queued": 0, "device": 0, "context": 1,      "stream": {stream}, '
            f'"correlation": {number},      "registers per thread": 96,      "shared memory": 0,      '
            f'"blocks per SM": 1.939394,      "warps per SM": 15.515152,      "grid": [256, 1, 1],      '
            f'"block": [256, 1, 1],      "est. achieved occupancy %": 24{args}\n    }}\n  }},\n'
            f'  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": {stream}, "ts": {_us(begins)},\n'
            f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
            f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {_PID}, "tid": {tid},\n'
            f'    "ts": {_us(start)}, "dur": {_dur(end - start)},\n    "args": {{\n'
            f'      "External id": {number},      "cbid": 211, "correlation": {number}\n    }}\n  }},\n'
            f'  {{\n    "ph": "s", "id": {number}, "pid": {_PID}, "tid": {tid}, "ts": {_us(start)},\n'
            f'    "cat": "ac2g", "name": "ac2g"\n  }},\n'
        )

    def _frame(self, name: str, start: int, first: int) -> None:
        number = self._id()
        if self._plain:
            return
        self._host_row("python_function", name, start, self._now, _MAIN,
                       f'"Python parent id": {number - 1}, "Python id": {number}, "Ev Idx": {first}', first)

    def _host_row(self, cat: str, name: str, start: int, end: int, tid: int, args: str, first: int) -> None:
        # before the rows that lie in it, as Kineto sorts them
        self.host.insert(
            first,
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {_PID}, "tid": {tid},\n'
            f'    "ts": {_us(start)}, "dur": {_dur(end - start)},\n    "args": {{\n      {args}\n    }}\n  }},\n',
        )

    def _tick(self, ns: int) -> int:
        self._now += self._rng.randrange(ns // 2, 2 * ns)
        return self._now

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id
# fmt: on


def write_trace(
    path: Path, num_bytes: int, *, rank: int = 0, world_size: int = 2, seed: int = 0, plain: bool = False
) -> int:
    """Writes a trace, gzipped if its name ends in ``.gz``.

    Args:
        path: the file; its folder is made.
        num_bytes: what its text is to have, to within half a step: about 5 MB.
        rank: whose trace it is.
        world_size: of how many ranks.
        seed: of all that is random.
        plain: without python frames and shapes.

    Returns:
        Bytes of the text.
    """
    # as many on each rank
    sample = _Step(_random(seed, 1), 1, 0, 100, 0, world_size, plain)
    num_steps = max(1, round(num_bytes / sum(map(len, [*sample.host, *sample.device]))))
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as stream:

        def put(text: str) -> None:
            nonlocal written
            written += stream.write(text.encode())

        put(_HEAD % (rank, world_size, _BASE_NS))
        begins: list[tuple[int, int]] = []
        at, number = 0, 100
        for count in range(1, num_steps + 1):
            begins.append((at, number))
            step = _Step(_random(seed, count), count, at, number, rank, world_size, plain)
            put("".join(step.host))
            at, number = step.end_ns, step.next_id
        for count, (begin, first) in enumerate(begins, start=1):
            put("".join(_Step(_random(seed, count), count, begin, first, rank, world_size, plain).device))
        put(
            '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
            f'    "pid": "", "tid": "", "ts": {_us(at)}\n  }}\n  ],\n  "traceName": "rank_{rank}.json"\n}}\n'
        )
    return written


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path.name.endswith(".gz"):
        with igzip.open(path, "wb", compresslevel=2) as stream:
            yield stream
    else:
        with path.open("wb") as stream:
            yield stream


def _random(seed: int, step: int) -> random.Random:
    return random.Random(f"{seed} {step}")  # the same on each rank: their hosts do the same


def _us(ns: int) -> str:
    return f"{_FIRST_US + ns // 1000}.{ns % 1000:03}"


def _dur(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def main() -> None:
    """Writes one trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path, help="file to write; gzipped if it ends in .gz")
    parser.add_argument("--size", type=parse_bytes, required=True, help="of the text, such as 300MB")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without python frames and shapes: more events a byte")
    options = parser.parse_args()
    size = write_trace(
        options.path,
        options.size,
        rank=options.rank,
        world_size=options.world,
        seed=options.seed,
        plain=options.plain,
    )
    sys.stdout.write(f"{options.path}: {format_bytes(size)} of text, {format_bytes(options.path.stat().st_size)}\n")


if __name__ == "__main__":
    main()
