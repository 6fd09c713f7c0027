#include "loop/rank_training.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "device/training_device.h"
#include "dtrain/comm/fusion_tuner.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/run_memory.h"
#include "loop/logical_batches.h"
#include "model/model_report.h"
#include "model/tensor_memory.h"
#include "model/weights.h"
#include "numerics/matmul_path.h"
#include "numerics/own_operators.h"
#include "step/step_graph.h"
#include "step/training_step.h"

namespace dtrain::train {
namespace {

// Keeps freed pages: every step allocates and frees activations and gradients, and returning the pages to the kernel
// each time costs page faults (measured: large jitter of the step time). Large tensors have TensorMemory; the heap has
// small blocks. Large buffers of libraries have mappings of their own: on the heap they would fragment it.
void keep_freed_memory() {
  TensorMemory::install();
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
}

void set_threads(const rank::RankSession& session) {
  const comm::World& world = session.world();
  if (session.logical().virtuals) return at::set_num_threads(session.experiment().virtual_rank_threads);
  // Matrix products round differently with another number of threads, and a rank has fewer of them beside more ranks.
  if (!session.predictions().empty()) return at::set_num_threads(1);
  const auto threads =
      host::threads_to_set(at::get_num_threads(), rank::process_variables(), host::process_cores(), world.local_size);
  if (threads) at::set_num_threads(*threads);
}

void warn_of_gpu_keys(const rank::RankSession& session) {
  const config::Optimizations& o = session.experiment().optimizations;
  const config::Optimizations unless_set;
  const auto warn = [&](const char* key, const auto& value) {
    session.log()->warn("optimizations.{}: {} has no effect on CPUs", key, value);
  };
  if (session.world().rank != 0) return;
  if (o.tf32 != unless_set.tf32) warn("tf32", o.tf32);
  if (o.cudnn_benchmark != unless_set.cudnn_benchmark) warn("cudnn_benchmark", o.cudnn_benchmark);
  if (o.attention != unless_set.attention) warn("attention", config::word_of(config::kAttentions, o.attention));
  if (o.cuda_graphs == config::CudaGraphs::kOn) warn("cuda_graphs", true);
}

// The first operations are all compared: differences between ranks show there. No step is captured as a graph before.
constexpr std::uint64_t kComparedOperations = 32;

// Opens the device of this rank, and the communicator for the device if it is not the host.
c10::Device open_rank_device(rank::RankSession& session) {
  const c10::Device device = open_device(session.gpu());
  if (device.is_cpu()) {
    warn_of_gpu_keys(session);
    return device;
  }
  const config::Optimizations& wanted = session.experiment().optimizations;
  use_fast_paths(device, {wanted.tf32, wanted.cudnn_benchmark, wanted.attention});
  comm::NcclOptions options;
  options.device = device.index();
  options.current_stream = [device] { return native_handle(current_stream(device)); };
  // The link is measured before the first step: for gaps between gradients once, by the tuner twice if it remembers a
  // plan for another link.
  const std::uint64_t measured = wanted.auto_tune_tensor_fusion ? 2 : config::fusion_cycle_ms(wanted, true) > 0 ? 1 : 0;
  options.compared_operations = kComparedOperations + measured * comm::kMostLinkOperations;
  session.make_device_communicator(options);
  return device;
}

int fail(rank::RankSession& session) {
  const int gpu = session.gpu().value_or(0);
  const c10::Device device = session.gpu() ? c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)) : at::kCPU;
  try {
    throw;
  } catch (const c10::Error& error) {
    return session.fail(device_error(error, device));  // libtorch's own stack does not help the user
  } catch (const CommError& error) {
    if (has_failed(device)) return session.fail(failed_device(device, error.what()));
    return session.fail(error);
  } catch (const std::exception& error) {
    return session.fail(error);
  } catch (...) {
    return session.fail(Error("the trial threw an object that is not a std::exception"));
  }
}

// With a failed GPU nothing can be freed: libtorch's destructors would throw. The failure has been reported.
[[noreturn]] void end_process(rank::RankSession& session, int code) {
  session.log()->flush();
  ::_exit(code);
}

bool needs_whole_parameters(const TrialContext::Wrapped& wrapped) {
  return (wrapped.optimizer && updates_whole_parameters(*wrapped.optimizer)) ||
         std::any_of(wrapped.groups.begin(), wrapped.groups.end(),
                     [](const ParameterGroup& group) { return updates_whole_parameters(group.optimizer); });
}

bool goes_on_in_memory(const rank::RankSession& session) {
  const rank::RunMemory& memory = session.memory();
  return memory.begins_with || (!memory.folder.empty() && session.resume_from().parent_path() == memory.folder);
}

