// What a user writes: a Trial, and a main() that is run_trial<MyTrial>(argc, argv). See examples/fashion_mnist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/data/idx.h"
#include "dtrain/train/data_section.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/loss_scaling.h"
#include "dtrain/train/metrics.h"
#include "dtrain/train/optimizer.h"

namespace dtrain {

namespace run {
class RankSession;
}

struct LoaderSettings {
  bool shuffle = true;
  bool drop_last = true;  // false for validation: every sample exactly once over all ranks
  int prefetch = 2;       // batches kept ready in the background
};

// What a trial knows about its run, and where it hands over its model and optimizer. Used by the training thread alone.
class TrialContext {
 public:
  // `device`: what the rank trains on.
  explicit TrialContext(run::RankSession& session, at::Device device = at::kCPU);
  TrialContext(const TrialContext&) = delete;
  TrialContext& operator=(const TrialContext&) = delete;

  int rank() const;
  int world_size() const;
  std::int64_t batch_size() const;  // of this rank: global_batch_size / slots_per_trial
  at::Device device() const { return device_; }

  // A hyperparameter of the experiment; a missing or mistyped one is a ConfigError naming it.
  template <typename T>
  T hyperparameter(const std::string& name) const {
    return convert<T>(name, hyperparameter_json(name));
  }
  template <typename T>
  T hyperparameter(const std::string& name, T if_missing) const {
    return has_hyperparameter(name) ? hyperparameter<T>(name) : if_missing;
  }
  // The experiment's `data` section, free for the trial: data().value("samples", 1000).
  const DataSection& data() const { return data_; }
  // A path of the experiment file: relative ones are relative to that file.
  std::filesystem::path resolve(const std::string& path) const;

  // Hands over the model (exactly once): moved to device(), its parameters laid out flat, broadcast from rank 0.
  // Returns it for use in train_batch().
  template <typename M>
  std::shared_ptr<M> wrap_model(std::shared_ptr<M> model) {
    set_model(model);
    return model;
  }
  // The same for what TORCH_MODULE makes.
  template <typename M>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, M> M wrap_model(M model) {
    set_model(model.ptr());
    return model;
  }
  void wrap_optimizer(const Optimizer& optimizer);
  void wrap_lr_scheduler(LrSchedule schedule);
  // Scales the gradients down so that their L2 norm over all parameters is at most `max_norm`, before each optimizer
  // step.
  void clip_gradient_norm(double max_norm);
  // Other settings of the loss scale than the usual ones, for mixed_precision: fp16. Where a step computes in another
  // type they have no effect, which the log says.
  void scale_loss(const LossScaling& settings);

  // Use this in train_batch() instead of loss.backward(): full buckets are exchanged while it runs.
  void backward(const at::Tensor& loss);

  // Batches of this rank: a training loader shuffles by (seed, epoch).
  Loader loader(std::shared_ptr<const data::Dataset> dataset, const LoaderSettings& settings = {});
  // An IDX data set, in memory once per host. Collective, as everything made with host_share() is.
  std::shared_ptr<data::Dataset> read_idx(const std::string& images, const std::string& labels);
  // For other data sets of dtrain/data that are to lie in memory once per host.
  data::HostShare host_share();

  // For the training step.
  struct Wrapped {
    std::shared_ptr<torch::nn::Module> model;
    std::optional<Optimizer> optimizer;
    LrSchedule schedule;
    double max_gradient_norm = 0;  // 0: no clipping
    std::optional<LossScaling> loss_scaling;
    std::function<void(const at::Tensor&)> backward;
  };
  Wrapped& wrapped() { return wrapped_; }
  // After the first batch: warns of keys that the trial has not read by then. Once, on rank 0.
  void warn_of_unread_keys();
  run::RankSession& session() { return session_; }

 private:
  void set_model(std::shared_ptr<torch::nn::Module> model);
  bool has_hyperparameter(const std::string& name) const;
  const Json& hyperparameter_json(const std::string& name) const;
  template <typename T>
  static T convert(const std::string& name, const Json& value) {
    try {
      return value.get<T>();
    } catch (const Json::exception&) {
      throw ConfigError("hyperparameters." + name + " is " + value.dump() + ", which the trial cannot use",
                        "give it the type the trial asks for");
    }
  }

  run::RankSession& session_;
  at::Device device_;
  DataSection data_;
  mutable std::set<std::string> hyperparameters_asked_;
  bool unread_keys_told_ = false;
  Wrapped wrapped_;
  int shares_ = 0;  // names what is shared on the host
};

// What a trial keeps from batch to batch besides its model and what its loaders hold. A checkpoint has it for each
// rank.
struct TrialState {
  std::map<std::string, at::Tensor> tensors;  // on any device, of any of the types that safetensors have
  Json values = Json::object();
};

class Trial {
 public:
  virtual ~Trial() = default;
  virtual Loader training_loader() = 0;
  virtual Loader validation_loader() = 0;
  // Forward, loss, context.backward(loss). Gradients are exchanged and the optimizer steps after it returns.
  virtual Metrics train_batch(const Batch& batch) = 0;
  // Called before each batch is trained, on its device already: also where a CUDA graph repeats what train_batch() did
  // for another batch (docs/gpus.md). For what the host is to do once a batch; it must not wait for a GPU.
  virtual void before_batch(const Batch& batch) { static_cast<void>(batch); }
  // Why a CUDA graph could not repeat train_batch(), to be read after "because"; empty: it could. Asked once.
  virtual std::string why_not_repeatable() const { return ""; }
  // Called without gradients, the model in evaluation mode.
  virtual Metrics evaluate_batch(const Batch& batch) = 0;
  // Called on rank 0 once the final weights are in `folder`/model.safetensors: writes the model in further forms there,
  // and returns the files.
  virtual std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) {
    static_cast<void>(folder);
    return {};
  }
  // Called on every rank after a batch, when a checkpoint is taken, and after the first batch, so that memory for
  // checkpoints can be made before one is due: what load_state() needs to go on from here. Random
  // numbers of libtorch are no state: every batch seeds them anew.
  virtual TrialState save_state() { return {}; }
  // Called on every rank before the first batch of a run that goes on from a checkpoint, with what save_state() gave
  // (tensors on the CPU). Where the run has another number of ranks than then, every rank gets what rank 0 gave.
  virtual void load_state(const TrialState& state) { static_cast<void>(state); }
};

}  // namespace dtrain
