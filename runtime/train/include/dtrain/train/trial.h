// A user writes a Trial, and a main() that calls run_trial<MyTrial>(argc, argv). See examples/fashion_mnist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/config/plateau.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/profile/scope.h"
#include "dtrain/train/callback.h"
#include "dtrain/train/data_section.h"
#include "dtrain/train/gathered_metric.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/loss_scaling.h"
#include "dtrain/train/metrics.h"
#include "dtrain/train/optimizer.h"
#include "dtrain/train/summed_metric.h"
#include "dtrain/train/trial_state.h"

namespace dtrain {

using Scope = profile::Scope;
using EarlyStopping = config::EarlyStopping;
using ReduceOnPlateau = config::ReduceOnPlateau;

namespace rank {
class RankSession;
}
namespace train {
class OptimizerUpdate;
class StateVisitor;
}  // namespace train

// A metric of all samples at once.
using AddedMetric = std::variant<std::shared_ptr<GatheredMetric>, std::shared_ptr<SummedMetric>>;

// The way in which a loader reads. However many workers there are, the batches are the same.
struct LoaderSettings {
  static constexpr int kAuto = data::LoaderOptions::kAuto;

  // Threads of this rank that read. kAuto: as many as the training needs and its cores allow. 0: the training thread
  // reads when it needs a batch.
  int workers = kAuto;
  int prefetch = 2;  // batches read ahead; 0: workers read a batch when the training asks for it
  bool pin = true;   // on GPUs: batches in page-locked memory, which is copied while the GPU computes
  bool shuffle = true;
  bool drop_last = true;  // false for validation: every sample exactly once over all ranks
  // A damaged sample (DataError) is replaced by the one that follows it in the data set; more than max_skipped of them
  // in one epoch of a rank are an error.
  bool skip_damaged = false;
  std::int64_t max_skipped = 100;
  // For a data set that is read from disk: the bytes that are shuffled together.
  std::int64_t shuffle_window = std::int64_t{512} << 20;
};

// Options of context.backward(), if the loss alone does not say how to compute gradients.
struct BackwardOptions {
  // The number of items of which `loss` is the mean, if batches count differently: see backward(loss, weight).
  std::optional<double> weight{};
  // With several models: those whose parameters get a gradient, and which the next step updates. Empty: all of them.
  std::vector<std::string> models{};
  // Another backward() before the next step adds to the gradients of the same parameters. All but the last of several
  // losses need it; buckets are exchanged while the last one runs.
  bool more_follows = false;
  // Keeps the graph for another backward() through the same part of it.
  bool retain_graph = false;
};

// Gives a trial facts about its run, and takes its model and optimizer. Only the training thread uses it.
class TrialContext {
 public:
  // `device`: where the rank trains.
  explicit TrialContext(rank::RankSession& session, at::Device device = at::kCPU);
  TrialContext& operator=(TrialContext&&) = delete;

  // With reproducibility.virtual_ranks they are those of the logical rank for which the trial computes now.
  int rank() const;
  int world_size() const;
  std::int64_t batch_size() const;  // of this rank: global_batch_size / slots_per_trial
  at::Device device() const { return device_; }

  // A hyperparameter of the experiment. ConfigError names it if it is missing or has another type.
  template <typename T>
  T hyperparameter(const std::string& name) const {
    return convert<T>(name, hyperparameter_json(name));
  }
  template <typename T>
  T hyperparameter(const std::string& name, T if_missing) const {
    return has_hyperparameter(name) ? hyperparameter<T>(name) : if_missing;
  }
  // The experiment's `data` section. The trial defines its keys: data().value("samples", 1000).
  const DataSection& data() const { return data_; }
  // Resolves a path of the experiment file: a relative path begins in that file's folder.
  std::filesystem::path resolve(const std::string& path) const;

