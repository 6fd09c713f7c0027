#include "step/step_graph.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <spdlog/fmt/fmt.h>

#include "device/device_profile.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

std::unique_ptr<DeviceGraph> make_device_graph() {
  auto* const factory = reinterpret_cast<DeviceGraphFactory*>(open_module<ConfigError>(
      {.name = "dtrain_cuda_graph",
       .needs = {"libtorch_cuda.so"},
       .factory = kDeviceGraphFactory,
       .what = "the part of dtrain that captures CUDA graphs",
       .remedy_needs = "get it with: dtrain-get-libtorch --flavour full",
       .remedy_module = "build dtrain where the CUDA runtime's headers are (scripts/setup.sh fetches them)"}));
  std::unique_ptr<DeviceGraph> made;
  if (const int theirs = factory(kDeviceGraphAbi, made)) {
    throw ConfigError("the part of dtrain that captures CUDA graphs is of another build: it speaks version " +
                          std::to_string(theirs) + " of the interface, this dtrain version " +
                          std::to_string(kDeviceGraphAbi),
                      "install the two together");
  }
  return made;
}

namespace {

// Number of steps without a graph after all comparisons have ended. In the first of them libraries choose their
// kernels, TorchScript its code, and allocators get their memory.
constexpr std::int64_t kWarmUp = 4;

// Returns the failure of `call` in words; empty: it has not failed.
template <typename Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return first_line(error.what_without_backtrace());
  } catch (const Error& error) {
    return error.remedy().empty() ? error.what() : fmt::format("{} ({})", error.what(), error.remedy());
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
  return "";
}

// Pairs begin_capture() of graph and communicator with their end_capture().
class Capture {
 public:
  Capture(DeviceGraph& graph, comm::NcclCommunicator& communicator, bool rehearsal)
      : graph_(graph), communicator_(communicator) {
    if (rehearsal) {
      communicator_.begin_rehearsal();
    } else {
      communicator_.begin_capture();
    }
    try {
      graph_.begin_capture();
    } catch (...) {
      communicator_.end_capture();
      throw;
    }
  }
  Capture& operator=(Capture&&) = delete;

  // Called once. Returns the failure or "": the communicator's, which has more detail, or else CUDA's.
  std::string end() {
    const std::string of_graph = failure_of([&] { graph_.end_capture(); });
    const std::string of_communicator = failure_of([&] { communicator_.end_capture(); });
    return of_communicator.empty() ? of_graph : of_communicator;
  }

 private:
  DeviceGraph& graph_;
  comm::NcclCommunicator& communicator_;
};

comm::NcclCommunicator& nccl_of(rank::RankSession& session) {
  auto* const communicator = dynamic_cast<comm::NcclCommunicator*>(&session.device_communicator());
  if (communicator == nullptr) throw Error("a GPU's communicator is not NCCL's, whose operations graphs hold");
  return *communicator;
}

at::Tensor host_random_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

}  // namespace

bool wants_graphs(const rank::RankSession& session) {
  const config::CudaGraphs graphs = session.experiment().optimizations.cuda_graphs;
  const bool by_default = graphs == config::CudaGraphs::kAuto && session.experiment().model.has_value();
  return session.gpu() && (graphs == config::CudaGraphs::kOn || by_default);
}

StepGraph::StepGraph(rank::RankSession& session, TrainingStep& step, const torch::nn::Module& model, c10::Device device)
    : session_(session),
      step_(step),
      capturable_(*step.capturable()),
      model_(model),
      device_(device),
      communicator_(nccl_of(session)) {
  step_.optimizer().round_rates();
}

StepGraph::~StepGraph() = default;

StepGraph::Shape StepGraph::shape_of(const Batch& batch) {
  Shape shape;
  for (const at::Tensor& tensor : batch.tensors) {
    shape.sizes.push_back(tensor.sizes().vec());
    shape.types.push_back(tensor.scalar_type());
  }
  shape.samples = batch.samples;
  return shape;
}

bool StepGraph::fits(const Batch& batch) {
  if (given_up_) return false;
  Shape shape = shape_of(batch);
  const bool as_before = shape == last_shape_;
  last_shape_ = std::move(shape);
  const bool settled = capturable_.settled() && !communicator_.compares();
  ready_ = settled && as_before ? ready_ + 1 : 0;
  if (graph_) return settled && last_shape_ == captured_shape_;
  return ready_ > kWarmUp;
}

std::optional<Metrics> StepGraph::step(const Batch& batch, const Train& train,
                                       const std::function<void()>& before_launch) {
  // A restored checkpoint may have moved the optimizer's state; steps without the graph may have used other parameters.
  if (graph_ && (step_.optimizer().moves() != optimizer_moves_ || !capturable_.is_as_captured())) forget();
  if (!graph_) make_places(batch);
  fill_places(batch);
  if (!graph_ && !capture(train)) return std::nullopt;
  capturable_.before_replay();
  before_launch();
  const profile::PhaseScope whole(session_.recorder(), profile::Phase::kGraph);
  graph_->replay();
  communicator_.replayed();
  capturable_.after_replay();
  return metrics_;
}

