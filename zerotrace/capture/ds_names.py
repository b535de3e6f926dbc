"""The keys that DeepSpeed's configuration has, without DeepSpeed: for what is said of a configuration on paper.

Sections were read from the fields, and their aliases, of the classes in ``runtime/zero/config.py``,
``runtime/zero/offload_config.py`` and ``runtime/precision_config.py`` of DeepSpeed 0.19.8; a test holds them against
the DeepSpeed that is installed. :mod:`zerotrace.capture.ds_keys` asks that one itself, for a capture.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from zerotrace.capture.ds_keys import SECTION_KEYS, known_top_level

#: The DeepSpeed whose keys these are.
SOURCE = "DeepSpeed 0.19.8"

_ZERO = "zero_optimization"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Keys of the sections that decide what is held and sent.
SECTIONS: Mapping[str, frozenset[str]] = {
    _ZERO: _words(
        """
        allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients
        cpu_offload cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
        gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
        log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear
        model_persistence_threshold module_granularity_threshold offload_optimizer offload_param overlap_comm
        override_module_apply param_persistence_threshold parameter_alignment pipeline_loading_checkpoint
        prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
        stage stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
        stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters stage3_max_reuse_distance
        stage3_model_persistence_threshold stage3_module_granularity_threshold stage3_param_persistence_threshold
        stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size
        use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size
        zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
        """
    ),
    f"{_ZERO}.offload_param": _words("buffer_count buffer_size device max_in_cpu nvme_path pin_memory"),
    f"{_ZERO}.offload_optimizer": _words(
        """
        buffer_count cpuadam_cores_perc device fast_init nvme_path pin_memory pipeline_read pipeline_write ratio
        super_offload
        """
    ),
    "bf16": _words(
        "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update"
    ),
    "fp16": _words(
        """
        auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis initial_scale_power loss_scale
        loss_scale_window min_loss_scale
        """
    ),
}


def unknown_keys(config: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """What a configuration names and DeepSpeed does not know, one sentence each.

    At the top level DeepSpeed ignores such a key; in a section it refuses to start.

    Args:
        config: the configuration, or one section of it.
        section: where that is, dotted.
    """
    known = _known(section)
    for key, value in config.items():
        path = f"{section}.{key}" if section else key
        if known is not None and key not in known:
            effect = "which refuses to start with it" if section else "which ignores it"
            nearest = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6)
            meant = f"; did you mean {f'{section}.' if section else ''}{nearest[0]}?" if nearest else ""
            yield f"{path} is no key of {SOURCE}, {effect}; it changes nothing here{meant}"
        elif isinstance(value, Mapping):
            yield from unknown_keys(value, path)


def _known(section: str) -> frozenset[str] | None:
    """The keys of a section; ``None`` where they are not listed here."""
    if not section:
        return known_top_level()
    return SECTIONS.get("bf16" if section == "bfloat16" else section) or SECTION_KEYS.get(section)
