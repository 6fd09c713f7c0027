// The part of the exchange that all strategies share: gradients become ready one by one, and full buckets are exchanged
// in plan order.
//
// A window is the aggregation_frequency batches whose gradients are summed before one exchange. Training thread;
// gradient_ready() is called by the thread that runs backward, while the training thread waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/profile/recorder.h"
#include "exchange/exchange_events.h"
#include "exchange/gradient_place.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "state_visitor.h"

namespace dtrain::train {

class GradientExchange {
 public:
  // `communicator`: the host's. `device_communicator`: that of the parameters.
  GradientExchange(FlatParameters& parameters, comm::Communicator& communicator,
                   comm::Communicator& device_communicator, profile::Recorder& recorder);

  // Sets plan and strategy. Only between windows. Both must live until the next use() or forget_strategy().
  void use(GradientStrategy& strategy, const comm::FusionPlan& plan);
  void forget_strategy();
  // If `free`, all gradients go back to the kernel now, and from now on the gradients that the strategy calls spare,
  // bucket by bucket as soon as their exchange is complete on this rank, during backward too. (Then no peer reads them
  // any more: Buffer::release().) Returns the bytes given back now. Between windows.
  std::int64_t free_spare_gradients(bool free);
  // To be called between windows after gradients have moved.
  void gradients_moved();

  // Begins a batch. `exchange`: gradients are exchanged in this batch, bucket by bucket as backward completes them.
  void begin_batch(bool exchange);
  // Runs autograd from `loss`; its hooks call gradient_ready().
  struct Backward {
    bool more_follows = false;  // another backward of this batch adds to the same gradients: no bucket is complete yet
    bool retain_graph = false;
    std::vector<at::Tensor> inputs{};  // the only leaves that get a gradient; empty: all
  };
  void backward(const at::Tensor& loss, const Backward& how);
  void backward(const at::Tensor& loss) { backward(loss, Backward()); }
  // With several models: an element for each, 1 if the step updates it, in addition to those that were chosen before.
  // The buckets of the others are not exchanged. To be called before each backward and before finish(), the same on
  // every rank. begin_batch() undoes it.
  void choose_models(std::span<const std::uint8_t> models);
  // Until the next begin_batch() no bucket is exchanged before finish(): another rank may not know the next models yet.
  void hold_buckets() { holding_ = true; }
  // To be called when backward has finished the gradient of a parameter (index into FlatParameters::parameters()).
  void gradient_ready(std::size_t parameter);
  // Issues the buckets that backward did not complete, with zeros for untouched gradients, and joins every bucket
  // (Work::join()). Returns, for each parameter, 1 if any rank used it in this window. Error names a parameter whose
  // gradient has changed since backward(). `word`: flags of this rank for the others.
  struct Word {
    bool wrote = false;     // this rank's model has written parameters
    bool weighted = false;  // this rank's batches have weights
    bool dropped = false;   // this rank drops the gradients, and takes no step
    // For each parameter 1 if this rank has used it before this window, and that counts. Empty: none.
    std::span<const std::uint8_t> used_before{};
  };
  std::span<const std::uint8_t> finish(const Word& word);
  std::span<const std::uint8_t> finish() { return finish(Word()); }
  // True if any rank has set the flag in the last finish().
  bool any_wrote() const { return used_[used_.size() - 3] != 0; }
  bool weighted_by_any() const { return used_[used_.size() - 2] != 0; }
  bool dropped_by_any() const { return used_.back() != 0; }
  // The same in a step that is being captured (step/step_graph.h): the host exchanges nothing, so the used parameters
  // are those of the last finish(). Error if this rank has used others in this step.
  std::span<const std::uint8_t> finish_captured();
  // The number of windows in which each rank has used the same parameters, as far as this rank knows.
  std::int64_t windows_alike() const { return windows_alike_; }
  // True if `used`, a result of finish(), are the parameters that any rank used in the last window.
  bool last_used(const std::vector<std::uint8_t>& used) const { return used == last_used_; }
  // Discards the gradients of the window: the next batch starts a new one.
  void abandon_window() { window_open_ = false; }
  // finish() for this rank's own gradients, without an exchange.
  std::span<const std::uint8_t> finish_local();
  // To be called after the update: the next batch starts a new window.
  void end_window() { window_open_ = false; }
  // Visits the gradients that an open window has gathered on this rank. Between two batches.
  void visit(StateVisitor& visitor);

