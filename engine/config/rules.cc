// The combination rules, one row each.
#include <string>

#include "engine/config/validate.h"

namespace dsat::engine {
namespace {

constexpr bool kRefuse = true;
constexpr bool kWarn = false;

int64_t NumStages(const Settings& s) {
  return s.Int("/pipeline/stages");
}

bool Offloads(const Settings& s, const std::string& section) {
  return s.Text("/zero_optimization/" + section + "/device") != "none";
}

bool IsOneBit(const Settings& s) {
  return IsOneOf(s.Lower("/optimizer/type"), "onebitadam zerooneadam onebitlamb");
}

// DeepSpeed runs ZeRO with the listed optimizers without /zero_allow_untested_optimizer. Only the
// package of the mu-optimizers can tell the Adam or SGD objects that they build apart.
bool IsUntestedWithZero(const Settings& s) {
  std::string type = s.Lower("/optimizer/type");
  return !type.empty() && !IsOneBit(s) &&
         !IsOneOf(type, "adam adamw adagrad lion muon muadam muadamw musgd");
}

bool LacksNvmePath(const Settings& s, const std::string& section) {
  return s.Text("/zero_optimization/" + section + "/device") == "nvme" &&
         s.Text("/zero_optimization/" + section + "/nvme_path").empty();
}

// DeepSpeed's scheduler names keep their case.
bool IsMisspelled(const Settings& s) {
  const std::string known = s.keys().Find("/scheduler/type")->known;
  return IsOneOf(s.Lower("/scheduler/type"), LowerCase(known)) &&
         !IsOneOf(s.Text("/scheduler/type"), known);
}

bool ScalesDynamically(const Settings& s) {
  return s.Is("/fp16/enabled") && s.Number("/fp16/loss_scale") == 0;
}

// If the script makes the optimizer, only DeepSpeed knows which one it is.
bool OffloadsAdam(const Settings& s) {
  const std::string type = s.Lower("/optimizer/type");
  return s.stage() > 0 && Offloads(s, "offload_optimizer") &&
         (type.empty() || IsOneOf(type, "adam adamw"));
}

bool ScattersGradients(const Settings& s) {
  return s.stage() >= 2 && s.Is("/zero_optimization/reduce_scatter");
}

constexpr Rule kRules[] = {
    {"/fp16/enabled", kRefuse, "expected false, since /bf16/enabled is true",
     [](const Settings& s) { return s.Is("/fp16/enabled") && s.Is("/bf16/enabled"); }},
    {"/amp/enabled", kRefuse, "expected false with ZeRO, /fp16/enabled or /bf16/enabled",
     [](const Settings& s) { return s.Is("/amp/enabled") && (s.stage() > 0 || s.IsHalf()); }},
    {"/fp16/fp16_master_weights_and_grads", kRefuse,
     "expected false unless ZeRO offloads Adam or AdamW to the CPU",
     [](const Settings& s) {
       return s.Is("/fp16/fp16_master_weights_and_grads") && !OffloadsAdam(s);
     }},
    {"/bf16/bf16_optimizer_states", kRefuse,
     "expected false unless /bf16/bf16_master_weights_and_grads is true, with ZeRO stage 1, 2 or 3",
     [](const Settings& s) {
       return s.Is("/bf16/bf16_optimizer_states") &&
              !(s.Is("/bf16/bf16_master_weights_and_grads") && s.stage() > 0);
     }},
    {"/bf16/bf16_master_weights_and_grads", kRefuse,
     "expected false unless ZeRO offloads Adam or AdamW to the CPU, or "
     "/bf16/bf16_optimizer_states is true",
     [](const Settings& s) {
       return s.Is("/bf16/bf16_master_weights_and_grads") && !s.Is("/bf16/bf16_optimizer_states") &&
              !OffloadsAdam(s);
     }},
    {"/optimizer/type", kRefuse, "expected another optimizer: 1-bit optimizers exclude ZeRO",
     [](const Settings& s) { return IsOneBit(s) && s.stage() > 0; }},
    {"/optimizer/type", kRefuse,
     "expected Adam, AdamW, Adagrad, Lion or Muon with ZeRO, or "
     "/zero_allow_untested_optimizer true",
     [](const Settings& s) {
       return IsUntestedWithZero(s) && s.stage() > 0 && !s.Is("/zero_allow_untested_optimizer");
     }},
    {"/optimizer/type", kRefuse, "expected another optimizer in a pipeline",
     [](const Settings& s) { return IsOneBit(s) && NumStages(s) > 1; }},
    {"/gradient_clipping", kWarn,
     "1-bit Adam clips until freeze_step; after it no rank knows the whole gradient",
     [](const Settings& s) {
       return IsOneBit(s) && s.Given("/gradient_clipping") != nullptr &&
              s.Number("/gradient_clipping") > 0;
     }},
    {"/optimizer/type", kRefuse, "expected \"SGD\": names of torch.optim keep their case",
     [](const Settings& s) {
       return s.Lower("/optimizer/type") == "sgd" && s.Text("/optimizer/type") != "SGD";
     }},
    {"/optimizer/type", kRefuse, "expected a type beside /optimizer/params",
     [](const Settings& s) {
       return s.Given("/optimizer/params") != nullptr && s.Given("/optimizer/type") == nullptr;
     }},
    {"/scheduler/type", kRefuse, "expected a type beside /scheduler/params",
     [](const Settings& s) {
       return s.Given("/scheduler/params") != nullptr && s.Given("/scheduler/type") == nullptr;
     }},
    {"/scheduler/type", kRefuse,
     "expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest in this spelling",
     [](const Settings& s) { return IsMisspelled(s); }},
    {"/scheduler/params/total_num_steps", kRefuse,
     "expected an integer with WarmupDecayLR and WarmupCosineLR",
     [](const Settings& s) {
       return IsOneOf(s.Text("/scheduler/type"), "WarmupDecayLR WarmupCosineLR") &&
              !s.Has("/scheduler/params/total_num_steps");
     }},
    {"/scheduler/params/cycle_max_lr", kRefuse,
     "expected cycle_min_lr and cycle_max_lr with OneCycle",
     [](const Settings& s) {
       return s.Text("/scheduler/type") == "OneCycle" &&
              !(s.Has("/scheduler/params/cycle_min_lr") && s.Has("/scheduler/params/cycle_max_lr"));
     }},
    {"/scheduler/params/total_num_steps", kWarn,
     "DeepSpeed expects at least /scheduler/params/warmup_num_steps: the schedule ends before its "
     "warm-up does",
     [](const Settings& s) {
       return IsOneOf(s.Text("/scheduler/type"), "WarmupDecayLR WarmupCosineLR") &&
              s.Given("/scheduler/params/total_num_steps") != nullptr &&
              s.Int("/scheduler/params/total_num_steps") <
                  s.Int("/scheduler/params/warmup_num_steps");
     }},
    {"/scheduler/params/cycle_momentum", kWarn,
     "DeepSpeed cycles betas, and this optimizer has none: only the learning rate is cycled",
     [](const Settings& s) {
       return s.Text("/scheduler/type") == "OneCycle" &&
              IsOneOf(s.Lower("/optimizer/type"), "sgd adagrad") &&
              s.Is("/scheduler/params/cycle_momentum");
     }},
    {"/fp16/loss_scale_window", kRefuse, "expected an integer >= 1 while /fp16/loss_scale is 0",
     [](const Settings& s) {
       return ScalesDynamically(s) && s.Int("/fp16/loss_scale_window") == 0;
     }},
    {"/fp16/min_loss_scale", kRefuse, "expected a number > 0 while /fp16/loss_scale is 0",
     [](const Settings& s) {
       return ScalesDynamically(s) && s.Number("/fp16/min_loss_scale") == 0;
     }},
    {"/optimizer/params/max_coeff", kRefuse, "expected at least /optimizer/params/min_coeff",
     [](const Settings& s) {
       return s.Lower("/optimizer/type") == "lamb" &&
              s.Number("/optimizer/params/max_coeff") < s.Number("/optimizer/params/min_coeff");
     }},
    {"/optimizer/params/max_grad_norm", kRefuse, "expected /gradient_clipping in its place",
     [](const Settings& s) { return s.Given("/optimizer/params/max_grad_norm") != nullptr; }},
    {"/optimizer/params/adam_w_mode", kWarn, "DeepSpeed ignores it for AdamW",
     [](const Settings& s) {
       return s.Lower("/optimizer/type") == "adamw" &&
              s.Given("/optimizer/params/adam_w_mode") != nullptr &&
              !s.Is("/optimizer/params/adam_w_mode");
     }},
    {"/optimizer/params/nesterov", kRefuse,
     "expected false unless /optimizer/params/momentum is above 0 and dampening is 0",
     [](const Settings& s) {
       return s.Text("/optimizer/type") == "SGD" && s.Is("/optimizer/params/nesterov") &&
              (s.Number("/optimizer/params/momentum") <= 0 ||
               s.Number("/optimizer/params/dampening") != 0);
     }},
    {"/fp16/loss_scale", kRefuse, "expected 0 (dynamic) with Lamb",
     [](const Settings& s) {
       return s.Lower("/optimizer/type") == "lamb" && s.Is("/fp16/enabled") &&
              s.Number("/fp16/loss_scale") != 0;
     }},
    {"/gradient_predivide_factor", kRefuse,
     "expected 1.0 at ZeRO stages 2 and 3 with /zero_optimization/reduce_scatter",
     [](const Settings& s) {
       return ScattersGradients(s) && s.Number("/gradient_predivide_factor") != 1.0;
     }},
    {"/prescale_gradients", kRefuse,
     "expected false at ZeRO stages 2 and 3 with /zero_optimization/reduce_scatter",
     [](const Settings& s) { return ScattersGradients(s) && s.Is("/prescale_gradients"); }},
    {"/gradient_allreduce_op", kRefuse,
     "expected \"mean\" at ZeRO stage 3, with /zero_optimization/zenflow or /compile/deepcompile",
     [](const Settings& s) {
       return s.Text("/gradient_allreduce_op") == "sum" &&
              (s.stage() == 3 || s.Given("/zero_optimization/zenflow") != nullptr ||
               s.Is("/compile/deepcompile"));
     }},
    {"/managed_gradient_accumulation", kRefuse,
     "expected true with /amp/enabled, /compile/deepcompile or more than one of /pipeline/stages",
     [](const Settings& s) {
       return !s.Is("/managed_gradient_accumulation") &&
              (s.Is("/amp/enabled") || s.Is("/compile/deepcompile") || NumStages(s) > 1);
     }},
    {"/managed_gradient_accumulation", kRefuse,
     "expected true with /zero_optimization/overlap_comm below ZeRO stage 2",
     [](const Settings& s) {
       return !s.Is("/managed_gradient_accumulation") && s.stage() < 2 &&
              s.Is("/zero_optimization/overlap_comm");
     }},
    {"/zero_optimization/legacy_stage1", kRefuse, "expected false: DeepSpeed dropped it",
     [](const Settings& s) { return s.Is("/zero_optimization/legacy_stage1"); }},
    {"/zero_optimization/offload_optimizer/nvme_path", kRefuse,
     "expected a folder, since the device is \"nvme\"",
     [](const Settings& s) { return LacksNvmePath(s, "offload_optimizer"); }},
    {"/zero_optimization/offload_param/nvme_path", kRefuse,
     "expected a folder, since the device is \"nvme\"",
     [](const Settings& s) { return LacksNvmePath(s, "offload_param"); }},
    {"/zero_optimization/offload_optimizer/ratio", kRefuse, "expected 1.0 below ZeRO stage 3",
     [](const Settings& s) {
       return s.stage() < 3 && Offloads(s, "offload_optimizer") &&
              s.Number("/zero_optimization/offload_optimizer/ratio") < 1.0;
     }},
    {"/zero_optimization/contiguous_gradients", kWarn,
     "taken as true, as in DeepSpeed: ZeRO stages 1 and 2 offload the optimizer",
     [](const Settings& s) {
       return (s.stage() == 1 || s.stage() == 2) && Offloads(s, "offload_optimizer") &&
              !s.Is("/zero_optimization/contiguous_gradients");
     }},
    {"/optimizer/type", kWarn,
     "DeepSpeed offloads an optimizer that the script makes only if it is DeepSpeedCPUAdam or "
     "DeepSpeedCPULion, or /zero_force_ds_cpu_optimizer is false",
     [](const Settings& s) {
       return s.stage() > 0 && Offloads(s, "offload_optimizer") && !s.Has("/optimizer/type") &&
              s.Is("/zero_force_ds_cpu_optimizer");
     }},
    {"/zero_optimization/overlap_comm", kWarn, "taken as false, as in DeepSpeed: a pipeline",
     [](const Settings& s) { return NumStages(s) > 1 && s.Is("/zero_optimization/overlap_comm"); }},
    {"/pipeline/stages", kRefuse, "expected 1 with ZeRO stages 2 and 3, or a lower stage",
     [](const Settings& s) { return s.stage() >= 2 && NumStages(s) > 1; }},
    {"/optimizer/type", kRefuse,
     "expected another optimizer than Lamb with /zero_optimization/offload_optimizer or "
     "offload_param",
     [](const Settings& s) {
       return s.Lower("/optimizer/type") == "lamb" &&
              (Offloads(s, "offload_optimizer") || Offloads(s, "offload_param"));
     }},
    {"/pipeline/activation_checkpoint_interval", kWarn,
     "the built-in engine ignores it: /activation_checkpointing/number_checkpoints says how many "
     "segments there are",
     [](const Settings& s) {
       return s.Given("/activation_checkpointing/number_checkpoints") != nullptr &&
              s.Int("/pipeline/activation_checkpoint_interval") > 0;
     }},
    {"/aio/block_size", kRefuse, "expected a multiple of 4096",
     [](const Settings& s) { return s.Int("/aio/block_size") % 4096 != 0; }},
    {"/elasticity/enabled", kRefuse, "expected false: elastic batch sizes replace a trial's",
     [](const Settings& s) { return s.Is("/elasticity/enabled"); }},
    {"/expert_parallel/enabled", kRefuse,
     "expected false with /tensor_parallel/autotp_size above 1, or autoep_size above 1 and no "
     "sequence parallelism, offload or /compile/deepcompile",
     [](const Settings& s) {
       return s.Is("/expert_parallel/enabled") && s.Int("/tensor_parallel/autotp_size") > 1 &&
              (s.Int("/expert_parallel/autoep_size") == 1 || s.Int("/sequence_parallel_size") > 1 ||
               Offloads(s, "offload_optimizer") || Offloads(s, "offload_param") ||
               s.Is("/compile/deepcompile"));
     }},
    {"/expert_parallel/enabled", kRefuse,
     "expected false at ZeRO stage 3 with /sequence_parallel_size, "
     "/zero_optimization/zero_quantized_gradients or /zero_optimization/zero_hpz_partition_size",
     [](const Settings& s) {
       return s.Is("/expert_parallel/enabled") && s.stage() == 3 &&
              (s.Int("/sequence_parallel_size") > 1 ||
               s.Is("/zero_optimization/zero_quantized_gradients") ||
               s.Int("/zero_optimization/zero_hpz_partition_size") > 1);
     }},
    {"/expert_parallel/enabled", kRefuse,
     "expected false at ZeRO stages 1 and 2 without /zero_optimization/reduce_scatter, and at "
     "stage 2 without contiguous_gradients",
     [](const Settings& s) {
       const bool is_contiguous = s.Is("/zero_optimization/contiguous_gradients") ||
                                  Offloads(s, "offload_optimizer") || s.stage() != 2;
       return s.Is("/expert_parallel/enabled") && (s.stage() == 1 || s.stage() == 2) &&
              !(is_contiguous && s.Is("/zero_optimization/reduce_scatter"));
     }},
};

}  // namespace

std::span<const Rule> Rules() {
  return kRules;
}

}  // namespace dsat::engine
