// The rows of ZeRO, in the order in which docs/ds_config.md shows them.
#include <span>

#include "engine/config/key_rows.h"

namespace dsat::engine {
namespace {

using enum Builtin;
using enum KeyUnit;

// The values that a search draws.
constexpr const char* kBuckets =
    "[1000000, 5000000, 10000000, 50000000, 100000000, 500000000, 1000000000, 5000000000]";
constexpr const char* kDevices = R"(["none", "cpu", "nvme"])";
constexpr const char* kOptimizerDevice = "/zero_optimization/offload_optimizer/device";
constexpr const char* kParamDevice = "/zero_optimization/offload_param/device";

constexpr Key kKeys[] = {
    // A search draws the values of searched keys in this order.
    Section("/zero_optimization", "0.1.0").Note("true = stage 1, false = stage 0"),
    Key{"/zero_optimization/stage", "0.2.0", KeyType::kStage, "0", kHonors}
        .From(0)
        .To(3)
        .Rounding(),
    Elems("/zero_optimization/reduce_bucket_size", "0.2.0", "500000000", 1)
        .Rounding()
        .UpToParams()
        .SeveralRanks()
        .SizesBuckets()
        .SearchedFromStage(0, kBuckets),
    Elems("/zero_optimization/allgather_bucket_size", "0.2.0", "500000000", 1)
        .UpToParams()
        .SeveralRanks()
        .FromStage(1)
        .SearchedFromStage(0, kBuckets),
    Flag("/zero_optimization/overlap_comm", "0.2.0", "false", kHonors)
        .DefaultFromStage(3, "true")
        .Exact()
        .SeveralRanks()
        .SizesBuckets()
        .SearchedFromStage(2, kSwitch),
    Flag("/zero_optimization/reduce_scatter", "0.2.0", "true", kHonors)
        .Rounding()
        .SeveralRanks()
        .FromStage(1)
        .SearchedFromStage(2, kSwitch),
    Flag("/zero_optimization/contiguous_gradients", "0.2.0", "true", kHonors)
        .Rounding()
        .SeveralRanks()
        .SizesBuckets()
        .SearchedFromStage(2, kSwitch),
    Flag("/zero_optimization/allgather_partitions", "0.2.0", "true", kHonors)
        .Exact()
        .SeveralRanks()
        .FromStage(1)
        .PublishedFromStage(3, kSwitch),
    Flag("/zero_optimization/use_multi_rank_bucket_allreduce", "0.12.4", "true", kWarns).Rounding(),
    Flag("/zero_optimization/load_from_fp32_weights", "0.3.0", "true", kWarns),
    Flag("/zero_optimization/compute_grad_norm", "0.19.7", "true", kWarns).Exact(),
    Flag("/zero_optimization/parameter_alignment", "0.19.7", "false", kWarns).Exact(),
    Flag("/zero_optimization/elastic_checkpoint", "0.3.3", "false", kWarns).Exact(),
    Flag("/zero_optimization/round_robin_gradients", "0.4.4", "false", kWarns)
        .Rounding().SeveralRanks().ToStage(2).WideFromStage(1, kSwitch),
    Elems("/zero_optimization/sub_group_size", "0.3.12", "1000000000", 0)
        .UpToParams().WideFromStage(3, "[10000000, 100000000, 1000000000]"),
    Elems("/zero_optimization/stage3_prefetch_bucket_size", "0.3.12", "50000000", 0)
        .FromStage(3).UpToParams().SeveralRanks()
        .WideFromStage(3, "[0, 5000000, 50000000, 500000000]"),
    Alias("/zero_optimization/prefetch_bucket_size", "0.3.12",
          "/zero_optimization/stage3_prefetch_bucket_size"),
    Elems("/zero_optimization/stage3_param_persistence_threshold", "0.3.12", "100000", 0)
        .FromStage(3).UpToParams()
        .WideFromStage(3, "[0, 10000, 100000, 1000000]"),
    Alias("/zero_optimization/param_persistence_threshold", "0.3.12",
          "/zero_optimization/stage3_param_persistence_threshold"),
    Elems("/zero_optimization/stage3_model_persistence_threshold", "0.7.0", "9223372036854775807",
          0)
        .FromStage(3),
    Alias("/zero_optimization/model_persistence_threshold", "0.7.0",
          "/zero_optimization/stage3_model_persistence_threshold"),
    Elems("/zero_optimization/stage3_max_live_parameters", "0.3.12", "1000000000", 0)
        .FromStage(3).UpToParams()
        .WideFromStage(3, "[10000000, 100000000, 1000000000]"),
    Alias("/zero_optimization/max_live_parameters", "0.3.12",
          "/zero_optimization/stage3_max_live_parameters"),
    Elems("/zero_optimization/stage3_max_reuse_distance", "0.3.12", "1000000000", 0)
        .FromStage(3).WideFromStage(3, "[0, 1000000000]"),
    Alias("/zero_optimization/max_reuse_distance", "0.3.12",
          "/zero_optimization/stage3_max_reuse_distance"),
    Flag("/zero_optimization/stage3_gather_16bit_weights_on_model_save", "0.6.0", "false", kHonors)
        .Exact()
        .FromStage(3),
    Alias("/zero_optimization/gather_16bit_weights_on_model_save", "0.6.0",
          "/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
    Alias("/zero_optimization/stage3_gather_fp16_weights_on_model_save", "0.3.14",
          "/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
    Int("/zero_optimization/stage3_module_granularity_threshold", "0.16.0", "0", kWarns)
        .Exact().In(kElems).FromStage(3).From(0),
    Alias("/zero_optimization/module_granularity_threshold", "0.16.0",
          "/zero_optimization/stage3_module_granularity_threshold"),
    Flag("/zero_optimization/stage3_use_all_reduce_for_fetch_params", "0.14.3", "false", kWarns)
        .Exact()
        .FromStage(3),
    Alias("/zero_optimization/use_all_reduce_for_fetch_params", "0.14.3",
          "/zero_optimization/stage3_use_all_reduce_for_fetch_params"),
    Flag("/zero_optimization/stage3_allgather_sequential", "0.18.5", "false", kWarns)
        .Exact()
        .FromStage(3),
    Alias("/zero_optimization/allgather_sequential", "0.18.5",
          "/zero_optimization/stage3_allgather_sequential"),
    Flag("/zero_optimization/ignore_unused_parameters", "0.4.0", "true", kWarns).Exact(),
    Flag("/zero_optimization/legacy_stage1", "0.4.0", "false", kFollows).Rounding(),
    Int("/zero_optimization/zero_hpz_partition_size", "0.10.0", "1", kRefuses)
        .Exact().From(1).FromStage(3).SeveralRanks()
        .WideFromStage(3, "[1, 2, 4, 8, 16]").DividesRanks(),
    Flag("/zero_optimization/zero_quantized_weights", "0.10.0", "false", kRefuses)
        .FromStage(3).SeveralRanks().WideFromStage(3, kSwitch).NeedsGpu(),
    Flag("/zero_optimization/zero_quantized_nontrainable_weights", "0.10.2", "false", kRefuses),
    Flag("/zero_optimization/zero_quantized_gradients", "0.10.0", "false", kRefuses)
        .FromStage(3).SeveralRanks().WideFromStage(3, kSwitch).NeedsGpu(),
    Any("/zero_optimization/zeropp_loco_param", "0.16.2", "null", kRefuses).Until("0.19.8"),
    Int("/zero_optimization/mics_shard_size", "0.9.2", "-1", kRefuses)
        .Rounding()
        .From(-1)
        .Until("0.19.7"),
    Flag("/zero_optimization/mics_hierarchical_params_gather", "0.9.2", "false", kRefuses)
        .Exact()
        .Until("0.19.7"),
    Any("/zero_optimization/zenflow", "0.17.5", "null", kRefuses),
    Any("/zero_optimization/leaf_module", "0.18.0", "{}", kRefuses).Exact(),
    Flag("/zero_optimization/memory_efficient_linear", "0.9.0", "true", kWarns)
        .Rounding().WideFromStage(3, kSwitch),
    Flag("/zero_optimization/pipeline_loading_checkpoint", "0.10.1", "false", kWarns).Exact(),
    Flag("/zero_optimization/override_module_apply", "0.10.1", "true", kWarns).Exact(),
    Flag("/zero_optimization/log_trace_cache_warnings", "0.16.4", "false", kWarns).Exact(),
    Flag("/zero_optimization/enable_sanity_checks", "0.17.6", "false", kWarns).Exact(),
    Flag("/zero_optimization/save_muon_momentum_buffer_in_memory", "0.18.9", "false", kWarns)
        .Exact(),
    Section("/zero_optimization/offload_optimizer", "0.3.15"),
    Text("/zero_optimization/offload_optimizer/device", "0.3.15", "\"none\"", kHonors)
        .Rounding().NeedsStage(1).OneOf("none cpu nvme")
        .PlacesFromStage(1, kDevices),
    Text("/zero_optimization/offload_optimizer/nvme_path", "0.3.15", "null", kHonors).Exact(),
    Int("/zero_optimization/offload_optimizer/buffer_count", "0.3.15", "4", kHonors)
        .Exact()
        .From(0)
        .To(1e6),
    Flag("/zero_optimization/offload_optimizer/pin_memory", "0.3.15", "true", kWarns)
        .Exact()
        .ChangedIn("0.19.5", "false")
        .WideFromStage(1, kSwitch, kOptimizerDevice),
    Flag("/zero_optimization/offload_optimizer/pipeline_read", "0.3.15", "false", kHonors).Exact(),
    Flag("/zero_optimization/offload_optimizer/pipeline_write", "0.3.15", "false", kHonors).Exact(),
    Flag("/zero_optimization/offload_optimizer/fast_init", "0.3.15", "false", kWarns).Exact(),
    Number("/zero_optimization/offload_optimizer/ratio", "0.12.3", "1.0", kHonors)
        .Rounding().From(0).To(1)
        .WideFromStage(3, "[0.4, 0.7, 1.0]", kOptimizerDevice),
    Flag("/zero_optimization/offload_optimizer/super_offload", "0.18.0", "false", kWarns)
        .Rounding().WideFromStage(3, kSwitch, kOptimizerDevice, "\"cpu\"").NeedsGpu(),
    Number("/zero_optimization/offload_optimizer/cpuadam_cores_perc", "0.18.0", "0.8", kWarns)
        .Exact()
        .From(0)
        .To(1),
    Section("/zero_optimization/offload_param", "0.3.15"),
    Text("/zero_optimization/offload_param/device", "0.3.15", "\"none\"", kHonors)
        .Exact().NeedsStage(3).OneOf("none cpu nvme")
        .PlacesFromStage(3, kDevices, kOptimizerDevice),
    Text("/zero_optimization/offload_param/nvme_path", "0.3.15", "null", kHonors).Exact(),
    Int("/zero_optimization/offload_param/buffer_count", "0.3.15", "5", kHonors)
        .Exact()
        .From(0)
        .To(1e6),
    Elems("/zero_optimization/offload_param/buffer_size", "0.3.15", "100000000", 0),
    Elems("/zero_optimization/offload_param/max_in_cpu", "0.3.15", "1000000000", 0),
    Flag("/zero_optimization/offload_param/pin_memory", "0.3.15", "true", kWarns)
        .Exact()
        .ChangedIn("0.19.5", "false")
        .WideFromStage(3, kSwitch, kParamDevice),
    Flag("/zero_optimization/cpu_offload", "0.3.0", "false", kFollows)
        .Rounding()
        .Note("deprecated; true = /zero_optimization/offload_optimizer/device \"cpu\""),
    Flag("/zero_optimization/cpu_offload_param", "0.7.0", "false", kFollows)
        .Exact()
        .Note("deprecated; true = /zero_optimization/offload_param/device \"cpu\""),
    Flag("/zero_optimization/cpu_offload_use_pin_memory", "0.3.12", "false", kFollows)
        .Exact()
        .Note("deprecated; true = pin_memory of the two keys above"),
};

}  // namespace

std::span<const Key> ZeroKeys() {
  return kKeys;
}

}  // namespace dsat::engine