  // The times at which backward finished each gradient in the last window, from the start of that backward, without the
  // time of the hooks; negative: not in this batch.
  std::span<const Nanoseconds> ready_times() const { return ready_times_; }
  // The time from the start of that backward until every bucket was complete.
  Nanoseconds exchanged() const { return exchanged_; }
  // The part of exchanged() in which this thread issued buckets or waited for them.
  Nanoseconds exposed() const { return exposed_; }
  // The same times on a device, marked from the next begin_batch() on: none, those of the whole exchange, or also those
  // of each gradient. On a CPU nothing is marked.
  enum class DeviceTimes { kNone, kExchange, kGradients };
  void mark_on_device(DeviceTimes times) { device_times_ = times; }
  // Returns the marks of the last window, once; null: there are none.
  std::shared_ptr<const ExchangeEvents> take_device_times() { return std::exchange(events_, nullptr); }
  // The works of the buckets, in order; those of models that were not chosen are empty.
  std::span<const comm::Work> works() const { return works_; }

 private:
  struct Bucket {
    std::size_t missing = 0;  // gradients of this batch that are not ready yet
    bool launched = false;
  };
  // Puts the gradient in its place. Returns false if the place is taken: the gradient waits until the end of backward.
  bool put_in_place(std::size_t parameter);
  void begin_times();
  void add_tied();
  void guard();
  void lift_guard();
  void take_back();
  void put_displaced_back();
  void join_buckets(bool record);
  void show_gradients();
  void note_used(std::vector<std::uint8_t> own);
  void clear_unused();
  bool is_chosen(std::size_t bucket) const;
  void launch_ready();
  void launch_next();
  void launch_rest();
  void progress();
  void free_exchanged();
  void free_bucket(std::size_t bucket);
  Nanoseconds now() const { return clock_.monotonic(); }

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  comm::Communicator& device_communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  std::unique_ptr<GradientPlace> place_;
  std::vector<GradientGuard> guards_;  // of each parameter
  std::vector<std::size_t> tied_;      // parameters that have other tensors in the same memory
  SystemClock clock_;
  GradientStrategy* strategy_ = nullptr;
  const comm::FusionPlan* plan_ = nullptr;
  bool exchanging_ = false;
  bool holding_ = false;                     // hold_buckets()
  bool more_follows_ = false;                // `more_follows` of this backward
  std::vector<std::uint8_t> chosen_models_;  // empty: all
  bool window_open_ = false;
  bool first_in_window_ = false;
  std::vector<std::size_t> bucket_of_;  // bucket of each parameter
  std::vector<Bucket> buckets_;
  std::vector<std::size_t>
      order_;  // in which buckets are launched: that of the plan, or first those of models chosen first
  std::size_t next_to_launch_ = 0;  // the first of `order_` that is not launched
  bool frees_spare_ = false;
  std::size_t next_to_free_ = 0;  // the first of `order_` whose spare gradients are not free yet
  std::vector<std::uint8_t> ready_in_batch_;
  // Parameters used in this window, on this rank; after the exchange on any rank. The last elements are `word`.
  std::vector<std::uint8_t> used_;
  std::vector<std::uint8_t> last_own_, last_used_;  // of the last exchange: on this rank; on any rank
  std::int64_t windows_alike_ = 0;
  std::vector<std::pair<std::size_t, at::Tensor>> displaced_;  // gradients whose place was taken when they were ready
  std::vector<comm::Work> works_;
  Nanoseconds backward_began_{0};
  Nanoseconds in_hooks_{0};  // time of hooks in this backward
  Nanoseconds exchanged_{0};
  Nanoseconds exposed_{0};
  std::vector<Nanoseconds> ready_times_;
  DeviceTimes device_times_ = DeviceTimes::kNone;
  std::shared_ptr<ExchangeEvents> events_;  // of this window; null: not timed on the device
};

// The autograd hooks that call GradientExchange::gradient_ready() when backward has finished a gradient. Autograd calls
// them on the thread that runs backward, which for CPU models is the thread that called it.
class GradientHooks {
 public:
  // Both references outlive this object. A tensor has room for one such hook: a user's hook runs first.
  GradientHooks(FlatParameters& parameters, GradientExchange& exchange);
  // Puts the user's hooks back. Takes the gradients off the tensors: they lie in memory of the communicator, and the
  // model may outlive that memory.
  ~GradientHooks();
  GradientHooks& operator=(GradientHooks&&) = delete;

 private:
  FlatParameters& parameters_;
};

}  // namespace dtrain::train