bool StepGraph::capture(const Train& train) {
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kGraph);
  const HostState before{buffers(), host_random_state()};
  std::string failure;
  if (session_.world().size > 1) failure = record_on_all(train, before, For::kRehearsal);
  if (failure.empty()) failure = record_on_all(train, before, For::kReplays);
  const std::int64_t number = step_.batches_begun() + 1;
  if (failure.empty()) {
    captured_shape_ = last_shape_;
    optimizer_moves_ = step_.optimizer().moves();
    places_.host_tensors.clear();
    if (!first_batch_) write(true, number, fmt::format("steps run as one CUDA graph from batch {} on", number));
    if (!first_batch_) first_batch_ = number;
    return true;
  }
  forget();
  release_unused_memory(device_);
  given_up_ = true;
  if (!first_batch_) {
    write(false, number, fmt::format("steps do not run as a CUDA graph: {}", failure));
  } else {
    write(true, *first_batch_,
          fmt::format("steps ran as one CUDA graph from batch {} on, and from batch {} on no more: {}", *first_batch_,
                      number, failure));
  }
  return false;
}

std::string StepGraph::record_on_all(const Train& train, const HostState& before, For what) {
  // The graph has separate memory. The memory of earlier steps would stay unused, so it is released.
  release_unused_memory(device_);
  const std::string failure = agree(failure_of([&] { record(train, before, what); }));
  if (!failure.empty() || what == For::kRehearsal) abandon(before);
  return failure;
}

void StepGraph::record(const Train& train, const HostState& before, For what) {
  graph_ = make_device_graph();
  profile::Recorder& recorder = session_.recorder();
  const CaptureState capturing;
  Capture capture(*graph_, communicator_, what == For::kRehearsal);
  recorder.hold_phase(true);
  step_.optimizer().capture_steps(rates_);
  std::exception_ptr thrown;
  try {
    capturable_.begin_capture();
    metrics_ = train(places_);
    capturable_.end_capture();
    refuse_what_a_graph_would_freeze(before);
  } catch (...) {
    thrown = std::current_exception();
  }
  step_.optimizer().capture_steps({});
  recorder.hold_phase(false);
  const std::string failure = capture.end();
  if (thrown) std::rethrow_exception(thrown);
  if (!failure.empty()) throw Error(failure);
}

void StepGraph::abandon(const HostState& before) {
  capturable_.abandon_capture();
  put_buffers_back(before);
  drop_graph();
}

void StepGraph::make_places(const Batch& batch) {
  places_ = batch;
  for (at::Tensor& tensor : places_.tensors) tensor = at::empty_like(tensor);
  rates_ = at::empty(static_cast<std::int64_t>(step_.optimizer().learning_rates().size()),
                     at::TensorOptions().device(device_).dtype(at::kFloat));
  rates_on_device_.clear();
}

// Copies run in the stream's order, after the graph's last launch has read the old values.
void StepGraph::fill_places(const Batch& batch) {
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kToDevice);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < places_.tensors.size(); ++i) {
    places_.tensors[i].copy_(batch.tensors[i], /*non_blocking=*/true);
  }
  std::vector<float> rates = step_.optimizer().learning_rates();
  if (rates_on_device_ == rates) return;
  const at::Tensor pinned = at::empty(rates_.sizes(), at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  std::copy(rates.begin(), rates.end(), pinned.mutable_data_ptr<float>());
  rates_.copy_(pinned, /*non_blocking=*/true);
  rates_on_device_ = std::move(rates);
}

std::vector<at::Tensor> StepGraph::buffers() const {
  std::vector<at::Tensor> all;
  for (const at::Tensor& buffer : model_.buffers()) all.push_back(buffer.defined() ? buffer.detach() : buffer);
  return all;
}

bool StepGraph::replaces_buffers(const HostState& before) const {
  const std::vector<at::Tensor> now = model_.buffers();
  return !std::equal(now.begin(), now.end(), before.buffers.begin(), before.buffers.end(),
                     [](const at::Tensor& place, const at::Tensor& other) {
                       return place.defined() == other.defined() &&
                              (!place.defined() || place.data_ptr() == other.data_ptr());
                     });
}

void StepGraph::put_buffers_back(const HostState& before) {
  std::vector<at::Tensor> now = model_.buffers();
  for (std::size_t i = 0; i < std::min(now.size(), before.buffers.size()); ++i) {
    if (now[i].defined() && before.buffers[i].defined()) now[i].set_data(before.buffers[i]);
  }
}

void StepGraph::refuse_what_a_graph_would_freeze(const HostState& before) const {
  for (const auto& [name, value] : metrics_) {
    if (value.weight()) throw Error("train_batch() returns '" + name + "' with a weight, which would stay the same");
    if (value.is_on_device()) continue;
    throw Error("train_batch() returns '" + name + "' as a number of the host, which would stay the same");
  }
  if (replaces_buffers(before)) throw Error("the model replaces one of its buffers, which a graph would not follow");
  if (!at::equal(host_random_state(), before.random)) {
    throw Error("train_batch() draws random numbers on the host, which would stay the same");
  }
}

std::string StepGraph::agree(const std::string& failure) {
  const auto texts = session_.control().gather("train/graph-" + std::to_string(captures_++), failure);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return texts.size() == 1 ? texts[rank] : fmt::format("rank {}: {}", rank, texts[rank]);
  }
  return "";
}

void StepGraph::write(bool captured, std::int64_t batch, const std::string& text) {
  if (session_.world().rank != 0) return;
  const bool disappoints = !captured && session_.experiment().optimizations.cuda_graphs == config::CudaGraphs::kOn;
  session_.log()->log(disappoints ? spdlog::level::warn : spdlog::level::info, "{}", text);
  session_.update_plan("cuda_graphs", {{"captured", captured}, {"batch", batch}, {"text", text}});
}

// Destroys the graph, and then the tensors that it reads and writes.
void StepGraph::forget() {
  drop_graph();
  places_ = {};
  ready_ = 0;
}

void StepGraph::drop_graph() {
  graph_.reset();
  metrics_.clear();
}

}  // namespace dtrain::train
