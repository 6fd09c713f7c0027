#include "loop.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>

#include "models.h"

namespace dtrain::test {

namespace {

constexpr int kBatches = 8, kSamples = 8, kLastSamples = 5;
constexpr int kWarmUp = 2;         // steps before the capture
constexpr int kStepsInFlight = 2;  // that the host is ahead

class Loop {
 public:
  Loop(at::Device device, bool graph, Mutant mutant);
  LoopResult run();

 private:
  bool is(Mutant mutant) const { return mutant_ == mutant; }
  bool on_gpu() const { return device_.is_cuda(); }
  Batch feed(const Batch& batch);
  void set_rate(int step);
  void step(const Batch& batch);
  void reduce();
  void all_reduce(const at::Tensor& tensor);
  void update();
  void step_in_graph(const Batch& batch);
  void keep_up();

  const at::Device device_;
  const bool graph_;
  const Mutant mutant_;
  ConvNet model_;
  std::vector<at::Tensor> parameters_, views_;
  at::Tensor values_, gradients_, first_, second_, steps_, rate_, loss_, losses_;
  double host_rate_ = 0;
  std::optional<c10::Stream> compute_, copies_, communication_;
  std::deque<c10::Event> in_flight_;
  std::deque<at::Tensor> pinned_rates_;
  at::Tensor host_loss_;
  Batch fixed_;  // the graph's
  int captured_ = 0;
  int eager_steps_ = 0;
};

Loop::Loop(at::Device device, bool graph, Mutant mutant) : device_(device), graph_(graph), mutant_(mutant) {
  model_.to(device);
  parameters_ = model_.parameters();
  std::int64_t total = 0;
  for (const at::Tensor& p : parameters_) total += p.numel();
  for (auto* const flat : {&values_, &gradients_, &first_, &second_}) *flat = at::zeros({total}, device);
  for (auto* const scalar : {&steps_, &rate_, &losses_}) *scalar = at::zeros({}, device);
  if (on_gpu()) {
    compute_ = pool_stream(device);
    copies_ = pool_stream(device);
    communication_ = pool_stream(device);
    guard().synchronizeDevice(device.index());
  }
  if (is(Mutant::kHostTensorCaptured)) rate_ = at::zeros({});
  const at::NoGradGuard no_grad;
  std::int64_t offset = 0;
  for (at::Tensor& p : parameters_) {
    const auto value = values_.narrow(0, offset, p.numel()).view(p.sizes());
    value.copy_(p);
    p.set_data(value);
    views_.push_back(gradients_.narrow(0, offset, p.numel()).view(p.sizes()));
    offset += p.numel();
  }
  if (on_gpu()) guard().synchronizeDevice(device.index());
}

Batch Loop::feed(const Batch& batch) {
  if (!on_gpu()) return batch;
  Batch pinned = is(Mutant::kPageableBatch) ? batch : Batch{batch.inputs.pin_memory(), batch.labels.pin_memory()};
  Batch fed;
  {
    const c10::StreamGuard on(*copies_);
    fed = {pinned.inputs.to(device_, true), pinned.labels.to(device_, true)};
  }
  if (is(Mutant::kPinnedBatchOverwritten)) pinned.inputs.zero_();
  if (!is(Mutant::kBatchNotWaitedFor)) order(*copies_, *compute_);
  if (is(Mutant::kBatchWithoutRecordStream)) return fed;
  fed.inputs.record_stream(*compute_);
  fed.labels.record_stream(*compute_);
  return fed;
}

void Loop::set_rate(int step) {
  host_rate_ = 1e-2 / (1 + step);
  if (!on_gpu() || is(Mutant::kHostTensorCaptured)) {
    rate_.fill_(host_rate_);
    return;
  }
  pinned_rates_.push_back(at::full({}, host_rate_, at::TensorOptions().pinned_memory(true)));
  rate_.copy_(pinned_rates_.back(), true);
}

// Sums over ranks, as it were: half of what this rank has.
void Loop::all_reduce(const at::Tensor& tensor) {
  if (!on_gpu()) {
    tensor.mul_(0.5);
    return;
  }
  const FakeGpuMemory memory{tensor.data_ptr(), tensor.nbytes()};
  const auto halve = [data = static_cast<float*>(gpus.alias(tensor.data_ptr())), n = tensor.numel()] {
    std::for_each(data, data + n, [](float& f) { f *= 0.5F; });
  };
  // The events are those of the communication's stream all the same.
  const c10::Stream& stream = is(Mutant::kAllReduceOnAnotherStream) ? *copies_ : *communication_;
  gpus.launch(stream.native_handle(), "all-reduce", {&memory, 1}, {&memory, 1}, halve);
}

void Loop::reduce() {
  std::vector<at::Tensor> gradients;
  for (at::Tensor& p : parameters_) gradients.push_back(p.grad());
  if (on_gpu() && is(Mutant::kReadyEventTooEarly)) order(*compute_, *communication_);
  at::_foreach_copy_(views_, gradients);
  const bool waits = !is(Mutant::kNoWaitBeforeAllReduce) && !is(Mutant::kReadyEventTooEarly);
  if (on_gpu() && waits) order(*compute_, *communication_);
  all_reduce(gradients_);
  if (is(Mutant::kBufferFreedInUse)) {
    auto buffer = at::ones({16}, device_);
    order(*compute_, *communication_);
    all_reduce(buffer);
    buffer.reset();
    at::zeros({16}, device_);
  }
  if (on_gpu() && !is(Mutant::kNoWaitAfterAllReduce) && !is(Mutant::kSideStreamNotJoined))
    order(*communication_, *compute_);
}

void Loop::update() {
  if (is(Mutant::kScaleReadOnHost)) {  // a step whose gradients overflow is left out
    const auto overflows = gradients_.isfinite().all().logical_not();
    if (overflows.item<bool>()) return;
  }
  steps_.add_(1);
  const std::vector<at::Tensor> v{values_}, g{gradients_}, m{first_}, s{second_}, n{steps_};
  if (is(Mutant::kFrozenRate)) {
    at::_fused_adamw_(v, g, m, s, {}, n, host_rate_, 0.9, 0.999, 0.01, 1e-8, false, false);
  } else {
    at::_fused_adamw_(v, g, m, s, {}, n, rate_, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
}

void Loop::step(const Batch& batch) {
  model_.zero_grad();
  loss_ = at::cross_entropy_loss(model_.forward(batch.inputs), batch.labels);
  loss_.backward();
  const at::NoGradGuard no_grad;
  if (is(Mutant::kItemInStep)) loss_.item<double>();
  if (is(Mutant::kHostRead)) [[maybe_unused]]
    const volatile float read = *loss_.const_data_ptr<float>();
  reduce();
  update();
  losses_.add_(loss_.detach());
}

void Loop::step_in_graph(const Batch& batch) {
  fixed_.inputs.narrow(0, 0, batch.inputs.size(0)).copy_(batch.inputs);
  fixed_.labels.narrow(0, 0, batch.labels.size(0)).copy_(batch.labels);
  if (captured_ == 0) {
    gpus.begin_capture();
    at::Tensor pinned;
    if (is(Mutant::kPinnedMemoryFreed)) {
      pinned = at::full({}, host_rate_, at::TensorOptions().pinned_memory(true));
      rate_.copy_(pinned, true);
    }
    if (is(Mutant::kQueryInCapture)) in_flight_.back().query();
    step(fixed_);
    captured_ = gpus.end_capture();
  }
  gpus.replay(captured_);
}

// Some steps behind, so that the device always has work; memory that those steps needed on the host is free now.
void Loop::keep_up() {
  in_flight_.emplace_back(at::kCUDA);
  in_flight_.back().record(*compute_);
  if (in_flight_.size() <= kStepsInFlight) return;
  while (!in_flight_.front().query()) std::this_thread::yield();
  in_flight_.pop_front();
  if (!pinned_rates_.empty()) pinned_rates_.pop_front();
}

LoopResult Loop::run() {
  std::optional<c10::StreamGuard> on;
  if (on_gpu() && !is(Mutant::kMissingDeviceGuard)) on.emplace(*compute_);
  if (graph_) {
    const auto batch = make_batches().front();
    fixed_ = {at::empty_like(batch.inputs, device_), at::empty_like(batch.labels, device_)};
  }
  gpus.take_counts();
  int number = 0;
  for (const Batch& batch : make_batches()) {
    const Batch fed = feed(batch);
    set_rate(number);
    const bool full = batch.inputs.size(0) == kSamples || is(Mutant::kUnevenBatchInGraph);
    if (graph_ && full && number >= kWarmUp) {
      step_in_graph(fed);
    } else {
      step(fed);
    }
    if (on_gpu()) keep_up();
    ++number;
  }
  LoopResult result;
  result.counts = gpus.take_counts();
  auto metric = at::empty({}, at::TensorOptions().pinned_memory(on_gpu()));
  metric.copy_(losses_, true);
  if (on_gpu() && !is(Mutant::kMetricReadTooEarly)) compute_->synchronize();
  result.loss = metric.item<double>();
  result.weights = values_.cpu();
  if (captured_ != 0) gpus.destroy_graph(captured_);
  return result;
}

}  // namespace

std::vector<Batch> make_batches() {
  auto generator = at::detail::createCPUGenerator(5);
  std::vector<Batch> batches;
  for (int b = 0; b < kBatches; ++b) {
    const int samples = b + 1 == kBatches ? kLastSamples : kSamples;
    batches.push_back({at::rand({samples, 1, 14, 14}, generator), at::randint(0, 10, {samples}, generator, at::kLong)});
  }
  return batches;
}

LoopResult run_loop(at::Device device, bool graph, Mutant mutant) {
  at::manual_seed(7);
  std::optional<c10::DeviceGuard> on;
  if (device.is_cuda() && mutant != Mutant::kMissingDeviceGuard) on.emplace(device);
  return Loop(device, graph, mutant).run();
}

}  // namespace dtrain::test