StepOptions step_options(const rank::RankSession& session, const TrialContext::Wrapped& wrapped) {
  const config::Experiment& experiment = session.experiment();
  const config::Optimizations& wanted = experiment.optimizations;
  StepOptions options;
  options.aggregation_frequency = wanted.aggregation_frequency;
  options.average_aggregated_gradients = wanted.average_aggregated_gradients;
  options.max_gradient_norm = wrapped.max_gradient_norm;
  options.max_gradient_value = wrapped.max_gradient_value;
  options.clips_groups = std::any_of(wrapped.groups.begin(), wrapped.groups.end(),
                                     [](const ParameterGroup& group) { return group.has_own_limit(); });
  options.ema = wanted.ema;
  const bool shard_gradients = wanted.sharded_gradients == config::ShardedGradients::kOn;
  options.strategy = {shard_gradients ? config::ShardedOptimizer::kOn : wanted.sharded_optimizer,
                      wanted.gradient_compression, experiment.experiment_seed, wanted.sharded_gradients};
  if (wrapped.own_update) {  // every rank reads the whole of its state
    options.strategy.sharded = config::ShardedOptimizer::kOff;
    options.strategy.gradients = config::ShardedGradients::kOff;
  }
  if (needs_whole_parameters(wrapped)) {
    if (options.strategy.sharded == config::ShardedOptimizer::kOn) {
      throw ConfigError(
          std::string(shard_gradients ? "optimizations.sharded_gradients" : "optimizations.sharded_optimizer") +
              " is true, and the optimizer (muon) updates whole parameters",
          "leave it at auto");
    }
    options.strategy.sharded = config::ShardedOptimizer::kOff;
    options.strategy.gradients = config::ShardedGradients::kOff;
  }
  options.local_sgd = wanted.local_sgd;
  options.stop_on_non_finite = experiment.stop_on_non_finite;
  options.precision = wanted.mixed_precision;
  if (wrapped.loss_scaling) options.loss_scaling = *wrapped.loss_scaling;
  if (wrapped.loss_scaling && wanted.mixed_precision != config::Precision::kFloat16 && session.world().rank == 0) {
    session.log()->info("context.scale_loss() has no effect: optimizations.mixed_precision is not fp16");
  }
  options.memory_format = wanted.memory_format;
  if (wrapped.keeps_memory_format && options.memory_format == config::MemoryFormat::kAuto)
    options.memory_format = config::MemoryFormat::kContiguous;
  options.ranks = session.logical();
  if (options.ranks.virtuals) options.strategy.gradients = config::ShardedGradients::kOff;
  // The order in memory may decide about the last bits, and what is faster depends on the number of ranks.
  if (options.ranks.virtuals && options.memory_format == config::MemoryFormat::kAuto)
    options.memory_format = config::MemoryFormat::kChannelsLast;
  options.values_follow = !session.resume_from().empty() && !session.evaluates() && !session.mock().any();
  options.same_program = options.values_follow && goes_on_in_memory(session);
  options.alone = session.mock().alone();
  // Gaps between gradients matter only where the exchange of gradients overlaps computation.
  const bool is_compressed = !std::holds_alternative<comm::NoCompression>(wanted.gradient_compression);
  const bool overlaps = !wanted.local_sgd && !options.alone && !(options.ranks.virtuals && is_compressed);
  options.fusion.threshold_bytes = wanted.tensor_fusion_threshold_bytes;
  options.fusion.cycle_ms = overlaps ? config::fusion_cycle_ms(wanted, /*on_gpus=*/session.gpu().has_value()) : 0;
  options.fusion.auto_tune = wanted.auto_tune_tensor_fusion && !options.alone;
  if (!wrapped.models.empty()) {
    // A step exchanges only a part of the gradients, from which the times of all gradients cannot be told.
    const auto refuse = [](const std::string& key) {
      throw ConfigError("optimizations." + key + " needs all gradients in every step, and the trial has several models",
                        "leave it out: tensor_fusion_threshold closes buckets");
    };
    if (wanted.auto_tune_tensor_fusion) refuse("auto_tune_tensor_fusion");
    if (wanted.tensor_fusion_cycle_ms.value_or(0) > 0) refuse("tensor_fusion_cycle_time");
    options.fusion.cycle_ms = 0;
  }
  options.fusion.cache_folder = session.cache_folder();
  options.fusion.batch_per_rank = session.batch_per_rank();
  options.fusion.precision = config::word_of(config::kPrecisions, options.precision);
  options.fusion.gpu = session.gpu_name();
  return options;
}

// To be called before libtorch first computes anything, also on ranks with GPUs: their work on the CPU then has the
// same bits as in a run on CPUs.
void choose_rank_matmul(rank::RankSession& session) {
  const MatmulChoice choice = choose_matmul(session.experiment().optimizations.matmul);
  if (!choice.warning.empty()) session.log()->warn("optimizations.matmul: auto has no effect: {}", choice.warning);
  session.log()->debug("float32 matrix products take the {} path: {}", profile::to_string(choice.path), choice.reason);
  if (session.world().rank == 0 && !session.gpu()) {
    session.update_plan("matmul", {{"path", profile::to_string(choice.path)}, {"reason", choice.reason}});
  }
}