  // Takes the model, moves it to device(), and returns it for use in train_batch(). After the trial's constructor its
  // parameters move into flat memory and get the values of rank 0. To be called exactly once, in the constructor;
  // ConfigError for a null model or a second call.
  template <typename M>
  std::shared_ptr<M> wrap_model(std::shared_ptr<M> model) {
    set_model(model);
    return model;
  }
  // The same for a module that TORCH_MODULE makes.
  template <typename M>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, M> M wrap_model(M model) {
    set_model(model.ptr());
    return model;
  }
  // Takes one of several models by a name, in the constructor. Names of its parameters begin with it, in files and in
  // groups: "generator.layers.0.weight". A parameter that two models share belongs to the one that was wrapped first.
  // ConfigError for a null model, for a name that is empty, has a dot or was used before, and beside wrap_model(model).
  template <typename M>
  std::shared_ptr<M> wrap_model(const std::string& name, std::shared_ptr<M> model) {
    add_model(name, model);
    return model;
  }
  template <typename M>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, M> M wrap_model(const std::string& name, M model) {
    add_model(name, model.ptr());
    return model;
  }
  // To be called exactly once, in the constructor (ConfigError). `groups`: parameters with settings or a schedule of
  // their own.
  void wrap_optimizer(const Optimizer& optimizer, std::vector<ParameterGroup> groups = {});
  // The same for one of several models, which must be wrapped before. The optimizers may be of different kinds. Models
  // without an optimizer of their own have that of wrap_optimizer(optimizer).
  void wrap_optimizer(const std::string& model, const Optimizer& optimizer, std::vector<ParameterGroup> groups = {});
  // The schedule of the parameters that have none of their own. Without it the learning rate is constant.
  void wrap_lr_scheduler(LrSchedule schedule);
  // The same for one of several models, which must have an optimizer of its own.
  void wrap_lr_scheduler(const std::string& model, LrSchedule schedule);
  // Lowers all learning rates, beside their schedules, when searcher.metric no longer improves. In the trial's
  // constructor. The experiment must have searcher.metric and min_validation_period (ConfigError).
  void reduce_lr_on_plateau(const ReduceOnPlateau& settings) { wrapped_.plateau = settings; }
  // Scales the gradients down so that their L2 norm over all parameters is at most `max_norm`, before each optimizer
  // step. ConfigError unless `max_norm` is above 0.
  void clip_gradient_norm(double max_norm);
  // Limits each element of the gradients to [-max_value, max_value] before each optimizer step. ConfigError unless
  // `max_value` is above 0, or if clip_gradient_norm() is used, too.
  void clip_gradient_value(double max_value);
  // Settings of the loss scale that differ from the defaults, for mixed_precision: fp16. In other types they have no
  // effect, and the log says so.
  void scale_loss(const LossScaling& settings);

  // Use this in train_batch() instead of loss.backward(): full buckets are exchanged while it runs. Error outside
  // train_batch().
  void backward(const at::Tensor& loss);
  // The same for batches that count differently: `loss` is the mean over `weight` items, such as the tokens of this
  // batch without padding. An optimizer step then applies the gradient of the mean over all items of all ranks and of
  // all batches since the last step. So it does not depend on how items are divided. Between two steps, all batches of
  // all ranks must be weighted, or none. With weight 0 a batch contributes nothing, whatever its loss. Error if the
  // weight is negative or not finite, if two losses of one batch have different weights, or with gradient_compression.
  void backward(const at::Tensor& loss, double weight);
  // The same with further options. Error for a model that was not wrapped.
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  // With several models, in train_batch(): exchanges gradients and takes an optimizer step of the models for which
  // backward() has been called since their last step. What follows in train_batch() computes with the new parameters.
  // Models whose step is left when train_batch() returns step then. Every rank must make the same calls in each batch.
  // A schedule counts batches with an optimizer step, not the steps within a batch. Error with aggregation_frequency
  // above 1, and without a backward() before it.
  void step();

  // Adds a value to the metrics of the batch under way: in train_batch(), before_batch() and the same functions of
  // callbacks to those of training, in evaluate_batch() to those of the validation. Unlike the metrics that these
  // functions return, a name may be logged in only some of a rank's batches; kMean is then the mean over these batches.
  // A second call with the same name in a batch replaces the value. Error outside a batch, or for a name that
  // the trial also returns.
  void log(const std::string& name, const MetricValue& value);
  // Adds a picture to TensorBoard's events of the batch under way, or of the last one that was trained (docs/api.md).
  // Only rank 0's picture is written; the other ranks check theirs. Shapes: [height, width], [channels, height, width],
  // or [pictures, channels, height, width], which are shown beside each other; 1 channel (grey), 3 (colours) or 4 (with
  // opacity). Types: uint8 from 0 to 255; floating values from 0 (black) to 1, those beyond are cut off, nan is black.
  // The call copies the tensor, for which it waits on a GPU; a thread of low priority writes it. Error for other shapes
  // and types, and in a step that is recorded as a CUDA graph. May be called from the constructor on.
  void log_image(const std::string& name, const at::Tensor& image);
  // The same with a histogram of a tensor's elements, of any shape and real type. Values that are not finite are left
  // out.
  void log_histogram(const std::string& name, const at::Tensor& values);

