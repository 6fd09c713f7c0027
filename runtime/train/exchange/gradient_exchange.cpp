#include "exchange/gradient_exchange.h"

#include <algorithm>
#include <numeric>
#include <typeinfo>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

constexpr Nanoseconds kNotReady{-1};
constexpr std::ptrdiff_t kWords = 3;  // elements of GradientExchange::Word

[[noreturn]] void fail_displaced(const std::string& name) {
  throw Error("a tensor that backward left behind lies where the gradient of '" + name + "' belongs",
              "do not keep tensors that backward makes (retain_grad(), create_graph) beyond train_batch()");
}

[[noreturn]] void fail_changed(const std::string& name, const std::string& what) {
  throw Error("the gradient of '" + name + "' was " + what + " after context.backward(), while the ranks exchange it",
              "clip with context.clip_gradient_norm() (in a script: session.wrap(..., clip_gradient_norm=...)), change "
              "gradients in a hook of the parameter (register_hook), and leave zeroing them to dtrain");
}

// Puts or adds a gradient, which may be sparse (Embedding(sparse=True)).
void put_gradient(const at::Tensor& from, at::Tensor& to, bool add) {
  if (from.layout() == at::kStrided && !add) {
    to.copy_(from);
  } else {
    if (!add) to.zero_();
    to.add_(from);
  }
}

// Spans the backward of a window's first batch.
class FirstBackward {
 public:
  explicit FirstBackward(GradientPlace& place) : place_(place) { place_.begin_backward(); }
  ~FirstBackward() { place_.end_backward(); }
  FirstBackward& operator=(FirstBackward&&) = delete;

 private:
  GradientPlace& place_;
};

class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Base = torch::autograd::PostAccumulateGradHook;
  ReadyHook(GradientExchange& exchange, std::size_t index, std::unique_ptr<Base> before)
      : exchange_(exchange), index_(index), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    if (before_) (*before_)(parameter);
    try {
      exchange_.gradient_ready(index_);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error) || error.remedy().empty()) throw;
      throw Error(std::string(error.what()) + "\n  " + error.remedy());  // Python's autograd passes on the text alone
    }
  }
  std::unique_ptr<Base> take_before() { return std::move(before_); }

 private:
  GradientExchange& exchange_;
  std::size_t index_;
  std::unique_ptr<Base> before_;  // the user's hook
};

}  // namespace

GradientExchange::GradientExchange(FlatParameters& parameters, comm::Communicator& communicator,
                                   comm::Communicator& device_communicator, profile::Recorder& recorder)
    : parameters_(parameters),
      communicator_(communicator),
      device_communicator_(device_communicator),
      recorder_(recorder),
      log_(communicator, recorder),
      bucket_of_(parameters.parameters().size()),
      ready_in_batch_(parameters.parameters().size()),
      used_(parameters.parameters().size() + kWords),
      ready_times_(parameters.parameters().size(), kNotReady) {
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    if (!parameters.parameters()[i].tied.empty()) tied_.push_back(i);
  }
  gradients_moved();
}

void GradientExchange::gradients_moved() {
  place_ = make_gradient_place(parameters_);
  guards_.clear();
  for (const auto& parameter : parameters_.parameters()) guards_.emplace_back(parameter.gradient);
}

void GradientExchange::use(GradientStrategy& strategy, const comm::FusionPlan& plan) {
  strategy_ = &strategy;
  plan_ = &plan;
  buckets_.assign(plan.buckets.size(), {});
  works_.clear();
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const std::size_t item : plan.buckets[b].items) bucket_of_[item] = b;
  }
}

void GradientExchange::forget_strategy() {
  works_.clear();
  strategy_ = nullptr;
  plan_ = nullptr;
}

std::int64_t GradientExchange::free_spare_gradients(bool free) {
  frees_spare_ = free;
  std::int64_t bytes = 0;
  for (std::size_t g = 0; free && g < parameters_.groups().size(); ++g) {
    bytes += parameters_.release_gradients({g, 0, parameters_.groups()[g].gradients.numel()});
  }
  return bytes;
}

