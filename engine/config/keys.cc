// The rows, in the order in which docs/ds_config.md shows them. Those of ZeRO are in zero_keys.cc.
#include "engine/config/keys.h"

#include <array>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/key_rows.h"

namespace dsat::engine {
namespace {

using enum Builtin;
using enum KeyUnit;

constexpr const char* kOptimizers = "Adam AdamW SGD Lamb Adagrad Lion OneBitAdam";
constexpr const char* kSchedulers = "WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest";
constexpr const char* kAdam = "adam adamw";
constexpr const char* kSgd = "sgd";
constexpr const char* kLamb = "lamb";
constexpr const char* kAdagrad = "adagrad";
constexpr const char* kWithBetas = "adam adamw lamb lion onebitadam";
constexpr const char* kWithEps = "adam adamw lamb adagrad onebitadam";
constexpr const char* kOneBit = "onebitadam";
constexpr const char* kNoOneBit = "0.19.7";  // The first release without 1-bit optimizers.
constexpr const char* kWarmups = "warmuplr warmupdecaylr";
constexpr const char* kAllWarmups = "warmuplr warmupdecaylr warmupcosinelr";
constexpr const char* kInterval = "/pipeline/activation_checkpoint_interval";
constexpr const char* kOffloadDevices =
    "/zero_optimization/offload_optimizer/device /zero_optimization/offload_param/device";
constexpr const char* kNvme = "\"nvme\"";
constexpr const char* kShares = "[1, 2, 4, 8, 16, 32, 64]";
constexpr const char* kNumExperts = "/dsat/trainer/num_experts";

constexpr Key kBeforeZero[] = {
    // Batch sizes.
    Int("/train_batch_size", "0.1.0", "null", kHonors).From(1),
    Int("/train_micro_batch_size_per_gpu", "0.1.0", "null", kHonors).From(1),
    Int("/gradient_accumulation_steps", "0.1.0", "null", kHonors).From(1),
    Flag("/managed_gradient_accumulation", "0.19.4", "true", kRefuses),

    // Optimizer.
    Section("/optimizer", "0.1.0"),
    Text("/optimizer/type", "0.1.0", "null", kHonors).Known(kOptimizers),
    Flag("/optimizer/legacy_fusion", "0.1.0", "false", kWarns).Rounding(),
    Section("/optimizer/params", "0.1.0"),
    Number("/optimizer/params/lr", "0.1.0", "0.001", kHonors).From(0).DefaultFor(kAdagrad, "0.01"),
    Number("/optimizer/params/weight_decay", "0.1.0", "0", kHonors).From(0),
    Flag("/optimizer/params/decay_norms_and_biases", "", "true", kHonors)
        .Own()
        .Note("false: no weight decay of parameters of one dimension; dsat's own, refused for a "
              "DeepSpeed script"),
    Key{"/optimizer/params/betas", "0.1.0", KeyType::kNumbers, "[0.9, 0.999]", kHonors}
        .From(0)
        .Below(1)
        .For(kWithBetas),
    Number("/optimizer/params/eps", "0.1.0", "1e-8", kHonors)
        .From(0)
        .For(kWithEps)
        .DefaultFor(kAdagrad, "1e-10"),
    Any("/optimizer/params/max_grad_norm", "0.1.0", "null", kFollows),
    Flag("/optimizer/params/bias_correction", "0.1.0", "true", kHonors)
        .For("adam adamw lamb onebitadam"),
    Flag("/optimizer/params/adam_w_mode", "0.3.1", "true", kHonors)
        .For(kAdam)
        .Note("false: weight decay as L2 regularization; type Adam only"),
    Flag("/optimizer/params/stochastic_rounding", "", "false", kHonors)
        .For(kAdam)
        .Own()
        .Note("rounds bf16 parameters; dsat's own, refused for a DeepSpeed script"),
    Flag("/optimizer/params/amsgrad", "0.1.0", "false", kRefuses).For("adam adamw lamb onebitadam"),
    Flag("/optimizer/params/torch_adam", "0.3.1", "false", kWarns).Rounding().For(kAdam),
    Flag("/optimizer/params/set_grad_none", "0.3.1", "true", kWarns).Exact().For("adam adamw lion"),
    Flag("/optimizer/params/fp32_optimizer_states", "0.5.0", "true", kRefuses)
        .For("adam adamw lion adagrad"),
    Number("/optimizer/params/momentum", "0.1.0", "0", kHonors).From(0).For(kSgd),
    Number("/optimizer/params/dampening", "", "0", kHonors).For(kSgd),
    Flag("/optimizer/params/nesterov", "", "false", kHonors).For(kSgd),
    Flag("/optimizer/params/maximize", "", "false", kRefuses).For("sgd adagrad"),
    Number("/optimizer/params/max_coeff", "0.1.0", "10.0", kHonors).From(0).For(kLamb),
    Number("/optimizer/params/min_coeff", "0.1.0", "0.01", kHonors).From(0).For(kLamb),
    Flag("/optimizer/params/eps_inside_sqrt", "0.1.0", "false", kRefuses).For("lamb onebitadam"),
    Number("/optimizer/params/lr_decay", "", "0", kHonors).From(0).For(kAdagrad),
    Number("/optimizer/params/initial_accumulator_value", "", "0", kRefuses).From(0).For(kAdagrad),
    Int("/optimizer/params/freeze_step", "0.3.0", "100000", kHonors)
        .From(1)
        .For(kOneBit)
        .Until(kNoOneBit),
    Flag("/optimizer/params/cuda_aware", "0.3.0", "false", kWarns)
        .Exact()
        .For(kOneBit)
        .Until(kNoOneBit),
    Text("/optimizer/params/comm_backend_name", "0.3.14", "\"nccl\"", kWarns)
        .Exact()
        .OneOf("nccl mpi hccl compressed")
        .For(kOneBit)
        .Until(kNoOneBit),
    Flag("/zero_allow_untested_optimizer", "0.1.0", "false", kHonors)
        .Exact()
        .Note("must be true for SGD and Lamb with ZeRO, as in DeepSpeed"),
    Flag("/zero_force_ds_cpu_optimizer", "0.8.3", "true", kWarns).Exact(),

    // Scheduler.
    Section("/scheduler", "0.1.0"),
    Text("/scheduler/type", "0.1.0", "null", kHonors).Known(kSchedulers),
    Section("/scheduler/params", "0.1.0"),
    Int("/scheduler/params/last_batch_iteration", "0.1.0", "-1", kHonors).From(-1),
    Number("/scheduler/params/warmup_min_lr", "0.1.0", "0", kHonors).From(0).For(kWarmups),
    Number("/scheduler/params/warmup_max_lr", "0.1.0", "null", kHonors)
        .From(0)
        .For(kWarmups)
        .DefaultFor("warmupdecaylr", "0.001")
        .Note("for WarmupLR the default is the optimizer's lr"),
    Int("/scheduler/params/warmup_num_steps", "0.1.0", "1000", kHonors).From(1).For(kAllWarmups),
    Text("/scheduler/params/warmup_type", "0.5.7", "\"log\"", kHonors)
        .OneOf("log linear")
        .For(kAllWarmups),
    Int("/scheduler/params/total_num_steps", "0.3.1", "null", kHonors)
        .From(1)
        .For("warmupdecaylr warmupcosinelr"),
    Number("/scheduler/params/warmup_min_ratio", "0.12.3", "0", kHonors)
        .From(0)
        .For("warmupcosinelr"),
    Number("/scheduler/params/cos_min_ratio", "0.12.3", "0.0001", kHonors)
        .From(0)
        .For("warmupcosinelr"),
    Number("/scheduler/params/cycle_min_lr", "0.1.0", "null", kHonors).From(0).For("onecycle"),
    Number("/scheduler/params/cycle_max_lr", "0.1.0", "null", kHonors).From(0).For("onecycle"),
    Number("/scheduler/params/decay_lr_rate", "0.1.0", "0", kHonors).From(0).For("onecycle"),
    Int("/scheduler/params/cycle_first_step_size", "0.1.0", "2000", kHonors)
        .From(1)
        .For("onecycle"),
    Int("/scheduler/params/cycle_second_step_size", "0.1.0", "null", kHonors)
        .From(0)
        .For("onecycle"),
    Int("/scheduler/params/cycle_first_stair_count", "0.1.0", "0", kHonors).From(0).For("onecycle"),
    Int("/scheduler/params/cycle_second_stair_count", "0.1.0", "null", kHonors)
        .From(0)
        .For("onecycle"),
    Int("/scheduler/params/decay_step_size", "0.1.0", "0", kHonors).From(0).For("onecycle"),
    Flag("/scheduler/params/cycle_momentum", "0.1.0", "true", kHonors)
        .For("onecycle")
        .Note("acts on optimizers with betas and sets the second one to 0.99, as in DeepSpeed"),
    Number("/scheduler/params/cycle_min_mom", "0.1.0", "0.8", kHonors)
        .From(0)
        .To(1)
        .For("onecycle"),
    Number("/scheduler/params/cycle_max_mom", "0.1.0", "0.9", kHonors)
        .From(0)
        .To(1)
        .For("onecycle"),
    Number("/scheduler/params/decay_mom_rate", "0.1.0", "0", kHonors).From(0).For("onecycle"),
    Number("/scheduler/params/lr_range_test_min_lr", "0.1.0", "0.001", kHonors)
        .Above(0)
        .For("lrrangetest"),
    Int("/scheduler/params/lr_range_test_step_size", "0.1.0", "2000", kHonors)
        .From(1)
        .For("lrrangetest"),
    Number("/scheduler/params/lr_range_test_step_rate", "0.1.0", "1", kHonors)
        .From(0)
        .For("lrrangetest"),
    Flag("/scheduler/params/lr_range_test_staircase", "0.1.0", "false", kHonors).For("lrrangetest"),

    // Gradients and communication.
    Number("/gradient_clipping", "0.1.0", "1.0", kHonors)
        .From(0)
        .ChangedIn("0.19.3", "0.0")
        .Note("0 = off"),
    Flag("/prescale_gradients", "0.1.0", "false", kHonors).Rounding(),
    Number("/gradient_predivide_factor", "0.1.0", "1.0", kHonors).Rounding().Above(0),
    Text("/gradient_allreduce_op", "0.19.6", "\"mean\"", kHonors).OneOf("mean sum"),
    Text("/communication_data_type", "0.5.8", "null", kHonors)
        .OneOf("fp16 bf16 fp32").SeveralRanks().WideFromStage(0, R"(["fp32", "bf16"])")
        .Note("the default is the type of training"),
    Text("/seq_parallel_communication_data_type", "0.11.2", "\"fp32\"", kWarns)
        .OneOf("fp16 bf16 fp32"),
    Flag("/sparse_gradients", "0.1.0", "false", kRefuses).Rounding(),
    Flag("/disable_allgather", "0.1.0", "false", kWarns).Exact(),
    Flag("/dataloader_drop_last", "0.5.2", "false", kWarns),
};

constexpr Key kBehindZero[] = {
    // Precision.
    Section("/bf16", "0.6.0"),
    Flag("/bf16/enabled", "0.6.0", "false", kHonors),
    Flag("/bf16/immediate_grad_update", "0.13.3", "false", kRefuses),
    Flag("/bf16/check_grad_overflow", "0.17.1", "true", kHonors).ChangedIn("0.19.3", "false"),
    Flag("/bf16/bf16_master_weights_and_grads", "0.18.3", "false", kHonors)
        .Note("Adam and AdamW only"),
    Flag("/bf16/bf16_optimizer_states", "0.18.3", "false", kHonors).Note("Adam and AdamW only"),
    Alias("/bfloat16", "0.5.5", "/bf16"),
    Section("/fp16", "0.1.0"),
    Flag("/fp16/enabled", "0.1.0", "false", kHonors),
    Flag("/fp16/auto_cast", "0.7.0", "false", kWarns),
    Number("/fp16/loss_scale", "0.1.0", "0", kHonors).From(0).Note("0 = dynamic"),
    Int("/fp16/initial_scale_power", "0.1.0", "16", kHonors).From(0).To(126),
    Int("/fp16/loss_scale_window", "0.1.0", "1000", kHonors).From(0),
    Int("/fp16/hysteresis", "0.1.0", "2", kHonors).From(0),
    Flag("/fp16/consecutive_hysteresis", "0.1.0", "false", kHonors),
    Number("/fp16/min_loss_scale", "0.1.0", "1", kHonors).From(0),
    Flag("/fp16/fp16_master_weights_and_grads", "0.5.0", "false", kRefuses),
    Open("/amp", "0.3.0")
        .Holds("opt_level cast_model_type cast_model_outputs patch_torch_functions "
               "keep_batchnorm_fp32 master_weights loss_scale min_loss_scale max_loss_scale "
               "num_losses verbosity"),
    Flag("/amp/enabled", "0.3.0", "false", kRefuses),
    Section("/torch_autocast", "0.17.2"),
    Flag("/torch_autocast/enabled", "0.17.2", "false", kRefuses),
    Text("/torch_autocast/dtype", "0.17.2", "null", kFollows),
    Any("/torch_autocast/lower_precision_safe_modules", "0.17.2", "null", kFollows),
    Section("/data_types", "0.7.6"),
    Text("/data_types/grad_accum_dtype", "0.7.6", "null", kHonors)
        .OneOf("fp16 bf16 fp32 float16 bfloat16 float32"),
    Text("/data_types/param_dtype", "0.19.2", "null", kRefuses),
    Text("/data_types/buffer_dtype", "0.19.2", "null", kRefuses),
    Any("/data_types/keep_in_fp32_modules", "0.19.8", "null", kRefuses),

    // Activations, pipelines and other parallelism.
    Section("/activation_checkpointing", "0.2.0"),
    Flag("/activation_checkpointing/partition_activations", "0.2.0", "false", kWarns).Exact(),
    Flag("/activation_checkpointing/contiguous_memory_optimization", "0.2.0", "false", kWarns)
        .Exact(),
    Flag("/activation_checkpointing/cpu_checkpointing", "0.2.0", "false", kHonors)
        .Exact().PlacesFromStage(0, "[false, true]", kInterval).BuiltinOnly(),
    Int("/activation_checkpointing/number_checkpoints", "0.2.0", "null", kHonors).Exact().From(1),
    Flag("/activation_checkpointing/keep_norms_and_activations", "", "false", kHonors)
        .Rounding().WideFromStage(0, kSwitch).BuiltinOnly().Own()
        .Note("for transformers; dsat's own, refused for a DeepSpeed script"),
    Flag("/activation_checkpointing/synchronize_checkpoint_boundary", "0.2.0", "false", kWarns)
        .Exact(),
    Flag("/activation_checkpointing/profile", "0.2.0", "false", kWarns).Exact(),
    Section("/pipeline", "0.3.0"),
    Int("/pipeline/stages", "0.3.0", "1", kHonors)
        .Rounding()
        .From(1)
        .Note("a divisor of the ranks; auto = 1"),
    Text("/pipeline/partition", "0.3.0", "\"best\"", kHonors)
        .Rounding()
        .Note("uniform, parameters, best (= parameters) or type:REGEX"),
    Flag("/pipeline/seed_layers", "0.3.0", "false", kRefuses),
    Int("/pipeline/activation_checkpoint_interval", "0.3.0", "0", kHonors)
        .Exact().From(0).PlacesFromStage(0, "[0, 1, 2]").BuiltinOnly(),
    Flag("/pipeline/pipe_partitioned", "0.12.3", "true", kRefuses).Exact(),
    Flag("/pipeline/grad_partitioned", "0.12.3", "true", kRefuses).Exact(),
    Int("/sequence_parallel_size", "0.17.0", "1", kRefuses)
        .Rounding().From(1).SplitsRanks().WideFromStage(0, kShares, "/sequence_parallel_size")
        .Note("searched with a free batch; the script has to follow it"),
    Int("/data_parallel_size", "0.1.0", "null", kRefuses).Rounding().From(1),
    Open("/tensor_parallel", "0.7.6")
        .Holds("tp_size tp_grain_size dtype tp_overlap_comm vocab_parallel_lm_head "
               "vocab_parallel_ce_backend injection_policy_tuple partition_config preset_model "
               "keep_module_on_host replace_with_kernel_inject kernel_inject enabled mpu tp_group"),
    Open("/tensor_parallel/tp", "0.16.4").Holds("tp_size tp_grain_size mpu tp_group"),
    Int("/tensor_parallel/autotp_size", "0.16.4", "0", kFollows).Rounding().From(0).SplitsRanks()
        .WideFromStage(0, kShares, "/tensor_parallel/autotp_size")
        .Note("searched with a free batch; the script has to follow it"),
    Open("/expert_parallel", "0.19.2"),
    Flag("/expert_parallel/enabled", "0.19.2", "false", kRefuses).Rounding(),
    Int("/expert_parallel/autoep_size", "0.19.2", "1", kFollows)
        .Rounding().From(1).SplitsRanks().WideFromStage(0, kShares, kNumExperts)
        .Note("a search enables expert parallelism with values above 1"),
    Flag("/use_data_before_expert_parallelism", "0.12.4", "false", kWarns),
    Open("/elasticity", "0.3.9")
        .Holds("max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time version "
               "prefer_larger_batch ignore_non_elastic_batch_info model_parallel_size "
               "num_gpus_per_node"),
    Flag("/elasticity/enabled", "0.3.9", "false", kFollows),

    // Input/output, checkpoints.
    Section("/aio", "0.3.15"),
    Int("/aio/block_size", "0.3.15", "1048576", kHonors).Exact().In(kBytes).From(1)
        .WideFromStage(1, "[262144, 1048576, 8388608]", kOffloadDevices, kNvme).BeyondPlan(),
    Int("/aio/queue_depth", "0.3.15", "8", kHonors).Exact().From(1)
        .WideFromStage(1, "[8, 32, 128]", kOffloadDevices, kNvme).BeyondPlan(),
    Int("/aio/intra_op_parallelism", "0.16.4", "1", kHonors).Exact().From(1)
        .WideFromStage(1, "[1, 2, 4, 8]", kOffloadDevices, kNvme).BeyondPlan(),
    Alias("/aio/thread_count", "0.3.15", "/aio/intra_op_parallelism"),
    Flag("/aio/single_submit", "0.3.15", "false", kHonors).Exact()
        .WideFromStage(1, kSwitch, kOffloadDevices, kNvme).BeyondPlan(),
    Flag("/aio/overlap_events", "0.3.15", "true", kHonors).Exact()
        .WideFromStage(1, kSwitch, kOffloadDevices, kNvme).BeyondPlan(),
    Flag("/aio/use_gds", "0.15.0", "false", kWarns).Exact(),
    Open("/checkpoint", "0.1.0").Holds("checkpoint_serialization writer"),
    Text("/checkpoint/tag_validation", "0.3.11", "\"Warn\"", kWarns)
        .Exact()
        .OneOf("Ignore Warn Fail ignore warn fail"),
    Flag("/checkpoint/load_universal", "0.7.0", "false", kWarns).Exact(),
    Flag("/checkpoint/use_node_local_storage", "0.7.5", "false", kWarns).Exact(),
    Flag("/checkpoint/checkpoint_serialization", "0.17.1", "true", kWarns).Exact(),
    Any("/checkpoint/writer", "0.17.1", "null", kWarns).Exact(),
    Section("/checkpoint/parallel_write", "0.7.4"),
    Flag("/checkpoint/parallel_write/pipeline_stage", "0.7.4", "false", kWarns).Exact(),

    // Training techniques.
    Open("/curriculum_learning", "0.5.0")
        .Holds("curriculum_type min_difficulty max_difficulty schedule_type"),
    Open("/curriculum_learning/schedule_config", "0.5.0")
        .Holds("total_curriculum_step difficulty_step root_degree difficulty max_step"),
    Flag("/curriculum_learning/enabled", "0.5.0", "false", kRefuses),
    Open("/data_efficiency", "0.8.0").Holds("seed"),
    Open("/data_efficiency/data_sampling", "0.8.0")
        .Holds("enabled num_epochs num_workers pin_memory dynamic_batching"),
    Open("/data_efficiency/data_sampling/curriculum_learning", "0.8.0")
        .Holds("enabled data_cluster_path curriculum_metrics"),
    Open("/data_efficiency/data_routing", "0.8.0").Holds("enabled"),
    Open("/data_efficiency/data_routing/random_ltd", "0.8.0")
        .Holds("total_layer_num random_ltd_layer_num random_ltd_layer_id model_mask_name "
               "model_type hidden_state_order random_ltd_schedule layer_token_lr_schedule"),
    // It works without those around it.
    Flag("/data_efficiency/data_routing/random_ltd/enabled", "0.8.0", "false", kRefuses),
    Flag("/data_efficiency/enabled", "0.8.0", "false", kRefuses),
    Open("/compression_training", "0.7.0", kRefuses),
    Open("/progressive_layer_drop", "0.3.1").Holds("theta gamma"),
    Flag("/progressive_layer_drop/enabled", "0.3.1", "false", kRefuses),
    Open("/eigenvalue", "0.4.0")
        .Holds("verbose max_iter tol stability gas_boundary_resolution layer_name layer_num"),
    Flag("/eigenvalue/enabled", "0.4.0", "false", kRefuses),
    Open("/sparse_attention", "0.3.0", kRefuses),
    Flag("/graph_harvesting", "0.12.6", "false", kRefuses).Exact(),
    Open("/nebula", "0.7.0")
        .Holds("persistent_storage_path persistent_time_interval num_of_version_in_retention "
               "enable_nebula_load load_path"),
    Flag("/nebula/enabled", "0.7.0", "false", kWarns).Exact(),
    Open("/hybrid_engine", "0.9.0")
        .Holds("max_out_tokens inference_tp_size release_inference_cache pin_parameters "
               "tp_gather_partition_size enable_cuda_graph"),
    Flag("/hybrid_engine/enabled", "0.9.0", "false", kRefuses),
    Open("/compile", "0.16.6")
        .Holds("enabled backend kwargs autoep_non_moe free_activation free_activation_threshold "
               "offload_activation offload_activation_pin_memory offload_opt_states double_buffer "
               "symmetric_memory debug_log offload_parameters sync_before_reduce sync_after_reduce "
               "sync_before_allgather sync_after_allgather keep_int_input_tensors "
               "keep_all_input_tensors passes"),
    Flag("/compile/deepcompile", "0.16.6", "false", kRefuses)
        .Rounding().WideFromStage(1, kSwitch, "/compile").NeedsGpu()
        .Note("has an effect where the script calls engine.compile()"),

    // Reports.
    Int("/steps_per_print", "0.1.0", "null", kHonors).Exact().From(1),
    Int("/seed", "", "42", kHonors).From(0).Note("dsat's own; DeepSpeed ignores it"),
    Flag("/wall_clock_breakdown", "0.1.0", "false", kWarns).Exact(),
    Flag("/memory_breakdown", "0.2.0", "false", kWarns).Exact(),
    Flag("/dump_state", "0.1.0", "false", kWarns).Exact(),
    Flag("/disable_python_gc", "0.19.7", "false", kWarns).Exact(),
    Int("/vocabulary_size", "0.1.0", "null", kWarns).Exact().From(1),
    Any("/log_level", "0.19.3", "null", kWarns).Exact(),
    Section("/timers", "0.1.0"),
    Section("/timers/throughput", "0.5.7"),
    Flag("/timers/throughput/enabled", "0.5.7", "true", kWarns).Exact(),
    Flag("/timers/throughput/synchronized", "0.14.3", "true", kWarns).Exact(),
    Section("/flops_profiler", "0.3.11"),
    Flag("/flops_profiler/enabled", "0.3.11", "false", kWarns).Exact(),
    Number("/flops_profiler/recompute_fwd_factor", "0.9.3", "0.0", kFollows).Exact().From(0).To(1),
    Int("/flops_profiler/profile_step", "0.3.12", "1", kFollows).Exact().From(0),
    Int("/flops_profiler/module_depth", "0.3.11", "-1", kFollows).Exact().From(-1),
    Int("/flops_profiler/top_modules", "0.3.11", "1", kFollows).Exact().From(0),
    Flag("/flops_profiler/detailed", "0.3.12", "true", kFollows).Exact(),
    Text("/flops_profiler/output_file", "0.4.0", "null", kFollows).Exact(),
    Section("/tensorboard", "0.1.0"),
    Flag("/tensorboard/enabled", "0.1.0", "false", kHonors).Exact(),
    Text("/tensorboard/output_path", "0.1.0", "\"\"", kHonors)
        .Exact()
        .Note("relative to the output folder of the training"),
    Text("/tensorboard/job_name", "0.1.0", "\"DeepSpeedJobName\"", kHonors).Exact(),
    Open("/wandb", "0.6.6").Holds("group team project"),
    Flag("/wandb/enabled", "0.6.6", "false", kWarns).Exact(),
    Section("/csv_monitor", "0.6.6"),
    Flag("/csv_monitor/enabled", "0.6.6", "false", kHonors).Exact(),
    Text("/csv_monitor/output_path", "0.6.6", "\"\"", kHonors)
        .Exact()
        .Note("relative to the output folder of the training"),
    Text("/csv_monitor/job_name", "0.6.6", "\"DeepSpeedJobName\"", kHonors).Exact(),
    Open("/comet", "0.14.3")
        .Holds("samples_log_interval project workspace api_key experiment_name experiment_key "
               "online mode"),
    Flag("/comet/enabled", "0.14.3", "false", kWarns).Exact(),
    Open("/comms_logger", "0.7.0").Holds("prof_all prof_ops verbose debug"),
    Flag("/comms_logger/enabled", "0.7.0", "false", kWarns).Exact(),
    Open("/autotuning", "0.5.7").Note("left out in every trial and in the written result"),
    Section("/dsat", ""),
    Open("/dsat/arguments", "")
        .Note("arguments of the user's command; a search of arguments writes them"),
    Open("/dsat/environment", "")
        .Note("environment variables of the ranks; a search of variables writes them"),
    // Arguments of a script's trainer, or of its model of Hugging Face. The default is what the
    // trainer has set. The values are searched besides that one.
    Section("/dsat/trainer", ""),
    Flag("/dsat/trainer/gradient_checkpointing", "", "false", kRefuses)
        .Exact().PlacesFromStage(0, kSwitch)
        .Note("of Hugging Face's models; takes a third more time and saves most activations"),
    Text("/dsat/trainer/attn_implementation", "", "null", kRefuses)
        .Rounding().WideFromStage(0, R"(["sdpa"])")
        .Note("of Hugging Face's models; sdpa is the fastest that PyTorch brings"),
    Text("/dsat/trainer/optim", "", "null", kRefuses)
        .Rounding().WideFromStage(0, R"(["adamw_torch_fused"])")
        .Note("of TrainingArguments, where the ds_config has no optimizer; one kernel for all"),
    Int("/dsat/trainer/dataloader_num_workers", "", "0", kRefuses)
        .Exact().From(0).WideFromStage(0, "[2, 4, 8]").NeedsGpu()
        .Note("processes that load batches while the device computes"),
    Flag("/dsat/trainer/dataloader_pin_memory", "", "false", kRefuses)
        .Exact().WideFromStage(0, "[true]").NeedsGpu()
        .Note("batches in page-locked memory, which takes host memory"),
    Int(kNumExperts, "", "0", kRefuses)
        .From(0)
        .Note("in a layer of a mixture of experts that DeepSpeed's AutoEP can distribute; the "
              "profiling trial counts them"),
};

std::array<int, 3> NumbersOf(const std::string& release) {
  std::array<int, 3> numbers{};
  std::istringstream text(release);
  char dot = 0;
  for (int& number : numbers)
    text >> number >> dot;
  return numbers;
}

}  // namespace

const KeyTable& Keys() {
  static const KeyTable kTable = [] {
    std::vector<Key> keys(std::begin(kBeforeZero), std::end(kBeforeZero));
    keys.insert(keys.end(), ZeroKeys().begin(), ZeroKeys().end());
    keys.insert(keys.end(), std::begin(kBehindZero), std::end(kBehindZero));
    return KeyTable(std::move(keys));
  }();
  return kTable;
}

bool IsOlder(const std::string& release, const std::string& than) {
  return NumbersOf(release) < NumbersOf(than);
}

std::string NameIn(const std::string& release, const Key& key) {
  if (!IsOlder(release, key.since)) return key.pointer;
  for (const Key& other : Keys()) {
    const bool is_alias =
        other.type == KeyType::kAlias && key.pointer == std::string(other.fallback);
    if (is_alias && !IsOlder(release, other.since)) return other.pointer;
  }
  return "";
}

}  // namespace dsat::engine