  // Times a part of the trial's own code, from this call to the end of the block that holds the result. Its time shows
  // under this name beside the phases in dumps, summaries, reports and traces. Scopes may be nested: the time of an
  // outer one includes those within it. They count in the batch under way, so also in before_batch(), in
  // evaluate_batch() and in callbacks; outside of batches they have no time. On a GPU it is the host's time, and a step
  // that is a CUDA graph does not repeat it. Error if the name has other characters than letters, digits, '_', '-' and
  // '.', or if the program has more than 64 scopes: names must not contain numbers of batches and the like.
  Scope scope(std::string_view name);

  // Collective operations on tensors of the trial, on device() or on the CPU: every rank must make the same calls, with
  // the same types and shapes, in the same order; otherwise all ranks get an error that names both operations. They
  // wait for the result, which is a new tensor without a gradient and the same on all ranks, bit by bit. Types: uint8,
  // int32, int64, float16, bfloat16, float32, float64; kMean needs a floating type. They may be called wherever all
  // ranks are: in the constructor and in callbacks. In before_batch() and after_batch() of callbacks, and in
  // train_batch() before backward(), all ranks must have the same number of batches for it. Error from backward() to
  // the end of the batch, when gradients are being exchanged, and in a step that is recorded as a CUDA graph.
  at::Tensor all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  // Gathers the tensors of all ranks, in rank order.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  // Returns rank `root`'s values; the other ranks give a tensor of the same type and shape.
  at::Tensor broadcast(const at::Tensor& tensor, int root = 0);

  // Calls the callback's functions during training. In the trial's constructor; the same ones on every rank.
  void add_callback(std::shared_ptr<Callback> callback);
  // Adds a metric to each validation, under this name. In the trial's constructor; the same ones on every rank.
  void add_metric(const std::string& name, std::shared_ptr<GatheredMetric> metric);
  void add_metric(const std::string& name, std::shared_ptr<SummedMetric> metric);
  // Ends the training early when a validation metric no longer improves. ConfigError if the experiment has
  // `early_stopping`, too.
  void stop_early(const EarlyStopping& settings);
  // Asks for a checkpoint, besides those that the experiment asks for. It is taken after one of the next batches, the
  // same on all ranks: as soon as the saver has written the one before. One rank's call is enough. A mock run takes
  // none. Training thread.
  void save_checkpoint();

  // Makes the loader of this rank's batches. A training loader shuffles by (seed, epoch).
  Loader loader(std::shared_ptr<const data::Dataset> dataset, const LoaderSettings& settings = {});
  // Reads an IDX data set into memory, once per host. Collective, like everything that uses host_share().
  std::shared_ptr<data::Dataset> read_idx(const std::string& images, const std::string& labels);
  // For other data sets of dtrain/data that should be in memory once per host.
  data::HostShare host_share();

