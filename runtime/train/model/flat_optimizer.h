// Runs an optimizer over flat parameters. It calls the update once for each run of neighbouring parameters that have
// been updated equally often (all of them, in an ordinary step), have gradients of one type and belong to one parameter
// group.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "dtrain/train/optimizer.h"
#include "model/flat_parameters.h"
#include "model/gradient_norm.h"
#include "model/optimizer_update.h"
#include "model/tensor_memory.h"
#include "model/update_copy.h"

namespace dtrain::train {

// The exponential moving average of the weights (`optimizations.ema`): one more tensor of optimizer state, which each
// step moves right after its update, while the weights are in the cache. So it is sharded, copied and saved as other
// state is.
//
// It is computed as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay), whose update_parameters()
// follows each optimizer step: after the first step the average is the weights; after each later step average += (1 -
// decay) * (weights - average), also for weights that the step has left as they were. With several models each has the
// average of its own steps.
class WeightAverage {
 public:
  static constexpr const char* kName = "ema";  // name of the state tensor

  // `decay`: above 0 and below 1.
  explicit WeightAverage(double decay) : decay_(decay) {}

  // Calls `update_and_move` for one part of the range after the other. On a host, parts are so small that a core's
  // cache holds a part's weights, gradients and state.
  template <std::invocable<const FlatRange&> Function>
  static void for_each_part(const FlatRange& range, bool on_host, const Function& update_and_move) {
    constexpr std::int64_t kElementsOfThread = 32768;
    const std::int64_t part = on_host ? kElementsOfThread * at::get_num_threads() : range.size();
    for (std::int64_t begin = range.begin; begin < range.end; begin += part) {
      update_and_move(FlatRange{range.group, begin, std::min(begin + part, range.end)});
    }
  }

  // Called after an optimizer step. `first`: the first for these weights. The tensors' sizes, types and devices agree.
  void move(const at::Tensor& average, const at::Tensor& weights, bool first) const {
    if (first) {
      average.copy_(weights);
    } else {
      average.lerp_(weights, 1 - decay_);
    }
  }

 private:
  double decay_;
};

class FlatOptimizer {
 public:
  // ConfigError for settings that make no sense, and for a group that includes no parameter. No schedule: a constant
  // learning rate. `ema`: the decay of an average of the weights (WeightAverage); 0: no average.
  FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters,
                std::span<const ParameterGroup> groups = {}, double ema = 0);
  FlatOptimizer(std::unique_ptr<OptimizerUpdate> optimizer, LrSchedule schedule, FlatParameters& parameters,
                double ema = 0);

  // Begin and continue a step: update() updates the parameters of the range whose element of `used` is set, from their
  // group's flat gradients. Ranges of a step do not overlap. `in_step`: for each parameter, 1 if the step is for it;
  // empty: for all. The average of other parameters' weights does not move.
  void begin_step(std::span<const std::uint8_t> used, DeviceInputs inputs = {},
                  std::span<const std::uint8_t> in_step = {});
  void update(const FlatRange& range);
  // A part of a parameter whose update depends on norms of the whole (PartialUpdate). update() has been called for the
  // part, whose values are the old ones until complete_parts().
  struct OpenPart {
    std::size_t parameter;
    FlatRange range;
    at::Tensor direction;
  };
  std::span<const OpenPart> open_parts() const { return open_parts_; }
  // Completes the updates of all open parts: `norms` has for each part the norms over all parts of its parameter.
  void complete_parts(std::span<const WholeNorms> norms);
  // True if the update of this parameter depends on such norms.
  bool depends_on_norms(std::size_t parameter) const;
  void end_step(std::span<const std::uint8_t> used);
  // Moves the schedule on by one optimizer step.
  void advance_schedule();
  // A graph that was captured from begin_step() to end_step() has run: counts its step, as the capture did not.
  void count_updates(std::span<const std::uint8_t> used);
  std::int64_t steps() const { return steps_; }
  // Sets the factor of all learning rates from the next step on, besides the schedule's.
  void set_rate_factor(double factor) { rate_factor_ = factor; }
  // The rate of parameters that no group includes (of the first group's, if groups include all): for the next step; for
  // the last step (before the first step: for the next).
  double learning_rate() const;
  double last_learning_rate() const;
  // Returns the rates of the next step: first the rate above, then those of the groups in their order.
  std::vector<float> learning_rates() const;
  // The parameters without a group, then each group: parameters, elements, rate before the schedule's factor.
  struct GroupRate {
    std::int64_t parameters = 0, elements = 0;
    double rate = 0;
  };
  std::vector<GroupRate> group_sizes() const;

