#include "trainer/config/deepspeed/keys.h"

namespace k25::trainer {
namespace {

using enum DsType;
using enum DsFate;

constexpr const char* kNoCompression = "k25 trains whole models; compression is not built";
constexpr const char* kNoAutoTp = "of tensor parallelism";
constexpr const char* kNoAutoEp = "of expert parallelism";
constexpr const char* kCurriculum = "of the curriculum";
constexpr const char* kEfficiency = "of data efficiency";
constexpr const char* kPacing =
    "total_curriculum_step difficulty_step root_degree difficulty max_step";
constexpr const char* kSame = "the same in every run of k25";
constexpr const char* kOwnMetrics = "k25 writes RUN/metrics.jsonl (log.metrics)";

constexpr DsRow kRows[] = {
    // Communication
    {"", "communication_data_type seq_parallel_communication_data_type", kText, kNoEffect, "",
     "k25 reduces gradients in fp32 always"},
    {"", "gradient_allreduce_op", kText, kRefused, "mean",
     "k25's gradient is of the sum of losses divided by the label tokens of the whole batch"},
    {"", "prescale_gradients", kBool, kNoEffect, "", "guards the range of fp16 sums"},
    {"", "gradient_predivide_factor", kNumber, kNoEffect, "", "guards the range of fp16 sums"},
    {"", "sparse_gradients disable_allgather graph_harvesting", kBool, kNoEffect, "",
     "a way to get the same numbers"},
    {"", "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer", kBool, kNoEffect, "",
     "k25 has one optimizer, tested with its sharding"},
    {"", "dataloader_drop_last", kBool, kNoEffect, "",
     "k25's batches are whole; data.on_exhausted says what follows the last"},
    {"", "vocabulary_size", kInteger, kNoEffect, "",
     "DeepSpeed only warns with it; k25 wants model.vocab"},
    // Logging
    {"", "steps_per_print", kAny, kNoEffect, "", "k25 prints one line a step"},
    {"", "wall_clock_breakdown", kBool, kNoEffect, "",
     "the times of a step are in RUN/metrics.jsonl; k25 bench step has more"},
    {"", "memory_breakdown dump_state", kBool, kNoEffect, "",
     "k25 config CONFIG prints what a run uses"},
    {"", "log_level", kText, kNoEffect, "", kSame},
    {"timers.throughput", "enabled synchronized", kBool, kNoEffect, "", kSame},
    {"tensorboard", "enabled", kBool, kMapped, "log.tensorboard", "the same value"},
    {"tensorboard", "output_path job_name", kText, kNoEffect, "",
     "event files are in RUN/tensorboard"},
    {"wandb", "enabled", kBool, kNoEffect, "", kOwnMetrics},
    {"wandb", "group team project", kText, kNoEffect, "", kOwnMetrics},
    {"comet", "enabled online", kBool, kNoEffect, "", kOwnMetrics},
    {"comet", "workspace project samples_log_interval experiment_name api_key experiment_key mode",
     kAny, kNoEffect, "", kOwnMetrics},
    {"csv_monitor", "enabled", kBool, kNoEffect, "", kOwnMetrics},
    {"csv_monitor", "output_path job_name", kText, kNoEffect, "", kOwnMetrics},
    {"comms_logger", "enabled verbose prof_all debug", kBool, kNoEffect, "",
     "changes no number; comm.check compares every collective across ranks"},
    {"comms_logger", "prof_ops", kList, kNoEffect, "", "changes no number"},
    {"flops_profiler",
     "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file",
     kAny, kNoEffect, "", "changes no number; use k25 bench step and k25 bench op"},
    {"autotuning", "enabled", kBool, kSwitch, "",
     "the tuner replaces the batch sizes and the ZeRO stage of this file; import what it found"},
    {"autotuning",
     "fast results_dir exps_dir overwrite start_profile_step end_profile_step metric metric_path "
     "tuner_type tuner_early_stopping tuner_num_trials arg_mappings max_train_batch_size "
     "min_train_batch_size max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu "
     "num_tuning_micro_batch_sizes mp_size model_info_path model_info",
     kAny, kPart, "", "of the tuner"},
    {"autotuning.model_info", "profile num_params hidden_size num_layers", kAny, kPart, "",
     "of the tuner"},
    // Parallelism
    {"", "sequence_parallel_size", kInteger, kRefused, "1", "k25 has no sequence parallelism"},
    {"", "pipeline", kMap, kRefused, "{}", "k25 has no pipeline parallelism"},
    {"pipeline",
     "stages partition seed_layers activation_checkpoint_interval pipe_partitioned "
     "grad_partitioned use_reentrant",
     kAny, kPart, "", "of pipeline parallelism"},
    {"tensor_parallel", "autotp_size", kInteger, kRefused, "0 1",
     "k25 has no tensor parallelism; ZeRO shards every matrix"},
    {"tensor_parallel.tp", "tp_size", kInteger, kRefused, "0 1",
     "k25 has no tensor parallelism; ZeRO shards every matrix"},
    {"tensor_parallel.tp", "tp_grain_size mpu tp_group", kAny, kNoEffect, "", kNoAutoTp},
    {"tensor_parallel",
     "enabled dtype tp_overlap_comm preset_model injection_policy_tuple "
     "keep_module_on_host replace_with_kernel_inject kernel_inject",
     kAny, kNoEffect, "", kNoAutoTp},
    {"tensor_parallel.partition_config", "use_default_specs layer_specs", kAny, kNoEffect, "",
     kNoAutoTp},
    {"expert_parallel", "enabled", kBool, kSwitch, "", "k25 has no MoE layers yet"},
    {"expert_parallel",
     "autoep_size expert_tensor_parallel_size validate_folding_routing preset_model "
     "use_grouped_mm disable_triton_grouped_mm moe_layer_pattern router_pattern expert_pattern "
     "score_func score_apply combine_impl route_norm route_scale top_k routed_scaling_factor "
     "num_expert_groups num_limited_groups load_balance_coeff expert_w1 expert_w2 expert_w3 "
     "num_experts_attr top_k_attr has_shared_experts shared_experts_pattern "
     "shared_experts_gate_pattern",
     kAny, kPart, "", kNoAutoEp},
    {"", "use_data_before_expert_parallelism", kBool, kNoEffect, "", kNoAutoEp},
    {"hybrid_engine", "enabled", kBool, kSwitch, "",
     "k25 does not generate while it trains; k25 sample does afterwards"},
    {"hybrid_engine",
     "max_out_tokens inference_tp_size release_inference_cache pin_parameters "
     "tp_gather_partition_size enable_cuda_graph",
     kAny, kPart, "", "of the hybrid engine"},
    {"compile", "passes", kList, kRefused, "[]",
     "they bring sequence or tensor parallelism, which k25 does not have"},
    {"compile",
     "deepcompile free_activation free_activation_threshold offload_activation "
     "offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory debug_log "
     "offload_parameters sync_before_reduce sync_after_reduce sync_before_allgather "
     "sync_after_allgather keep_int_input_tensors keep_all_input_tensors",
     kAny, kNoEffect, "", "k25 is compiled before it runs"},
    {"elasticity", "enabled", kBool, kSwitch, "",
     "it replaces the batch sizes by the number of GPUs; k25's batch stays, and a run resumes at "
     "any number of ranks"},
    {"elasticity",
     "max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time prefer_larger_batch "
     "prefer_large_batch version ignore_non_elastic_batch_info num_gpus_per_node "
     "model_parallel_size",
     kAny, kPart, "", "of elasticity"},
    // Other ways to train
    {"", "sparse_attention", kMap, kRefused, "", "k25's attention is dense"},
    {"sparse_attention",
     "mode block different_layout_per_head num_local_blocks num_global_blocks attention "
     "horizontal_global_attention num_different_global_patterns num_random_blocks "
     "local_window_blocks global_block_indices global_block_end_indices "
     "num_sliding_window_blocks",
     kAny, kPart, "", "of sparse attention"},
    {"curriculum_learning", "enabled", kBool, kSwitch, "",
     "k25 has no curriculum; data.mixture.weights mixes domains"},
    {"curriculum_learning", "curriculum_type min_difficulty max_difficulty schedule_type", kAny,
     kPart, "", kCurriculum},
    {"curriculum_learning.schedule_config", kPacing, kAny, kPart, "", kCurriculum},
    {"data_efficiency", "enabled", kBool, kSwitch, "",
     "k25 has no curriculum and drops no tokens; data.mixture.weights mixes domains"},
    {"data_efficiency", "seed", kInteger, kPart, "", kEfficiency},
    {"data_efficiency.data_routing", "enabled", kBool, kPart, "", kEfficiency},
    {"data_efficiency.data_routing.random_ltd",
     "enabled total_layer_num random_ltd_layer_num random_ltd_layer_id model_mask_name model_type "
     "hidden_state_order micro_batch_size global_batch_size",
     kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule",
     "min_value max_value schedule_type", kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config",
     "require_steps seq_per_step", kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_routing.random_ltd.layer_token_lr_schedule",
     "enabled total_layer_tokens warmup_type warmup_layer_tokens", kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_sampling", "enabled num_epochs num_workers pin_memory", kAny, kPart, "",
     kEfficiency},
    {"data_efficiency.data_sampling.dynamic_batching",
     "enabled metrics_path lr_scaling_method min_batch_size max_batch_size "
     "sequence_picking_order max_tokens verbose",
     kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_sampling.curriculum_learning", "enabled data_cluster_path", kAny, kPart,
     "", kEfficiency},
    {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*",
     "index_to_sample_path index_to_metric_path difficulty_type clustering_type min_difficulty "
     "max_difficulty schedule_type",
     kAny, kPart, "", kEfficiency},
    {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config",
     kPacing, kAny, kPart, "", kEfficiency},
    {"progressive_layer_drop", "enabled", kBool, kSwitch, "", "k25 trains every layer"},
    {"progressive_layer_drop", "theta gamma", kNumber, kPart, "", "of progressive layer drop"},
    {"eigenvalue", "enabled", kBool, kSwitch, "", "of quantized training, which k25 lacks"},
    {"eigenvalue", "verbose max_iter tol stability gas_boundary_resolution layer_name layer_num",
     kAny, kPart, "", "of quantized training"},
    {"quantize_training", "enabled", kBool, kSwitch, "", kNoCompression},
    {"quantize_training", "*", kAny, kPart, "", "of quantized training"},
    {"", "weight_quantization", kMap, kRefused, "", kNoCompression},
    {"compression_training.layer_reduction", "enabled", kBool, kSwitch, "", kNoCompression},
    {"compression_training.layer_reduction",
     "keep_number_layer module_name_prefix teacher_layer other_module_name", kAny, kPart, "",
     "of layer reduction"},
    {"compression_training.TECHNIQUE.shared_parameters", "enabled", kBool, kSwitch, "",
     kNoCompression},
    {"compression_training.TECHNIQUE.shared_parameters",
     "quantizer_kernel schedule_offset schedule_offset_end schedule_offset_stride quantize_groups "
     "quantize_verbose quantization_type rounding quantize_weight_in_forward "
     "range_calibration method block_pattern dense_ratio excluded_modules num_heads",
     kAny, kPart, "", "of compression"},
    {"compression_training.TECHNIQUE.shared_parameters.fp16_mixed_quantize",
     "enabled quantize_change_ratio", kAny, kPart, "", "of compression"},
    {"compression_training.TECHNIQUE.different_groups.*", "modules related_modules", kAny, kPart,
     "", "of compression"},
    {"compression_training.TECHNIQUE.different_groups.*.params",
     "start_bits target_bits quantization_period bits dense_ratio", kNumber, kPart, "",
     "of compression"},
    // Checkpoints
    {"checkpoint", "tag_validation", kText, kNoEffect, "",
     "rank 0 names a checkpoint, so all ranks write the same one"},
    {"checkpoint", "load_universal", kBool, kRefused, "false",
     "k25 reads its own checkpoints alone; they load at any number of ranks"},
    {"checkpoint", "use_node_local_storage", kBool, kRefused, "false",
     "all ranks of k25 write into one run directory, which they must share"},
    {"checkpoint.parallel_write", "pipeline_stage", kBool, kNoEffect, "",
     "each rank writes its own shard"},
    {"checkpoint", "checkpoint_serialization", kBool, kNoEffect, "", "k25 writes HDF5"},
    {"checkpoint.writer",
     "type io_buffer_size io_buffer_double io_multiplier show_statistics data_parallel decoupled",
     kAny, kNoEffect, "", "k25 writes behind the next steps (checkpoint.asynchronous)"},
    {"nebula",
     "enabled enable_nebula_load nebula_load_path persistent_storage_path "
     "persistent_time_interval num_of_version_in_retention",
     kAny, kNoEffect, "",
     "k25 writes into the run directory; see checkpoint.every and checkpoint.keep"},
    {"", "datastates_ckpt", kAny, kNoEffect, "",
     "k25 writes behind the next steps (checkpoint.asynchronous)"},
};

}  // namespace

std::span<const DsRow> deepspeed_feature_rows() { return kRows; }

}  // namespace k25::trainer