  // The model, optimizer and settings that the trial has passed, for the training step.
  struct Wrapped {
    std::shared_ptr<torch::nn::Module> model;  // with several models, their parent
    std::vector<std::string> models;           // names of several models; empty: there is one, without a name
    std::optional<Optimizer> optimizer;
    // Makes the update of all parameters in the place of `optimizer`'s, for updates that are not sharded; empty: it is
    // `optimizer`'s.
    std::function<std::unique_ptr<train::OptimizerUpdate>()> own_update;
    bool has_common_optimizer = false;  // `optimizer` is for all models without one of their own
    bool keeps_memory_format = false;   // optimizations.memory_format: auto leaves the model's convolutions as they are
    std::vector<ParameterGroup> groups;
    struct GroupsOfModel {
      std::size_t first = 0, end = 0;  // range of indices in `groups`
    };
    std::map<std::string, GroupsOfModel> groups_of_models;
    LrSchedule schedule;
    std::optional<ReduceOnPlateau> plateau;
    double max_gradient_norm = 0;   // 0: no clipping
    double max_gradient_value = 0;  // 0: no clipping
    std::optional<LossScaling> loss_scaling;
    std::function<void(const at::Tensor&, const BackwardOptions&)> backward;
    std::function<void()> step;
    // Visits the state of the training step, between two batches. Set while training runs. Collective.
    std::function<void(train::StateVisitor&)> visit_state;
  };
  Wrapped& wrapped() { return wrapped_; }
  // The trial's settings and state for the training loop.
  struct AroundTheLoop {
    std::vector<std::shared_ptr<Callback>> callbacks;
    std::size_t own_callbacks = 0;  // of these, parts of how dtrain runs a trial
    std::map<std::string, AddedMetric> metrics;
    std::optional<EarlyStopping> early_stopping;
    std::optional<Metrics> logged;            // of the batch under way; empty: log() is refused
    std::string why_no_collective;            // as the continuation of "because"; empty: collectives are allowed
    std::int64_t batch = 0;                   // the last batch that has begun
    bool wants_checkpoint = false;            // save_checkpoint() was called, and no checkpoint has been taken since
    std::int64_t logged_for_tensorboard = 0;  // pictures and histograms so far
    std::int64_t added_samples = 0;           // of the batch under way, after its first ones (a script's no_sync())
  };
  AroundTheLoop& around_the_loop() { return around_; }
  // Called after the first batch: warns of keys that the trial has not read by then. Once, on rank 0.
  void warn_of_unread_keys();
  rank::RankSession& session() { return session_; }

 private:
  void set_model(std::shared_ptr<torch::nn::Module> model);
  void add_model(const std::string& name, std::shared_ptr<torch::nn::Module> model);
  template <typename Metric>
  void insert_metric(const std::string& name, std::shared_ptr<Metric> metric);
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

  rank::RankSession& session_;
  at::Device device_;
  DataSection data_;
  mutable std::set<std::string> hyperparameters_asked_;
  bool unread_keys_told_ = false;
  Wrapped wrapped_;
  AroundTheLoop around_;
  int shares_ = 0;  // numbers the memory that is shared on the host
};

class Trial {
 public:
  virtual ~Trial() = default;
  // Called once. ConfigError if it returns null.
  virtual Loader training_loader() = 0;
  // Called once. Null: nothing is validated.
  virtual Loader validation_loader() = 0;
  // Trains: forward, loss, context.backward(loss). Afterwards gradients are exchanged and the optimizer steps.
  virtual Metrics train_batch(const Batch& batch) = 0;
  // For work of the host that is done once per batch. Called before each batch is trained, even if a CUDA graph replays
  // an earlier train_batch() (docs/gpus.md). The batch is already on the device. It must not wait for a GPU.
  virtual void before_batch(const Batch& batch) { static_cast<void>(batch); }
  // Returns why a CUDA graph cannot repeat train_batch(), as the continuation of "because"; empty: it can. Called once.
  virtual std::string why_not_repeatable() const { return ""; }
  // Evaluates a batch of validation. Called with gradients off and the model in evaluation mode.
  virtual Metrics evaluate_batch(const Batch& batch) = 0;
  // Returns the model's outputs for a batch of validation, for `dtrain predict`: a tensor whose first dimension counts
  // the samples. Called as evaluate_batch() is. Without an override `dtrain predict` is refused.
  virtual at::Tensor predict_batch(const Batch& batch);
  // Called on rank 0 once the final weights are in `folder`/model.safetensors. Writes the model in further forms there,
  // and returns the files.
  virtual std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) {
    static_cast<void>(folder);
    return {};
  }
  // Returns the state from which load_state() goes on. Called on every rank after a batch, when a checkpoint is taken;
  // also after the first batch, so that memory for checkpoints can be allocated before one is due. Random numbers of
  // libtorch are no state, because every batch seeds them anew.
  virtual TrialState save_state() { return {}; }
  // Returns the owner of that state, in checkpoints and messages. A new run that begins with a checkpoint of another
  // owner (`initial_weights.training_state`) does not get the state.
  virtual std::string state_owner() const;
  // Called on every rank before the first batch of a run that goes on from a checkpoint, with the result of
  // save_state() (tensors on the CPU). If the number of ranks has changed since, every rank gets the state of rank 0.
  virtual void load_state(const TrialState& state) { static_cast<void>(state); }
};

}  // namespace dtrain