  // The limits by which gradients of groups with limits of their own are clipped.
  const GradientLimits& gradient_limits() const { return limits_; }

  // Where updates are sharded, a rank's state is up to date in its own parts alone.
  void visit(StateVisitor& visitor);
  // To be called after visit(), on a device where updates may have a found_inf: visits the number of updates that have
  // run for each parameter, which the host does not know. visit() leaves it out, because its tensors are copied in the
  // parts that ranks divide them into.
  void visit_counters(StateVisitor& visitor);

  // Rounds learning rates to float32 from now on, on a device. A tensor has them in float32, so updates with a rate
  // from a tensor and updates with a number then give the same bits.
  void round_rates() { rounds_rates_ = true; }
  // Captures the next steps as a graph, on a device: they read learning_rates() from this float32 tensor when the graph
  // runs, and are not counted. Undefined: ends the capture.
  void capture_steps(at::Tensor rates) { rates_on_device_ = std::move(rates); }
  // Changes whenever memory that a captured step uses has moved.
  std::int64_t moves() const { return moves_; }

  // The optimizer's state of a group, in tensors laid out as its flat values. The strategy decides in which memory they
  // are, and which of their elements this rank keeps up to date. Not while keep_parts() holds.
  std::span<at::Tensor> state(std::size_t group);
  const std::vector<std::string>& state_names() const { return state_names_; }
  // The number of state tensors of a group.
  std::size_t state_tensors() const { return state_names_.size(); }

  bool averages_weights() const { return average_.has_value(); }
  // The index of the state tensor that is the average of the weights, if there is one.
  std::size_t average_index() const { return state_tensors() - 1; }
  // Copies this rank's average of the weights, for each group laid out as its values; before the first step it copies
  // the values. Not while keep_parts() holds.
  std::vector<at::Tensor> own_weight_averages();
  // In copies of all groups' averages: sets weights for which there was no step yet to their values.
  void complete_averages(std::span<const at::Tensor> averages) const;

  // `copy` copies at the next steps' updates; the last of these steps drops it. On a host.
  void copy_at_next_steps(std::shared_ptr<UpdateCopy> copy) { copy_ = std::move(copy); }

  // Reports that values which `copy` was to copy have been changed.
  void spoil_copy() {
    if (copy_) copy_->spoil();
  }

  // Keeps the state of these ranges alone, which takes memory for them alone; only they are updated. keep_all() ends
  // that: the state of other elements is then zero.
  void keep_parts(std::vector<FlatRange> parts);
  // Returns `range` of the group's `index`-th state tensor; after keep_parts() the range lies within one of the parts.
  at::Tensor state_slice(const FlatRange& range, std::size_t index);
  void keep_all();

 private:
  struct Segment {
    FlatRange range;
    std::int64_t updates;  // made before this step
    at::Tensor number;     // as UpdateStep::number
    bool narrow;           // the gradients are FlatParameters::Group::narrow_gradients
    std::size_t rule;
    bool used = true;           // false: only the average of these weights moves
    bool averaged = true;       // there is an average of these weights
    std::ptrdiff_t whole = -1;  // the parameter that is updated as a whole; -1: any stretch