void GradientExchange::begin_batch(bool exchange) {
  exchanging_ = exchange;
  holding_ = more_follows_ = false;
  chosen_models_.clear();
  std::fill(ready_in_batch_.begin(), ready_in_batch_.end(), 0);
  first_in_window_ = !window_open_;
  if (first_in_window_) {
    window_open_ = true;
    displaced_.clear();
    std::fill(used_.begin(), used_.end(), 0);
    // Undefined gradients let autograd hand over its own tensor instead of adding to zeros. The tensor lies in its
    // place already (GradientMemory), or the hook copies it there.
    for (auto& parameter : parameters_.parameters()) {
      parameter.tensor.mutable_grad() = at::Tensor();
      for (at::Tensor& tied : parameter.tied) tied.mutable_grad() = at::Tensor();
    }
  }
  events_.reset();
  for (Bucket& bucket : buckets_) bucket.launched = false;
  if (!exchange) return;
  if (device_times_ != DeviceTimes::kNone && !parameters_.memory().on_host()) {
    events_ = std::make_shared<ExchangeEvents>(parameters_.memory().device(), device_times_ == DeviceTimes::kGradients);
  }
  begin_times();  // again when backward() begins, if it does
  exposed_ = Nanoseconds{0};
  next_to_launch_ = next_to_free_ = 0;
  works_.assign(buckets_.size(), comm::Work());
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), 0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b] = {plan_->buckets[b].items.size(), false};
}

void GradientExchange::begin_times() {
  backward_began_ = now();
  if (events_) events_->begin_backward();
}

void GradientExchange::gradient_ready(std::size_t index) {
  auto& parameter = parameters_.parameters()[index];
  if (!parameter.tied.empty()) return;  // add_tied() does it
  const Nanoseconds entered = now();
  ready_times_[index] = entered - backward_began_ - in_hooks_;
  if (events_) events_->gradient_ready(index);
  if (ready_in_batch_[index]) {
    throw Error(
        "the gradient of '" + parameter.name + "' was computed twice in one batch",
        "call context.backward() once in train_batch(), on the sum of the losses, or pass .more_follows = true to "
        "every call but the last; in a script with session.wrap(): `with session.no_sync()` around every "
        "loss.backward() but the last before optimizer.step(), and the loader's next batch after the step");
  }
  ready_in_batch_[index] = 1;
  if (put_in_place(index) && exchanging_ && !more_follows_) {
    --buckets_[bucket_of_[index]].missing;
    const profile::PhaseScope phase(recorder_, profile::Phase::kAllreduceWait, profile::PhaseOf::kHost);
    const Nanoseconds began = now();
    launch_ready();
    progress();
    exposed_ += now() - began;
  }
  in_hooks_ += now() - entered;
}

bool GradientExchange::put_in_place(std::size_t index) {
  auto& parameter = parameters_.parameters()[index];
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    throw Error("a hook of '" + parameter.name + "' has taken its gradient away",
                "a hook may change the gradient, but must leave one");
  }
  const bool was_used = std::exchange(used_[index], 1);
  const at::NoGradGuard no_grad;
  if (gradient.layout() == at::kStrided && place_->settle(index, gradient)) {
    // In its place, but laid out in another order: autograd allows that for parameters whose layout it cannot match.
    if (gradient.strides() != parameter.gradient.strides()) parameter.gradient.copy_(gradient.clone());
  } else {
    if (!place_->may_write(index)) {
      displaced_.emplace_back(index, gradient);
      return false;
    }
    if (gradient.layout() == at::kStrided && !was_used) {
      place_->put(index, gradient);
    } else {
      put_gradient(gradient, parameter.gradient, was_used);  // added if the window's last batch has left a gradient
    }
  }
  gradient = parameter.gradient;
  return true;
}

// All ranks choose in the same order, so the buckets of models that are chosen later follow those of models before
// them.
void GradientExchange::choose_models(std::span<const std::uint8_t> models) {
  if (chosen_models_.empty()) {
    chosen_models_.assign(models.size(), 0);
    order_.clear();
  }
  const std::vector<std::uint8_t> before = chosen_models_;
  for (std::size_t m = 0; m < models.size(); ++m) chosen_models_[m] |= models[m];
  if (!exchanging_) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::size_t model = parameters_.parameters()[plan_->buckets[b].items.front()].model;
    if (chosen_models_[model] && !before[model]) order_.push_back(b);
  }
}

bool GradientExchange::is_chosen(std::size_t bucket) const {
  const std::size_t first = plan_->buckets[bucket].items.front();
  return chosen_models_.empty() || chosen_models_[parameters_.parameters()[first].model] != 0;
}

void GradientExchange::launch_ready() {
  if (holding_) return;
  while (next_to_launch_ < order_.size() && buckets_[order_[next_to_launch_]].missing == 0) launch_next();
}

void GradientExchange::launch_rest() {
  // If buckets were held, other ranks may have chosen all models at once.
  if (holding_) std::sort(order_.begin(), order_.end());
  while (next_to_launch_ < order_.size()) launch_next();
}

void GradientExchange::progress() {
  communicator_.progress();
  if (&device_communicator_ != &communicator_) device_communicator_.progress();
  free_exchanged();
}

