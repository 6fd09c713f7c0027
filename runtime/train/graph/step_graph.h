// A rank's steps as one CUDA graph: after some steps, one is captured, from the trial's forward pass to the update, and
// from then on each step is one launch of what was captured. The host then has next to nothing to do for a step, which
// matters where a step's kernels are short.
//
// A graph repeats what the host did in the step that was captured. What differs from step to step lies in tensors that
// keep their place: the batch, the learning rate, the optimizer's counts, and libtorch's seed. All ranks capture and
// launch in the same rounds, for NCCL runs an operation as part of a graph on all ranks or on none: each announces
// whether it could (fits()), and where one cannot, all take the step as before. A capture that fails on one rank is
// given up on all of them, and the rest of the run has no graphs. So that the others do not wait in NCCL for the one,
// several ranks rehearse the capture first, without NCCL.
//
// Training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/comm/nccl.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"
#include "graph/device_graph.h"
#include "step/training_step.h"

namespace dtrain::train {

class StepGraph {
 public:
  // `model`: the trial's. All outlive it; step.capturable() is not null.
  StepGraph(run::RankSession& session, TrainingStep& step, const torch::nn::Module& model, c10::Device device);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Whether this rank can take the next step, with this batch, as a graph: steps are settled, and the batch is shaped
  // as the one before, or as the one that was captured. Each round once.
  bool fits(const Batch& batch);

  // Takes the step with a batch on the device, which fits on all ranks. `train` is what the step calls for a batch:
  // forward, backward, metrics. `before_launch` comes before what a launch runs. Returns the metrics, or nothing: the
  // capture has failed on some rank, nothing has happened, and the step is to be taken without a graph. Collective.
  using Train = std::function<Metrics(const Batch&)>;
  std::optional<Metrics> step(const Batch& batch, const Train& train, const std::function<void()>& before_launch);

 private:
  struct Shape {
    std::vector<std::vector<std::int64_t>> sizes;
    std::vector<at::ScalarType> types;
    std::int64_t samples = 0;
    bool operator==(const Shape&) const = default;
  };
  static Shape shape_of(const Batch& batch);

  struct HostState {
    std::vector<at::Tensor> buffers;
    at::Tensor random;  // of the generator of the CPU
  };

  bool capture(const Train& train);
  enum class For { kReplays, kRehearsal };
  // Every rank's failure in words (agree()).
  std::string record_on_all(const Train& train, const HostState& before, For what);
  void record(const Train& train, const HostState& before, For what);
  // Nothing has been recorded.
  void abandon(const HostState& before);
  void make_places(const Batch& batch);
  void fill_places(const Batch& batch);
  void refuse_what_a_graph_would_freeze(const HostState& before) const;
  // The model's buffers as they are: the same memory, in tensors of their own.
  std::vector<at::Tensor> buffers() const;
  bool replaces_buffers(const HostState& before) const;
  void put_buffers_back(const HostState& before);
  // Every rank's `failure` (empty: none) in words, for all of them; empty: no rank has failed.
  std::string agree(const std::string& failure);
  void write(bool captured, std::int64_t batch, const std::string& text);
  void forget();
  void drop_graph();

  run::RankSession& session_;
  TrainingStep& step_;
  CapturableStep& capturable_;
  const torch::nn::Module& model_;
  const c10::Device device_;
  comm::NcclCommunicator& communicator_;
  bool given_up_ = false;
  std::optional<std::int64_t> first_batch_;  // that ran as a graph
  int captures_ = 0;
  std::int64_t ready_ = 0;  // rounds in a row in which this rank was settled
  Shape last_shape_;
  Shape captured_shape_;
  Batch places_;  // from which the graph reads its batch
  at::Tensor rates_;
  std::vector<float> rates_on_device_;  // what rates_ holds, once what was handed over has run; empty: not known
  std::int64_t optimizer_moves_ = 0;    // at the capture
  Metrics metrics_;                     // what the graph writes
  std::unique_ptr<DeviceGraph> graph_;
};

// Whether a run's steps are to be captured: where it was asked for, and by default where the trial is dtrain's own,
// which does nothing on the host that differs from step to step.
bool wants_graphs(const run::RankSession& session);

}  // namespace dtrain::train