    // True if one call may update both.
    bool is_updated_as(const Segment& other) const {
      return updates == other.updates && number.is_same(other.number) && narrow == other.narrow && rule == other.rule &&
             used == other.used && averaged == other.averaged;
    }
  };
  // The update and the schedule of a group's parameters.
  struct Rule {
    std::unique_ptr<OptimizerUpdate> update;
    LrSchedule schedule;
    std::vector<std::size_t> states{};  // indices of the rule's own tensors among a group's state
  };
  static std::vector<Rule> one_rule(std::unique_ptr<OptimizerUpdate> update, LrSchedule schedule);
  static std::vector<Rule> rules_of(const Optimizer& optimizer, LrSchedule schedule,
                                    std::span<const ParameterGroup> groups);
  FlatOptimizer(std::vector<Rule> rules, FlatParameters& parameters, double ema);
  std::size_t include(const ParameterGroup& group, std::size_t rule);
  void set_limits(std::span<const ParameterGroup> groups);
  void find_whole();
  bool has_several_models() const;
  std::size_t shown_rule() const;
  std::string names_of_parameters() const;
  // These functions are for a device.
  void make_counters(std::span<const float> counts);
  void separate_counters(std::span<const std::uint8_t> used);
  std::vector<at::Tensor> counters_of(std::span<const std::uint8_t> used) const;
  double rate_at(std::int64_t step, std::size_t rule) const;
  std::vector<Segment> segments(std::span<const std::uint8_t> used, std::span<const std::uint8_t> in_step) const;
  void update(const FlatRange& range, const Segment& segment);
  // Updates whole parameters that follow each other, by one call if their rule does that.
  void update_several(std::span<const Segment* const> segments);
  void move_average(const FlatRange& range, const Segment& segment);
  void apply_rule(const FlatRange& range, const Segment& segment);
  void begin_part(const FlatRange& range, const Segment& segment);
  UpdateStep step_of(const FlatRange& range, const Segment& segment) const;
  at::Tensor values_of(const FlatRange& range) const;
  at::Tensor gradients_of(const FlatRange& range, const Segment& segment) const;
  std::vector<at::Tensor> states_of(const FlatRange& range, const Segment& segment);
  // Returns the place of a range among the kept parts of its group.
  std::int64_t kept_offset(const FlatRange& range) const;
  std::int64_t kept_elements(std::size_t group) const;

  FlatParameters& parameters_;
  std::optional<WeightAverage> average_;  // its tensor is the last state tensor
  std::vector<Rule> rules_;               // the first rule is for parameters without a group
  std::vector<std::size_t> rule_of_;      // rule of each parameter
  std::vector<std::uint8_t> whole_;       // for each parameter: its rule updates it as a whole
  GradientLimits limits_;
  // The names of the state tensors of all rules, and of the average. Rules share a tensor of the same name.
  std::vector<std::string> state_names_;
  // For each group, in the order of the names. Undefined, on a device, where memory is taken at once: zeros that no
  // step has used yet.
  std::vector<std::vector<at::Tensor>> states_;
  std::optional<std::vector<FlatRange>> kept_;  // set by keep_parts(); the state tensors hold them one after the other
  std::vector<Segment> segments_;               // of the step that has begun
  std::vector<OpenPart> open_parts_;            // of that step
  DeviceInputs inputs_;                         // of that step
  std::vector<std::int64_t> updates_;           // updates of each parameter, with those that found_inf stopped
  // On a device: float32 scalars that count the updates that were not stopped, and each parameter's index among them.
  // Two parameters share a scalar while they have been used in the same steps.
  std::vector<at::Tensor> counters_;
  std::vector<std::size_t> counter_of_;
  std::vector<std::uint8_t> averaged_;  // for each parameter: 1 if there is an average
  bool rounds_rates_ = false;
  at::Tensor rates_on_device_;  // set while steps are captured
  std::int64_t moves_ = 0;
  std::shared_ptr<UpdateCopy> copy_;  // null: nothing is copied
  std::int64_t steps_ = 0;
  std::optional<double> last_rate_;  // rate of the last step; Python's schedules give only the next step's rate
  double rate_factor_ = 1;
};

}  // namespace dtrain::train