// Operations end in the order of issue, so a look at the first outstanding one is enough.
void GradientExchange::free_exchanged() {
  if (!frees_spare_) return;
  for (; next_to_free_ < next_to_launch_; ++next_to_free_) {
    const std::size_t bucket = order_[next_to_free_];
    if (!works_[bucket].test()) return;
    free_bucket(bucket);
  }
}

void GradientExchange::free_bucket(std::size_t bucket) {
  for (const FlatRange& range : strategy_->spare_gradients(bucket)) parameters_.release_gradients(range);
}

void GradientExchange::launch_next() {
  const ExchangeEvents::Stretch stretch(events_.get());
  const std::size_t bucket = order_[next_to_launch_];
  place_->finish(plan_->buckets[bucket].items);
  works_[bucket] = strategy_->launch(bucket);
  buckets_[bucket].launched = true;
  ++next_to_launch_;
}

void GradientExchange::backward(const at::Tensor& loss, const Backward& how) {
  std::fill(ready_times_.begin(), ready_times_.end(), kNotReady);
  in_hooks_ = Nanoseconds{0};
  lift_guard();
  begin_times();
  more_follows_ = how.more_follows;
  const auto run = [&] {
    if (how.inputs.empty()) return loss.backward({}, how.retain_graph);
    loss.backward({}, how.retain_graph, /*create_graph=*/false, at::TensorList(how.inputs));
  };
  if (first_in_window_) {
    const FirstBackward first(*place_);
    run();
  } else {
    run();  // later batches add to the gradients that the first has put in place
  }
  place_->finish_all();
  put_displaced_back();
  add_tied();
  guard();
  first_in_window_ = false;  // gradients stay in their places: no later backward is lent these
  if (std::exchange(more_follows_, false)) std::fill(ready_in_batch_.begin(), ready_in_batch_.end(), 0);
}

// Tensors in the same memory have gradients of their own, which backward finishes in any order: the parameter's
// gradient is their sum.
void GradientExchange::add_tied() {
  const at::NoGradGuard no_grad;
  for (const std::size_t index : tied_) {
    auto& parameter = parameters_.parameters()[index];
    const auto add = [&](at::Tensor& gradient) {
      if (!gradient.defined() || gradient.is_same(parameter.gradient)) return;
      put_gradient(gradient, parameter.gradient, std::exchange(used_[index], 1));
    };
    add(parameter.tensor.mutable_grad());
    for (at::Tensor& tied : parameter.tied) {
      add(tied.mutable_grad());
      tied.mutable_grad() = at::Tensor();
    }
    if (used_[index]) parameter.tensor.mutable_grad() = parameter.gradient;
  }
}

void GradientExchange::guard() {
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (used_[i]) parameters[i].tensor.mutable_grad() = guards_[i].view();
  }
}

// Autograd may add to the gradients again. A gradient that was reset still counts: it is what the window has gathered.
void GradientExchange::lift_guard() {
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].tensor.mutable_grad();
    if (guards_[i].written()) fail_changed(parameters[i].name, "changed");
    if (gradient.is_same(guards_[i].view())) gradient = parameters[i].gradient;
  }
}

// Checks that no gradient has been touched since backward. From here on the gradients are ours, and may be read again.
void GradientExchange::take_back() {
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].tensor.grad();
    if (guards_[i].written()) fail_changed(parameters[i].name, "changed");
    if (!used_[i] && gradient.defined()) {
      throw Error("'" + parameters[i].name + "' has a gradient that context.backward() has not made",
                  "call context.backward(loss) instead of loss.backward(); hooks are put on parameters before the "
                  "trial's constructor returns");
    }
    if (used_[i] && !gradient.defined()) fail_changed(parameters[i].name, "reset");
    if (used_[i] && !gradient.is_same(guards_[i].view()) && !gradient.is_same(parameters[i].gradient)) {
      fail_changed(parameters[i].name, "replaced");
    }
  }
}

void GradientExchange::put_displaced_back() {
  const at::NoGradGuard no_grad;
  const auto parameters = parameters_.parameters();
  for (auto& [index, gradient] : displaced_) {
    if (!place_->may_write(index)) fail_displaced(parameters[index].name);
    put_gradient(gradient, parameters[index].gradient, false);
    parameters[index].tensor.mutable_grad() = parameters[index].gradient;
  }
  displaced_.clear();
}

void GradientExchange::visit(StateVisitor& visitor) {
  visitor.number("window_open", window_open_);
  if (!window_open_) return;
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    visitor.number("used/" + parameters[i].name, used_[i]);
    if (used_[i]) visitor.tensor(parameters[i].name, parameters[i].gradient);
  }
  if (!visitor.replaces()) return;
  displaced_.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor.mutable_grad() = at::Tensor();
  guard();
}