// Gives all work of the training thread a stream of its own: the default stream cannot be captured as a graph.
void use_own_stream(c10::Device device, std::optional<c10::StreamGuard>& guard) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  guard.emplace(streams.getStreamFromGlobalPool(device));
}

// Returns null if steps are not to run as a CUDA graph.
std::unique_ptr<StepGraph> step_graph(rank::RankSession& session, const Trial& trial, TrainingStep& step,
                                      const torch::nn::Module& model, c10::Device device) {
  if (!wants_graphs(session)) return nullptr;
  const std::string why_not = step.capturable() ? trial.why_not_repeatable() : step.why_not_capturable();
  if (why_not.empty()) return std::make_unique<StepGraph>(session, step, model, device);
  const std::string text = "steps do not run as a CUDA graph because " + why_not;
  if (session.world().rank == 0) {
    const bool asked_for = session.experiment().optimizations.cuda_graphs == config::CudaGraphs::kOn;
    session.log()->log(asked_for ? spdlog::level::warn : spdlog::level::info, "{}", text);
    session.update_plan("cuda_graphs", {{"captured", false}, {"text", text}});
  }
  return nullptr;
}

std::filesystem::path told_by_rank_0(rank::RankSession& session, const std::filesystem::path& path) {
  constexpr const char* kKey = "train/begins-with";
  if (session.world().rank == 0) session.control().set(kKey, path.string());
  return session.control().get(kKey);
}

void write_facts(rank::RankSession& session, const TrialContext::Wrapped& wrapped, TrainingStep& step) {
  session.update_plan("model", describe_model(step.parameters()));
  Json optimizer = describe_optimizer(wrapped.optimizer, step.parameters());
  if (wrapped.own_update) optimizer = {{"kind", "of the trial"}, {"fused", false}};
  if (!wrapped.groups.empty()) optimizer["groups"] = describe_groups(wrapped.groups, step.optimizer());
  const config::Optimizations& wanted = session.experiment().optimizations;
  if (wanted.ema > 0) optimizer["ema"] = wanted.ema;
  session.update_plan("optimizer", optimizer);
  if (optimizer.contains("kernel_reason")) {
    session.log()->info("libtorch's kernel updates the parameters: {}", optimizer["kernel_reason"].get<std::string>());
  }
  session.update_plan("fusion", step.fusion().describe());
  if (const auto& file = wanted.grad_updates_size_file; !file.empty()) write_gradient_sizes(file, step.parameters());
}

void save_final(rank::RankSession& session, Trial& trial, const torch::nn::Module& model, TrainingStep& step) {
  if (session.mock().any()) return;
  const auto averages = step.weight_averages();
  if (session.world().rank != 0) return;
  const auto folder = session.run_dir() / "checkpoints" / "final";
  const auto written = [&](const std::filesystem::path& path) {
    session.write_event("weights_written", {{"path", path.string()}});
  };
  const auto save_as = [&](const char* name) {
    save_weights(model, folder / name);
    written(folder / name);
  };
  const auto values = step.values_in_model();
  if (!averages.empty()) save_as("model_without_ema.safetensors");
  const auto averaged =
      averages.empty() ? nullptr : step.values_in_model(averages, /*as_computed=*/false);  // as validation used them
  save_as("model.safetensors");
  for (const auto& path : trial.save_more(folder)) written(path);
}

}  // namespace

std::unique_ptr<rank::RankSession> start_session(int argc, char** argv, bool for_model, int& exit_code) {
  rank::RankOptions options = rank::parse_rank_arguments(argc, argv);
  options.for_model = for_model;
  options.versions = {{"libtorch", TORCH_VERSION}};
  try {
    return rank::RankSession::start(options);
  } catch (const std::exception& error) {
    exit_code = rank::exit_code_of(error);
    return nullptr;
  }
}

void use_fast_operators(rank::RankSession& session) {
  keep_freed_memory();
  choose_rank_matmul(session);
  set_threads(session);
  if (session.experiment().optimizations.operators == config::Operators::kAuto) use_own_operators();
}

bool RankTraining::open(int argc, char** argv, bool for_model) {
  keep_freed_memory();
  session_ = start_session(argc, argv, for_model, exit_code_);
  if (!session_) return false;
  try {
    open_device();
  } catch (...) {
    fail();
    return false;
  }
  return true;
}

