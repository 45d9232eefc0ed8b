// The rows of the key table, in the order docs/ds_config.md shows them.
#include "engine/config/keys.h"

namespace dsat::engine {
namespace {

using enum Builtin;

constexpr Key Section(const char* pointer, Builtin builtin = kFollows) {
  return {pointer, KeyType::kSection, "{}", builtin};
}
constexpr Key Open(const char* pointer, Builtin builtin = kFollows) {
  return {pointer, KeyType::kOpenSection, "{}", builtin};
}
constexpr Key Flag(const char* pointer, const char* fallback, Builtin builtin) {
  return {pointer, KeyType::kBool, fallback, builtin};
}
constexpr Key Int(const char* pointer, const char* fallback, Builtin builtin) {
  return {pointer, KeyType::kInt, fallback, builtin};
}
constexpr Key Number(const char* pointer, const char* fallback, Builtin builtin) {
  return {pointer, KeyType::kNumber, fallback, builtin};
}
constexpr Key Text(const char* pointer, const char* fallback, Builtin builtin) {
  return {pointer, KeyType::kText, fallback, builtin};
}
constexpr Key Any(const char* pointer, const char* fallback, Builtin builtin) {
  return {pointer, KeyType::kAny, fallback, builtin};
}
constexpr Key Alias(const char* pointer, const char* target) {
  return {pointer, KeyType::kAlias, target, kFollows};
}

constexpr const char* kAdam = "adam adamw";
constexpr const char* kSgd = "sgd";
constexpr const char* kLamb = "lamb";
constexpr const char* kAdagrad = "adagrad";
constexpr const char* kWithBetas = "adam adamw lamb lion onebitadam";
constexpr const char* kWithEps = "adam adamw lamb adagrad onebitadam";
constexpr const char* kOneBit = "onebitadam";
constexpr const char* kWarmups = "warmuplr warmupdecaylr";
constexpr const char* kAllWarmups = "warmuplr warmupdecaylr warmupcosinelr";

constexpr Key kKeys[] = {
    // Batch sizes.
    Int("/train_batch_size", "null", kHonours).From(1),
    Int("/train_micro_batch_size_per_gpu", "null", kHonours).From(1),
    Int("/gradient_accumulation_steps", "null", kHonours).From(1),
    Flag("/managed_gradient_accumulation", "true", kRefuses),

    // Optimizer.
    Section("/optimizer"),
    Text("/optimizer/type", "null", kHonours)
        .Note("Adam, AdamW, SGD, Lamb, Adagrad, Lion, OneBitAdam; refuses others"),
    Flag("/optimizer/legacy_fusion", "false", kWarns),
    Section("/optimizer/params"),
    Number("/optimizer/params/lr", "0.001", kHonours).From(0).Note("Adagrad: 0.01"),
    Number("/optimizer/params/weight_decay", "0", kHonours).From(0),
    {"/optimizer/params/betas", KeyType::kNumbers, "[0.9, 0.999]", kHonours, "", 0, 1, false, true,
     "", kWithBetas},
    Number("/optimizer/params/eps", "1e-8", kHonours).From(0).For(kWithEps).Note("Adagrad: 1e-10"),
    Any("/optimizer/params/max_grad_norm", "null", kFollows),
    Flag("/optimizer/params/bias_correction", "true", kHonours).For("adam adamw lamb onebitadam"),
    Flag("/optimizer/params/adam_w_mode", "true", kHonours)
        .For(kAdam)
        .Note("false: weight decay as L2 regularisation; type Adam only"),
    Flag("/optimizer/params/stochastic_rounding", "false", kHonours)
        .For(kAdam)
        .Own()
        .Note("of bf16 parameters; dsat's own, refused for a DeepSpeed script"),
    Flag("/optimizer/params/amsgrad", "false", kRefuses).For("adam adamw lamb onebitadam"),
    Flag("/optimizer/params/torch_adam", "false", kWarns).For(kAdam),
    Flag("/optimizer/params/set_grad_none", "true", kWarns).For("adam adamw lion"),
    Flag("/optimizer/params/fp32_optimizer_states", "true", kRefuses)
        .For("adam adamw lion adagrad"),
    Number("/optimizer/params/momentum", "0", kHonours).From(0).For(kSgd),
    Number("/optimizer/params/dampening", "0", kHonours).For(kSgd),
    Flag("/optimizer/params/nesterov", "false", kHonours).For(kSgd),
    Flag("/optimizer/params/maximize", "false", kRefuses).For("sgd adagrad"),
    Number("/optimizer/params/max_coeff", "10.0", kHonours).From(0).For(kLamb),
    Number("/optimizer/params/min_coeff", "0.01", kHonours).From(0).For(kLamb),
    Flag("/optimizer/params/eps_inside_sqrt", "false", kRefuses).For("lamb onebitadam"),
    Number("/optimizer/params/lr_decay", "0", kHonours).From(0).For(kAdagrad),
    Number("/optimizer/params/initial_accumulator_value", "0", kRefuses).From(0).For(kAdagrad),
    Int("/optimizer/params/freeze_step", "100000", kHonours).From(1).For(kOneBit),
    Flag("/optimizer/params/cuda_aware", "false", kWarns).For(kOneBit),
    Text("/optimizer/params/comm_backend_name", "\"nccl\"", kWarns)
        .OneOf("nccl mpi hccl compressed")
        .For(kOneBit),
    Flag("/zero_allow_untested_optimizer", "false", kHonours)
        .Note("must be true for SGD and Lamb with ZeRO, as in DeepSpeed"),
    Flag("/zero_force_ds_cpu_optimizer", "true", kWarns),

    // Scheduler.
    Section("/scheduler"),
    Text("/scheduler/type", "null", kHonours)
        .Note("WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest; refuses others"),
    Section("/scheduler/params"),
    Int("/scheduler/params/last_batch_iteration", "-1", kHonours).From(-1),
    Number("/scheduler/params/warmup_min_lr", "0", kHonours).From(0).For(kWarmups),
    Number("/scheduler/params/warmup_max_lr", "null", kHonours)
        .From(0)
        .For(kWarmups)
        .Note("if not given: WarmupLR the optimizer's lr, WarmupDecayLR 0.001"),
    Int("/scheduler/params/warmup_num_steps", "1000", kHonours).From(1).For(kAllWarmups),
    Text("/scheduler/params/warmup_type", "\"log\"", kHonours).OneOf("log linear").For(kAllWarmups),
    Int("/scheduler/params/total_num_steps", "null", kHonours)
        .From(1)
        .For("warmupdecaylr warmupcosinelr"),
    Number("/scheduler/params/warmup_min_ratio", "0", kHonours).From(0).For("warmupcosinelr"),
    Number("/scheduler/params/cos_min_ratio", "0.0001", kHonours).From(0).For("warmupcosinelr"),
    Number("/scheduler/params/cycle_min_lr", "null", kHonours).From(0).For("onecycle"),
    Number("/scheduler/params/cycle_max_lr", "null", kHonours).From(0).For("onecycle"),
    Number("/scheduler/params/decay_lr_rate", "0", kHonours).From(0).For("onecycle"),
    Int("/scheduler/params/cycle_first_step_size", "2000", kHonours).From(1).For("onecycle"),
    Int("/scheduler/params/cycle_second_step_size", "null", kHonours).From(0).For("onecycle"),
    Int("/scheduler/params/cycle_first_stair_count", "0", kHonours).From(0).For("onecycle"),
    Int("/scheduler/params/cycle_second_stair_count", "null", kHonours).From(0).For("onecycle"),
    Int("/scheduler/params/decay_step_size", "0", kHonours).From(0).For("onecycle"),
    Flag("/scheduler/params/cycle_momentum", "true", kHonours)
        .For("onecycle")
        .Note("of optimizers with betas, as in DeepSpeed, whose second beta is 0.99 then"),
    Number("/scheduler/params/cycle_min_mom", "0.8", kHonours).From(0).To(1).For("onecycle"),
    Number("/scheduler/params/cycle_max_mom", "0.9", kHonours).From(0).To(1).For("onecycle"),
    Number("/scheduler/params/decay_mom_rate", "0", kHonours).From(0).For("onecycle"),
    Number("/scheduler/params/lr_range_test_min_lr", "0.001", kHonours).Above(0).For("lrrangetest"),
    Int("/scheduler/params/lr_range_test_step_size", "2000", kHonours).From(1).For("lrrangetest"),
    Number("/scheduler/params/lr_range_test_step_rate", "1", kHonours).From(0).For("lrrangetest"),
    Flag("/scheduler/params/lr_range_test_staircase", "false", kHonours).For("lrrangetest"),

    // Gradients and communication.
    Number("/gradient_clipping", "1.0", kHonours).From(0).Note("0 = off"),
    Flag("/prescale_gradients", "false", kHonours),
    Number("/gradient_predivide_factor", "1.0", kHonours).Above(0),
    Text("/gradient_allreduce_op", "\"mean\"", kHonours).OneOf("mean sum"),
    Text("/communication_data_type", "null", kHonours).OneOf("fp16 bf16 fp32"),
    Text("/seq_parallel_communication_data_type", "\"fp32\"", kWarns).OneOf("fp16 bf16 fp32"),
    Flag("/sparse_gradients", "false", kRefuses),
    Flag("/disable_allgather", "false", kWarns),
    Flag("/dataloader_drop_last", "false", kWarns),

    // ZeRO. Sizes are in elements.
    Section("/zero_optimization").Note("true = stage 1, false = stage 0"),
    Key{"/zero_optimization/stage", KeyType::kStage, "0", kHonours}.From(0).To(3),
    Flag("/zero_optimization/contiguous_gradients", "true", kHonours),
    Flag("/zero_optimization/reduce_scatter", "true", kHonours),
    Int("/zero_optimization/reduce_bucket_size", "500000000", kHonours).From(1),
    Flag("/zero_optimization/use_multi_rank_bucket_allreduce", "true", kWarns),
    Flag("/zero_optimization/allgather_partitions", "true", kHonours),
    Int("/zero_optimization/allgather_bucket_size", "500000000", kHonours).From(1),
    Flag("/zero_optimization/overlap_comm", "null", kHonours).Note("default: true at stage 3 only"),
    Flag("/zero_optimization/load_from_fp32_weights", "true", kWarns),
    Flag("/zero_optimization/elastic_checkpoint", "false", kWarns),
    Flag("/zero_optimization/round_robin_gradients", "false", kWarns),
    Int("/zero_optimization/sub_group_size", "1000000000", kHonours).From(1),
    Int("/zero_optimization/stage3_prefetch_bucket_size", "50000000", kHonours).From(0),
    Alias("/zero_optimization/prefetch_bucket_size",
          "/zero_optimization/stage3_prefetch_bucket_size"),
    Int("/zero_optimization/stage3_param_persistence_threshold", "100000", kHonours).From(0),
    Alias("/zero_optimization/param_persistence_threshold",
          "/zero_optimization/stage3_param_persistence_threshold"),
    Int("/zero_optimization/stage3_model_persistence_threshold", "9223372036854775807", kHonours)
        .From(0),
    Alias("/zero_optimization/model_persistence_threshold",
          "/zero_optimization/stage3_model_persistence_threshold"),
    Int("/zero_optimization/stage3_max_live_parameters", "1000000000", kHonours).From(0),
    Alias("/zero_optimization/max_live_parameters",
          "/zero_optimization/stage3_max_live_parameters"),
    Int("/zero_optimization/stage3_max_reuse_distance", "1000000000", kHonours).From(0),
    Alias("/zero_optimization/max_reuse_distance", "/zero_optimization/stage3_max_reuse_distance"),
    Flag("/zero_optimization/stage3_gather_16bit_weights_on_model_save", "false", kHonours),
    Alias("/zero_optimization/gather_16bit_weights_on_model_save",
          "/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
    Alias("/zero_optimization/stage3_gather_fp16_weights_on_model_save",
          "/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
    Int("/zero_optimization/stage3_module_granularity_threshold", "0", kWarns).From(0),
    Alias("/zero_optimization/module_granularity_threshold",
          "/zero_optimization/stage3_module_granularity_threshold"),
    Flag("/zero_optimization/stage3_use_all_reduce_for_fetch_params", "false", kWarns),
    Alias("/zero_optimization/use_all_reduce_for_fetch_params",
          "/zero_optimization/stage3_use_all_reduce_for_fetch_params"),
    Flag("/zero_optimization/stage3_allgather_sequential", "false", kWarns),
    Alias("/zero_optimization/allgather_sequential",
          "/zero_optimization/stage3_allgather_sequential"),
    Flag("/zero_optimization/ignore_unused_parameters", "true", kWarns),
    Flag("/zero_optimization/legacy_stage1", "false", kFollows),
    Int("/zero_optimization/zero_hpz_partition_size", "1", kRefuses).From(1),
    Flag("/zero_optimization/zero_quantized_weights", "false", kRefuses),
    Flag("/zero_optimization/zero_quantized_nontrainable_weights", "false", kRefuses),
    Flag("/zero_optimization/zero_quantized_gradients", "false", kRefuses),
    Any("/zero_optimization/zeropp_loco_param", "null", kRefuses),
    Int("/zero_optimization/mics_shard_size", "-1", kRefuses).From(-1),
    Flag("/zero_optimization/mics_hierarchical_params_gather", "false", kRefuses),
    Any("/zero_optimization/zenflow", "null", kRefuses),
    Any("/zero_optimization/leaf_module", "{}", kRefuses),
    Flag("/zero_optimization/memory_efficient_linear", "true", kWarns),
    Flag("/zero_optimization/pipeline_loading_checkpoint", "false", kWarns),
    Flag("/zero_optimization/override_module_apply", "true", kWarns),
    Flag("/zero_optimization/log_trace_cache_warnings", "false", kWarns),
    Flag("/zero_optimization/enable_sanity_checks", "false", kWarns),
    Flag("/zero_optimization/save_muon_momentum_buffer_in_memory", "false", kWarns),
    Section("/zero_optimization/offload_optimizer"),
    Text("/zero_optimization/offload_optimizer/device", "\"none\"", kHonours)
        .OneOf("none cpu nvme"),
    Text("/zero_optimization/offload_optimizer/nvme_path", "null", kHonours),
    Int("/zero_optimization/offload_optimizer/buffer_count", "4", kHonours).From(0),
    Flag("/zero_optimization/offload_optimizer/pin_memory", "true", kWarns),
    Flag("/zero_optimization/offload_optimizer/pipeline_read", "false", kHonours),
    Flag("/zero_optimization/offload_optimizer/pipeline_write", "false", kHonours),
    Flag("/zero_optimization/offload_optimizer/fast_init", "false", kWarns),
    Number("/zero_optimization/offload_optimizer/ratio", "1.0", kHonours).From(0).To(1),
    Flag("/zero_optimization/offload_optimizer/super_offload", "false", kWarns),
    Number("/zero_optimization/offload_optimizer/cpuadam_cores_perc", "0.8", kWarns).From(0).To(1),
    Section("/zero_optimization/offload_param"),
    Text("/zero_optimization/offload_param/device", "\"none\"", kHonours).OneOf("none cpu nvme"),
    Text("/zero_optimization/offload_param/nvme_path", "null", kHonours),
    Int("/zero_optimization/offload_param/buffer_count", "5", kHonours).From(0),
    Int("/zero_optimization/offload_param/buffer_size", "100000000", kHonours).From(0),
    Int("/zero_optimization/offload_param/max_in_cpu", "1000000000", kHonours).From(0),
    Flag("/zero_optimization/offload_param/pin_memory", "true", kWarns),
    Flag("/zero_optimization/cpu_offload", "false", kFollows)
        .Note("deprecated; true = /zero_optimization/offload_optimizer/device \"cpu\""),
    Flag("/zero_optimization/cpu_offload_param", "false", kFollows)
        .Note("deprecated; true = /zero_optimization/offload_param/device \"cpu\""),
    Flag("/zero_optimization/cpu_offload_use_pin_memory", "false", kFollows)
        .Note("deprecated; true = pin_memory of the two keys above"),

    // Precision.
    Section("/bf16"),
    Flag("/bf16/enabled", "false", kHonours),
    Flag("/bf16/immediate_grad_update", "false", kRefuses),
    Flag("/bf16/check_grad_overflow", "true", kHonours),
    Flag("/bf16/bf16_master_weights_and_grads", "false", kHonours).Note("Adam and AdamW only"),
    Flag("/bf16/bf16_optimizer_states", "false", kHonours).Note("Adam and AdamW only"),
    Alias("/bfloat16", "/bf16"),
    Section("/fp16"),
    Flag("/fp16/enabled", "false", kHonours),
    Flag("/fp16/auto_cast", "false", kWarns),
    Number("/fp16/loss_scale", "0", kHonours).From(0).Note("0 = dynamic"),
    Int("/fp16/initial_scale_power", "16", kHonours).From(0).To(126),
    Int("/fp16/loss_scale_window", "1000", kHonours).From(0),
    Int("/fp16/hysteresis", "2", kHonours).From(0),
    Flag("/fp16/consecutive_hysteresis", "false", kHonours),
    Number("/fp16/min_loss_scale", "1", kHonours).From(0),
    Flag("/fp16/fp16_master_weights_and_grads", "false", kRefuses),
    Open("/amp"),
    Flag("/amp/enabled", "false", kRefuses),
    Section("/torch_autocast"),
    Flag("/torch_autocast/enabled", "false", kRefuses),
    Text("/torch_autocast/dtype", "null", kFollows),
    Any("/torch_autocast/lower_precision_safe_modules", "null", kFollows),
    Section("/data_types"),
    Text("/data_types/grad_accum_dtype", "null", kHonours)
        .OneOf("fp16 bf16 fp32 float16 bfloat16 float32"),
    Text("/data_types/param_dtype", "null", kRefuses),
    Text("/data_types/buffer_dtype", "null", kRefuses),

    // Activations, pipelines and other parallelism.
    Section("/activation_checkpointing"),
    Flag("/activation_checkpointing/partition_activations", "false", kWarns),
    Flag("/activation_checkpointing/contiguous_memory_optimization", "false", kWarns),
    Flag("/activation_checkpointing/cpu_checkpointing", "false", kHonours),
    Int("/activation_checkpointing/number_checkpoints", "null", kHonours).From(1),
    Flag("/activation_checkpointing/synchronize_checkpoint_boundary", "false", kWarns),
    Flag("/activation_checkpointing/profile", "false", kWarns),
    Section("/pipeline"),
    Any("/pipeline/stages", "\"auto\"", kHonours).Note("a divisor of the ranks; auto = 1"),
    Text("/pipeline/partition", "\"best\"", kHonours)
        .Note("uniform, parameters, best (= parameters) or type:REGEX"),
    Flag("/pipeline/seed_layers", "false", kRefuses),
    Int("/pipeline/activation_checkpoint_interval", "0", kHonours).From(0),
    Flag("/pipeline/pipe_partitioned", "true", kRefuses),
    Flag("/pipeline/grad_partitioned", "true", kRefuses),
    Int("/sequence_parallel_size", "1", kFollows).From(1),
    Int("/data_parallel_size", "null", kRefuses).From(1),
    Open("/tensor_parallel"),
    Int("/tensor_parallel/autotp_size", "0", kFollows).From(0),
    Open("/expert_parallel", kRefuses),
    Open("/elasticity"),
    Flag("/elasticity/enabled", "false", kFollows),

    // Input/output, checkpoints.
    Section("/aio"),
    Int("/aio/block_size", "1048576", kHonours).From(1),
    Int("/aio/queue_depth", "8", kHonours).From(1),
    Int("/aio/intra_op_parallelism", "1", kHonours).From(1),
    Flag("/aio/single_submit", "false", kHonours),
    Flag("/aio/overlap_events", "true", kHonours),
    Flag("/aio/use_gds", "false", kWarns),
    Open("/checkpoint"),
    Text("/checkpoint/tag_validation", "\"Warn\"", kWarns)
        .OneOf("Ignore Warn Fail ignore warn fail"),
    Flag("/checkpoint/load_universal", "false", kWarns),
    Flag("/checkpoint/use_node_local_storage", "false", kWarns),
    Section("/checkpoint/parallel_write"),
    Flag("/checkpoint/parallel_write/pipeline_stage", "false", kWarns),

    // Training techniques.
    Open("/curriculum_learning"),
    Flag("/curriculum_learning/enabled", "false", kRefuses),
    Open("/data_efficiency"),
    Flag("/data_efficiency/enabled", "false", kRefuses),
    Open("/compression_training", kRefuses),
    Open("/progressive_layer_drop"),
    Flag("/progressive_layer_drop/enabled", "false", kRefuses),
    Open("/eigenvalue"),
    Flag("/eigenvalue/enabled", "false", kRefuses),
    Open("/sparse_attention", kRefuses),
    Flag("/graph_harvesting", "false", kRefuses),
    Open("/nebula"),
    Flag("/nebula/enabled", "false", kWarns),
    Open("/hybrid_engine"),
    Flag("/hybrid_engine/enabled", "false", kRefuses),
    Open("/compile"),
    Flag("/compile/deepcompile", "false", kRefuses),

    // Reports.
    Int("/steps_per_print", "null", kHonours).From(1),
    Int("/seed", "42", kHonours).From(0).Note("dsat's own; DeepSpeed ignores it"),
    Flag("/wall_clock_breakdown", "false", kWarns),
    Flag("/memory_breakdown", "false", kWarns),
    Flag("/dump_state", "false", kWarns),
    Any("/log_level", "null", kWarns),
    Section("/timers"),
    Section("/timers/throughput"),
    Flag("/timers/throughput/enabled", "true", kWarns),
    Flag("/timers/throughput/synchronized", "true", kWarns),
    Section("/flops_profiler"),
    Flag("/flops_profiler/enabled", "false", kWarns),
    Number("/flops_profiler/recompute_fwd_factor", "0.0", kFollows).From(0).To(1),
    Int("/flops_profiler/profile_step", "1", kFollows).From(0),
    Int("/flops_profiler/module_depth", "-1", kFollows).From(-1),
    Int("/flops_profiler/top_modules", "1", kFollows).From(0),
    Flag("/flops_profiler/detailed", "true", kFollows),
    Text("/flops_profiler/output_file", "null", kFollows),
    Open("/tensorboard"),
    Flag("/tensorboard/enabled", "false", kWarns),
    Open("/wandb"),
    Flag("/wandb/enabled", "false", kWarns),
    Open("/csv_monitor"),
    Flag("/csv_monitor/enabled", "false", kWarns),
    Open("/comet"),
    Flag("/comet/enabled", "false", kWarns),
    Open("/comms_logger"),
    Flag("/comms_logger/enabled", "false", kWarns),
    Open("/autotuning").Note("replaced in every trial; never in the written result"),
};

}  // namespace

std::span<const Key> Keys() {
  return kKeys;
}

}  // namespace dsat::engine
