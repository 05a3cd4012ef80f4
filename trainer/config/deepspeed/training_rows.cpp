#include "trainer/config/deepspeed/keys.h"

namespace k25::trainer {
namespace {

using enum DsType;
using enum DsFate;

constexpr const char* kNoOther = "a parameter of another optimizer than AdamW";
constexpr const char* kNoOtherSchedule = "a parameter of a schedule that k25 does not have";
constexpr const char* kUnits = "k25 gathers and reduces unit by unit (a layer); see zero.prefetch";
constexpr const char* kPool = "k25 has one pinned pool, sized from the plan";
constexpr const char* kNvme =
    "a detail of DeepSpeed's way to NVMe; k25 reads ahead and writes behind, see offload.nvme";
constexpr const char* kOneModule = "k25's models are fixed; there are no modules to hook";

constexpr DsRow kRows[] = {
    // Batch
    {"", "train_batch_size", kInteger, kMapped, "train.batch", "the same number"},
    {"", "train_micro_batch_size_per_gpu", kInteger, kMapped, "train.micro_batch",
     "the same number"},
    {"", "gradient_accumulation_steps", kInteger, kMapped, "train.accumulation",
     "the same number; DeepSpeed's default is 1"},
    {"", "managed_gradient_accumulation", kBool, kRefused, "true",
     "the number of micro-batches of an update is in your training loop then; write it into "
     "gradient_accumulation_steps"},
    // Optimizer
    {"optimizer", "type", kText, kMapped, "optim.type",
     "AdamW, and Adam where it is the same; every other optimizer is refused"},
    {"optimizer", "legacy_fusion", kBool, kNoEffect, "", "of fp16 training"},
    {"optimizer.params", "lr", kNumber, kMapped, "optim.lr", "DeepSpeed's default is 0.001"},
    {"optimizer.params", "betas", kList, kMapped, "optim.betas",
     "DeepSpeed's default is [0.9, 0.999]"},
    {"optimizer.params", "eps", kNumber, kMapped, "optim.eps", "DeepSpeed's default is 1e-8"},
    {"optimizer.params", "weight_decay", kNumber, kMapped, "optim.weight_decay",
     "k25 decays matrices only, DeepSpeed every parameter of the group; its default is 0, with "
     "torch_adam 0.01"},
    {"optimizer.params", "adam_w_mode", kBool, kMapped, "optim.type",
     "Adam with false adds weight_decay to the gradient: refused unless weight_decay is 0"},
    {"optimizer.params", "torch_adam", kBool, kMapped, "optim.weight_decay",
     "only decides the default of weight_decay"},
    {"optimizer.params", "bias_correction", kBool, kRefused, "true",
     "k25's AdamW corrects the bias of both moments"},
    {"optimizer.params", "amsgrad maximize", kBool, kRefused, "false", "k25 has AdamW alone"},
    {"optimizer.params", "max_grad_norm", kNumber, kRefused, "0",
     "DeepSpeed ignores it without fp16; use gradient_clipping, which becomes optim.clip"},
    {"optimizer.params", "fp32_optimizer_states", kBool, kNoEffect, "",
     "k25's moments are fp32 always"},
    {"optimizer.params", "fused foreach capturable differentiable set_grad_none", kBool, kNoEffect,
     "", "ways to run the same update"},
    {"optimizer.params",
     "momentum muon_lr adam_lr ns_method freeze_step cuda_aware comm_backend_name var_freeze_step "
     "var_update_scaler local_step_scaler local_step_clipper max_coeff min_coeff coeff_beta "
     "factor_max factor_min factor_threshold nesterov dampening lr_decay alpha centered",
     kAny, kRefused, "", kNoOther},
    // Scheduler
    {"scheduler", "type", kText, kMapped, "optim.schedule.kind",
     "WarmupLR: constant, WarmupDecayLR: wsd over the whole rest, WarmupCosineLR: cosine; others "
     "are refused"},
    {"scheduler.params", "warmup_num_steps", kInteger, kMapped, "optim.schedule.warmup",
     "DeepSpeed's default is 1000; its first update has rate 0, k25's the first step of the ramp"},
    {"scheduler.params", "warmup_max_lr", kNumber, kMapped, "optim.lr",
     "the schedule's peak wins over optimizer.params.lr, as in DeepSpeed"},
    {"scheduler.params", "warmup_min_lr warmup_min_ratio", kNumber, kRefused, "0",
     "k25's warm-up begins at 0"},
    {"scheduler.params", "warmup_type", kText, kMapped, "optim.schedule.warmup",
     "linear alone; log, which is DeepSpeed's default, is refused"},
    {"scheduler.params", "total_num_steps", kInteger, kMapped, "train.steps",
     "the schedule ends with the run"},
    {"scheduler.params", "cos_min_ratio", kNumber, kMapped, "optim.schedule.min_ratio",
     "DeepSpeed's default is 0.0001"},
    {"scheduler.params", "last_batch_iteration", kInteger, kRefused, "-1",
     "a checkpoint holds k25's position (train.resume)"},
    {"scheduler.params",
     "lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size "
     "lr_range_test_staircase cycle_first_step_size cycle_first_stair_count "
     "cycle_second_step_size cycle_second_stair_count decay_step_size cycle_min_lr cycle_max_lr "
     "decay_lr_rate cycle_min_mom cycle_max_mom decay_mom_rate cycle_momentum",
     kAny, kRefused, "", kNoOtherSchedule},
    // Precision
    {"fp16", "enabled", kBool, kSwitch, "", "fp16 needs loss scaling; use bf16"},
    {"fp16",
     "auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
     "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads",
     kAny, kPart, "", "of fp16 training"},
    {"bf16", "enabled", kBool, kMapped, "train.precision", "true: bf16, false: fp32"},
    {"bf16", "immediate_grad_update", kBool, kNoEffect, "",
     "k25 adds each gradient to its fp32 sum as it comes"},
    {"bf16", "check_grad_overflow check_overflow", kBool, kNoEffect, "",
     "k25 always looks for a loss or gradient that is not finite; see numeric.on_nan"},
    {"bf16", "bf16_master_weights_and_grads bf16_optimizer_states", kBool, kRefused, "false",
     "k25's masters, moments and gradient sums are fp32"},
    {"bfloat16", "enabled", kBool, kMapped, "train.precision", "the old name of bf16.enabled"},
    {"amp", "enabled", kBool, kSwitch, "", "Apex AMP is PyTorch's; use bf16"},
    {"amp", "*", kAny, kPart, "", "of Apex AMP"},
    {"torch_autocast", "enabled", kBool, kSwitch, "", "autocast is PyTorch's; use bf16"},
    {"torch_autocast", "dtype lower_precision_safe_modules", kAny, kPart, "", "of autocast"},
    {"data_types", "grad_accum_dtype", kText, kNoEffect, "", "k25 sums gradients in fp32 always"},
    {"", "gradient_clipping", kNumber, kMapped, "optim.clip", "the same number; 0: off"},
    // ZeRO
    {"zero_optimization", "stage", kInteger, kMapped, "zero.reshard_after",
     "3: auto; 0, 1 and 2: step, which keeps gathered parameters for the step, while optimizer "
     "state and gradients stay sharded as in stage 2"},
    {"zero_optimization",
     "contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions "
     "stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params "
     "stage3_allgather_sequential allgather_sequential",
     kBool, kNoEffect, "", kUnits},
    {"zero_optimization",
     "reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size "
     "prefetch_bucket_size stage3_param_persistence_threshold param_persistence_threshold "
     "stage3_model_persistence_threshold model_persistence_threshold stage3_max_live_parameters "
     "max_live_parameters stage3_max_reuse_distance max_reuse_distance",
     kNumber, kNoEffect, "", kUnits},
    {"zero_optimization", "overlap_comm", kBool, kNoEffect, "",
     "not a choice in k25; see zero.prefetch"},
    {"zero_optimization", "round_robin_gradients grad_hooks legacy_stage1", kBool, kNoEffect, "",
     "of stages 1 and 2"},
    {"zero_optimization", "load_from_fp32_weights pipeline_loading_checkpoint elastic_checkpoint",
     kBool, kNoEffect, "", "k25's checkpoints hold fp32 masters and load at any number of ranks"},
    {"zero_optimization",
     "stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save "
     "stage3_gather_fp16_weights_on_model_save",
     kBool, kNoEffect, "", "k25 has no 16-bit export yet; checkpoints hold fp32 masters"},
    {"zero_optimization",
     "ignore_unused_parameters memory_efficient_linear override_module_apply "
     "log_trace_cache_warnings enable_sanity_checks",
     kBool, kNoEffect, "", kOneModule},
    {"zero_optimization", "stage3_module_granularity_threshold module_granularity_threshold",
     kNumber, kNoEffect, "", kOneModule},
    {"zero_optimization.leaf_module", "classes names name_suffixes", kList, kNoEffect, "",
     kOneModule},
    {"zero_optimization", "save_muon_momentum_buffer_in_memory", kBool, kNoEffect, "", "of Muon"},
    {"zero_optimization", "zero_hpz_partition_size", kInteger, kRefused, "0 1",
     "ZeRO++: k25 keeps no second copy of the parameters within a node"},
    {"zero_optimization",
     "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients", kBool,
     kRefused, "false", "ZeRO++: k25 sends bf16 parameters and fp32 gradients"},
    {"zero_optimization", "zeropp_loco_param", kMap, kRefused, "",
     "ZeRO++: of quantized gradients"},
    {"zero_optimization", "mics_shard_size", kInteger, kRefused, "-1 0",
     "write mesh.shard (this number) and mesh.replicate (ranks / this number) yourself"},
    {"zero_optimization", "mics_hierarchical_params_gather", kBool, kRefused, "false",
     "k25 gathers in one stage"},
    {"zero_optimization", "zenflow", kMap, kRefused, "",
     "ZenFlow updates with old gradients, k25 never"},
    {"zero_optimization.zenflow",
     "topk_ratio select_strategy select_interval update_interval overlap_step offload auto_ratio "
     "full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch",
     kAny, kPart, "", "of ZenFlow"},
    // Offload
    {"zero_optimization.offload_param", "device", kText, kMapped, "offload.params",
     "none: device, cpu: host; nvme is refused"},
    {"zero_optimization.offload_param", "pin_memory", kBool, kNoEffect, "", kPool},
    {"zero_optimization.offload_param", "buffer_count buffer_size", kNumber, kNoEffect, "", kPool},
    {"zero_optimization.offload_param", "nvme_path max_in_cpu", kAny, kNoEffect, "", kNvme},
    {"zero_optimization.offload_optimizer", "device", kText, kMapped, "offload.optimizer",
     "none: device, cpu: host, nvme: host with offload.nvme"},
    {"zero_optimization.offload_optimizer", "nvme_path", kText, kMapped, "offload.nvme",
     "the same folder, for the moments; the masters stay in host memory"},
    {"zero_optimization.offload_optimizer", "ratio", kNumber, kMapped, "offload.resident",
     "1 - ratio: the share that stays on the GPU"},
    {"zero_optimization.offload_optimizer", "pin_memory", kBool, kNoEffect, "", kPool},
    {"zero_optimization.offload_optimizer", "buffer_count", kNumber, kNoEffect, "", kPool},
    {"zero_optimization.offload_optimizer", "fast_init pipeline_read pipeline_write", kAny,
     kNoEffect, "", kNvme},
    {"zero_optimization.offload_optimizer", "super_offload", kBool, kRefused, "false",
     "its updates run ahead of the gradient norm and are rolled back; k25 updates once"},
    {"zero_optimization.offload_optimizer", "cpuadam_cores_perc", kNumber, kNoEffect, "",
     "of SuperOffload; k25's CPU threads are run.cpu_threads"},
    {"zero_optimization", "cpu_offload", kBool, kMapped, "offload.optimizer",
     "the old name of offload_optimizer: true: host"},
    {"zero_optimization", "cpu_offload_param cpu_offload_params", kBool, kMapped, "offload.params",
     "the old name of offload_param: true: host"},
    {"zero_optimization", "cpu_offload_use_pin_memory", kBool, kNoEffect, "", kPool},
    {"aio",
     "block_size queue_depth thread_count intra_op_parallelism single_submit overlap_events "
     "use_gds",
     kAny, kNoEffect, "", kNvme},
    // Activation checkpointing
    {"activation_checkpointing", "partition_activations", kBool, kNoEffect, "",
     "of tensor parallelism; a rank of k25 holds only its own activations"},
    {"activation_checkpointing", "cpu_checkpointing", kBool, kRefused, "false",
     "k25 recomputes a layer from its input, which stays on the GPU; use recompute.layers"},
    {"activation_checkpointing", "number_checkpoints", kInteger, kNoEffect, "",
     "k25 names the layers: recompute.layers"},
    {"activation_checkpointing",
     "contiguous_memory_optimization synchronize_checkpoint_boundary profile", kBool, kNoEffect, "",
     "k25 plans its memory before the first step"},
    {"gradient_checkpointing", "enabled", kBool, kMapped, "recompute.layers",
     "no key of DeepSpeed's (that is activation_checkpointing); true: the fragment asks for the "
     "list of layers, false: []"},
    {"gradient_checkpointing", "partition_activations profile", kBool, kNoEffect, "",
     "no key of DeepSpeed's; read as those of activation_checkpointing"},
};

}  // namespace

std::span<const DsRow> deepspeed_training_rows() { return kRows; }

}  // namespace k25::trainer