void RankTraining::open_device() {
  const config::Experiment& experiment = session_->experiment();
  if (!experiment.model && !experiment.optimizations.gradient_checkpointing.empty()) {
    throw ConfigError("optimizations.gradient_checkpointing is for the models of a `model:` experiment",
                      "in a program call dtrain::checkpoint() around a part of the model (docs/api.md)");
  }
  choose_rank_matmul(*session_);
  set_threads(*session_);
  const c10::Device device = open_rank_device(*session_);  // before any call of libtorch that asks for CUDA
  if (experiment.optimizations.operators == config::Operators::kAuto) use_own_operators();
  use_own_stream(device, stream_);
  torch::manual_seed(experiment.experiment_seed);
  context_ = std::make_unique<TrialContext>(*session_, device);
}

void RankTraining::prepare(std::unique_ptr<Trial> trial) {
  trial_ = std::move(trial);
  rank::RankSession& session = *session_;
  const config::Experiment& experiment = session.experiment();
  const auto& model = context_->wrapped().model;
  const bool begins_anew = session.resume_from().empty();
  if (session.logical().virtuals) refuse_beside_virtual_ranks(session, *context_);
  std::filesystem::path begins_with;  // the checkpoint whose training state is wanted
  if (model && !experiment.initial_weights.file.empty() && begins_anew && session.world().rank == 0) {
    // The training step broadcasts the weights to the other ranks.
    const LoadedWeights loaded = load_weights(*model, experiment.initial_weights);
    session.log()->info("starting from the weights in {}", loaded.from);
    for (const std::string& warning : loaded.warnings) session.log()->warn("{}", warning);
    begins_with = loaded.checkpoint;
  }
  step_ = std::make_unique<TrainingStep>(context_->wrapped(), services_of(session),
                                         step_options(session, context_->wrapped()));
  begins_with = experiment.initial_weights.training_state && begins_anew && !session.mock().any()
                    ? told_by_rank_0(session, begins_with)
                    : std::filesystem::path();
  malloc_trim(0);  // the model's own copy of the parameters is free: they are laid out flat elsewhere now
  if (session.world().rank == 0) write_facts(session, context_->wrapped(), *step_);
  context_->wrapped().visit_state = [step = step_.get()](StateVisitor& visitor) { step->visit(visitor); };
  loop_ = std::make_unique<TrainingLoop>(
      *trial_, *context_, session, *step_, step_graph(session, *trial_, *step_, *model, context_->device()),
      [this] { save_final(*session_, *trial_, *context_->wrapped().model, *step_); }, begins_with);
}

int RankTraining::finish(TrainingLoop::Outcome outcome) {
  const TrainingLoop::End end = loop_->end(outcome);
  if (session_->world().rank == 0) session_->update_plan("fusion", step_->fusion().describe());
  close();
  exit_code_ = session_->finish(end.stopped, end.saved);
  session_.reset();
  return exit_code_;
}

void RankTraining::save_as_survivor() {
  try {
    throw;
  } catch (const CommError&) {
    try {
      if (loop_) loop_->save_as_survivor();
    } catch (const std::exception& error) {
      session_->log()->warn("the state of the last batch could not be saved in memory: {}", describe(error));
    }
  } catch (...) {  // this rank's own failure
  }
}

// Reports before the step is destroyed, because its operations may be under way until the failure ends them.
int RankTraining::fail() {
  save_as_survivor();
  exit_code_ = train::fail(*session_);
  const c10::Device device = context_ ? context_->device() : c10::Device(at::kCPU);
  if (has_failed(device)) end_process(*session_, exit_code_);
  if (session_->is_replaced()) {
    abandon();
    return exit_code_;
  }
  close();
  session_.reset();
  return exit_code_;
}

void RankTraining::abandon() {
  session_->log()->flush();
  static_cast<void>(loop_.release());
  static_cast<void>(step_.release());
  static_cast<void>(trial_.release());
  static_cast<void>(context_.release());
  static_cast<void>(session_.release());
  abandoned_ = true;
}

void RankTraining::close() {
  loop_.reset();
  step_.reset();
  trial_.reset();
  context_.reset();
  stream_.reset();
}

int run_training(RankTraining& training, int argc, char** argv, const TrialFactory& make_trial, bool for_model) {
  if (!training.open(argc, argv, for_model)) return training.exit_code();
  try {
    training.prepare(make_trial(training.context()));
    TrainingLoop& loop = training.loop();
    auto outcome = loop.begin();
    while (outcome == TrainingLoop::Outcome::kGoOn) outcome = loop.run_round();
    return training.finish(outcome);
  } catch (...) {
    return training.fail();
  }
}

}  // namespace dtrain::train

namespace dtrain {

int run_trial(int argc, char** argv, const TrialFactory& make_trial, bool for_model) {
  train::RankTraining training;
  const int code = train::run_training(training, argc, argv, make_trial, for_model);
  if (!training.is_abandoned()) return code;
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace dtrain
