// Runs a rank's steps as one CUDA graph: after some steps, one step is captured, from the trial's forward pass to the
// update, and each later step is one launch of the graph. The host then has little work per step, which matters if a
// step's kernels are short.
//
// A graph repeats the host's work of the captured step. Values that differ from step to step are in tensors with fixed
// addresses: the batch, the learning rate, the optimizer's counts, and libtorch's seed. All ranks capture and launch in
// the same rounds, for NCCL runs an operation as part of a graph on all ranks or on none. Each rank announces whether
// it can (fits()); if one cannot, all take the step without a graph. If a capture fails on one rank, all ranks give up,
// and the rest of the run has no graphs. Several ranks first rehearse the capture without NCCL, so that no rank waits
// in NCCL for one that failed.
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

#include "device/device_graph.h"
#include "dtrain/comm/nccl.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"
#include "step/training_step.h"

namespace dtrain::train {

class StepGraph {
 public:
  // `model`: the trial's. The references outlive the object; step.capturable() is not null.
  StepGraph(rank::RankSession& session, TrainingStep& step, const torch::nn::Module& model, c10::Device device);
  ~StepGraph();
  StepGraph& operator=(StepGraph&&) = delete;

  // True if this rank can take the next step, with this batch, as a graph: comparisons have ended, and the batch has
  // the shape of the last batch, or of the captured one. Called once per round.
  bool fits(const Batch& batch);

  // Takes the step with a batch on the device, which fits on all ranks. `train`: forward, backward and metrics of a
  // batch. `before_launch` is called before the launch. Returns the metrics; empty: the capture has failed on some
  // rank, nothing has happened, and the caller takes the step without a graph. Collective.
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
    at::Tensor random;  // state of the CPU's generator
  };

  bool capture(const Train& train);
  enum class For { kReplays, kRehearsal };
  // Returns every rank's failure in words (agree()).
  std::string record_on_all(const Train& train, const HostState& before, For what);
  void record(const Train& train, const HostState& before, For what);
  // Discards the recording.
  void abandon(const HostState& before);
  void make_places(const Batch& batch);
  void fill_places(const Batch& batch);
  void refuse_what_a_graph_would_freeze(const HostState& before) const;
  // Returns the model's buffers: the same memory in new tensors.
  std::vector<at::Tensor> buffers() const;
  bool replaces_buffers(const HostState& before) const;
  void put_buffers_back(const HostState& before);
  // Returns, on all ranks, the first rank's `failure` (empty: none) in words; empty: no rank has failed.
  std::string agree(const std::string& failure);
  void write(bool captured, std::int64_t batch, const std::string& text);
  void forget();
  void drop_graph();

  rank::RankSession& session_;
  TrainingStep& step_;
  CapturableStep& capturable_;
  const torch::nn::Module& model_;
  const c10::Device device_;
  comm::NcclCommunicator& communicator_;
  bool given_up_ = false;
  std::optional<std::int64_t> first_batch_;  // the first batch that ran as a graph
  int captures_ = 0;
  std::int64_t ready_ = 0;  // consecutive rounds in which this rank was settled
  Shape last_shape_;
  Shape captured_shape_;
  Batch places_;  // the tensors from which the graph reads its batch
  at::Tensor rates_;
  std::vector<float> rates_on_device_;  // values of rates_ after all submitted work; empty: not known
  std::int64_t optimizer_moves_ = 0;    // moves() at the capture
  Metrics metrics_;                     // written by the graph
  std::unique_ptr<DeviceGraph> graph_;
};

// True if a run's steps are to be captured: on request, and by default if the trial is dtrain's own, whose work on the
// host is the same in every step.
bool wants_graphs(const rank::RankSession& session);

}  // namespace dtrain::train
