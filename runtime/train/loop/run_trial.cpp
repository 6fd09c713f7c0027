#include "dtrain/train/run_trial.h"

#include <malloc.h>

#include <algorithm>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "dtrain/config/experiment.h"
#include "dtrain/host/cpu.h"
#include "dtrain/run/rank_session.h"
#include "loop/training_loop.h"
#include "model/model_report.h"
#include "model/weights.h"
#include "step/engine.h"

namespace dtrain {

namespace {

// Activations and gradients come and go every step; giving their pages back to the kernel each time costs page faults
// (measured: large jitter of the step time).
void keep_freed_memory() {
  constexpr int kLimit = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLimit);
  mallopt(M_TRIM_THRESHOLD, kLimit);
  mallopt(M_TOP_PAD, 256 << 20);
}

// Several ranks on one host share its cores. Where the launcher or the user chose a number of threads, or the ranks are
// bound to cores of their own, libtorch's default is right already.
void share_cores(const comm::World& world) {
  const int cpus = static_cast<int>(host::allowed_cpus().size());
  if (world.local_size > 1 && cpus >= world.local_size && at::get_num_threads() == cpus) {
    at::set_num_threads(std::max(1, cpus / world.local_size));
  }
}

// Of the exception that is being handled.
int fail(run::RankSession& session) {
  try {
    throw;
  } catch (const c10::Error& error) {
    return session.fail(Error(error.what_without_backtrace()));  // libtorch's own stack says nothing to the user
  } catch (const std::exception& error) {
    return session.fail(error);
  } catch (...) {
    return session.fail(Error("the trial threw something that is no std::exception"));
  }
}

// True when it stopped early.
bool train_and_save(run::RankSession& session, const TrialFactory& make_trial) {
  const config::Experiment& experiment = session.experiment();
  share_cores(session.world());
  torch::manual_seed(experiment.experiment_seed);
  TrialContext context(session);
  const std::unique_ptr<Trial> trial = make_trial(context);
  const auto& model = context.wrapped().model;
  if (model && !experiment.initial_weights.empty() && session.world().rank == 0) {
    train::load_weights(*model, experiment.initial_weights);  // the engine hands them to the other ranks
    session.log()->info("starting from the weights in {}", experiment.initial_weights.string());
  }
  train::EngineOptions options;
  options.aggregation_frequency = experiment.optimizations.aggregation_frequency;
  options.average_aggregated_gradients = experiment.optimizations.average_aggregated_gradients;
  const auto& wanted = experiment.optimizations;
  // Where nothing is exchanged while ranks compute, there is nothing that could wait for anything.
  const run::Mock& mock = session.mock();
  options.alone = mock.apart();
  const bool overlaps = !wanted.local_sgd && !options.alone;
  options.fusion = {wanted.tensor_fusion_threshold_bytes, overlaps ? wanted.tensor_fusion_cycle_ms : 0,
                    wanted.auto_tune_tensor_fusion && !options.alone};
  options.max_gradient_norm = context.wrapped().max_gradient_norm;
  options.compression = experiment.optimizations.gradient_compression;
  options.local_sgd = experiment.optimizations.local_sgd;
  options.seed = experiment.experiment_seed;
  options.sharded = experiment.optimizations.sharded_optimizer;
  options.stop_on_non_finite = experiment.stop_on_non_finite;
  train::Engine engine(context, session, options);
  malloc_trim(0);  // the parameters as the model allocated them are laid out flat elsewhere now
  if (session.world().rank == 0) {
    session.update_plan("model", train::describe_model(engine.parameters()));
    session.update_plan("optimizer", train::describe_optimizer(context.wrapped().optimizer));
    session.update_plan("fusion", engine.fusion().describe());
    if (!wanted.grad_updates_size_file.empty()) {
      train::write_gradient_sizes(wanted.grad_updates_size_file, engine.parameters());
    }
  }

  const auto save = [&] {
    if (session.world().rank != 0 || mock.any()) return;
    const auto folder = session.run_dir() / "checkpoints" / "final";
    const auto written = [&](const std::filesystem::path& path) {
      session.write_event("weights_written", {{"path", path.string()}});
    };
    train::save_weights(*model, folder / "model.safetensors");
    written(folder / "model.safetensors");
    for (const auto& path : trial->save_more(folder)) written(path);
  };
  train::TrainingLoop loop(*trial, context, session, engine, save);
  session.recorder().mark(profile::RunMark::kInitializationEnd);
  bool stopped = false;
  try {
    stopped = loop.run();
  } catch (...) {
    fail(session);  // while the engine is there: what it has handed over may be under way until this ends it
    throw;
  }
  if (session.world().rank == 0) session.update_plan("fusion", engine.fusion().describe());
  return stopped;
}

}  // namespace

int run_trial(int argc, char** argv, const TrialFactory& make_trial, bool for_model) {
  run::RankOptions options = run::parse_rank_arguments(argc, argv);
  options.for_model = for_model;
  options.versions = {{"libtorch", TORCH_VERSION}};
  keep_freed_memory();
  std::unique_ptr<run::RankSession> session;
  try {
    session = run::RankSession::start(options);
  } catch (const std::exception& error) {
    return run::exit_code_of(error);
  }
  try {
    return session->finish(train_and_save(*session, make_trial));
  } catch (...) {
    return fail(*session);
  }
}

}  // namespace dtrain