void GradientExchange::clear_unused() {
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (used_[i] || buckets_[bucket_of_[i]].launched) continue;
    if (frees_spare_ && !is_chosen(bucket_of_[i])) continue;
    if (!place_->may_write(i)) fail_displaced(parameters[i].name);
    const auto& group = parameters_.groups()[parameters[i].group];
    FlatMemory::clear(parameters[i].narrow_gradient ? group.narrow_gradients : group.gradients, parameters[i].offset,
                      parameters[i].padded);
  }
  // Gradients of models that are not in this step are zeros, whose memory is given back.
  for (std::size_t b = 0; frees_spare_ && b < buckets_.size(); ++b) {
    const auto& bucket = plan_->buckets[b];
    if (!is_chosen(b)) parameters_.clear_and_release_gradients({bucket.group, bucket.begin, bucket.end});
  }
}

std::span<const std::uint8_t> GradientExchange::finish(const Word& word) {
  const profile::PhaseScope phase(recorder_, profile::Phase::kAllreduceWait);
  const Nanoseconds began = now();
  take_back();
  clear_unused();
  ExchangeEvents::Stretch stretch(events_.get());
  const auto words = used_.end() - kWords;
  words[0] = word.wrote ? 1 : 0;
  words[1] = word.weighted ? 1 : 0;
  words[2] = word.dropped ? 1 : 0;
  launch_rest();
  for (std::size_t i = 0; i < word.used_before.size(); ++i) used_[i] |= word.used_before[i];
  // No rank passes this operation before every backward has ended: hooks issue buckets, but not this all-reduce.
  // Strategies rely on it (GradientStrategy::update()).
  std::vector<std::uint8_t> own(used_.begin(), used_.end() - kWords);
  comm::Work used =
      communicator_.all_reduce(used_.data(), used_.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax});
  join_buckets(/*record=*/true);
  stretch.end();  // the device does not wait for what the host waits for below
  used.wait();
  const Nanoseconds ended = now();
  exchanged_ = ended - backward_began_;
  exposed_ += ended - began;
  log_.record("all_reduce", -1, used);
  note_used(std::move(own));
  show_gradients();
  return std::span(used_).first(parameters_.parameters().size());
}

std::span<const std::uint8_t> GradientExchange::finish_captured() {
  take_back();
  clear_unused();
  if (!std::equal(last_own_.begin(), last_own_.end(), used_.begin())) {
    throw Error("the step uses other parameters than the one before it");
  }
  launch_rest();
  join_buckets(/*record=*/false);
  std::copy(last_used_.begin(), last_used_.end(), used_.begin());
  show_gradients();
  return std::span(used_).first(parameters_.parameters().size());
}

std::span<const std::uint8_t> GradientExchange::finish_local() {
  take_back();
  clear_unused();
  show_gradients();
  return std::span(used_).first(parameters_.parameters().size());
}

void GradientExchange::join_buckets(bool record) {
  const std::size_t freed_in_backward = next_to_free_;
  for (const std::size_t b : order_) {
    works_[b].join();
    if (record) log_.record(strategy_->operation(), static_cast<int>(b), works_[b]);
    strategy_->complete(b);
    free_exchanged();
  }
  // Where the kernel gives huge pages, a later gradient may have brought back pages that were given back already.
  for (std::size_t i = 0; i < freed_in_backward; ++i) free_bucket(order_[i]);
}

// Shows the gradients to the caller of update(), and to users' hooks.
void GradientExchange::show_gradients() {
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].tensor.mutable_grad() = used_[i] ? parameters[i].gradient : at::Tensor();
  }
}

void GradientExchange::note_used(std::vector<std::uint8_t> own) {
  const bool alike = own == last_own_ && std::equal(last_used_.begin(), last_used_.end(), used_.begin());
  windows_alike_ = alike ? windows_alike_ + 1 : 0;
  last_own_ = std::move(own);
  last_used_.assign(used_.begin(), used_.end() - kWords);
}

GradientHooks::GradientHooks(FlatParameters& parameters, GradientExchange& exchange) : parameters_(parameters) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(all[i].tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(all[i].tensor,
                                                   std::make_unique<ReadyHook>(exchange, i, std::move(before)));
  }
}

GradientHooks::~GradientHooks() {
  for (auto& parameter : parameters_.parameters()) {
    auto* ours = dynamic_cast<ReadyHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter.tensor).get());
    if (ours) torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, ours->take_before());
    parameter.tensor.mutable_grad() = at::Tensor();
    for (at::Tensor& tied : parameter.tied) tied.mutable_grad() = at::Tensor();
  }
}

}  // namespace dtrain::train
