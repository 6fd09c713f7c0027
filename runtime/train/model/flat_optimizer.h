// Runs an optimizer over flat parameters: one call of its update for each run of neighbouring parameters that have been
// updated equally often (all of them, in an ordinary step), have gradients of one type and belong to one parameter
// group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/train/optimizer.h"
#include "model/flat_memory.h"
#include "model/flat_parameters.h"
#include "model/gradient_limits.h"
#include "model/optimizer_update.h"
#include "model/update_copy.h"
#include "model/weight_average.h"

namespace dtrain::train {

class FlatOptimizer {
 public:
  // ConfigError for settings that make no sense, and for a group that includes no parameter. No schedule: a constant
  // learning rate. `ema`: the decay of an average of the weights (weight_average.h); 0: none.
  FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters,
                std::span<const ParameterGroup> groups = {}, double ema = 0);
  FlatOptimizer(std::unique_ptr<OptimizerUpdate> optimizer, LrSchedule schedule, FlatParameters& parameters,
                double ema = 0);

  // One step: of the parameters whose element of `used` is set, from their group's flat gradients, where update() is
  // called for. Ranges of one step do not overlap.
  // `in_step`: for each parameter, whether the step is for it at all; empty: for all. The average of the weights of
  // others does not move.
  void begin_step(std::span<const std::uint8_t> used, DeviceInputs inputs = {},
                  std::span<const std::uint8_t> in_step = {});
  void update(const FlatRange& range);
  // A part of a parameter whose update depends on norms of the whole (PartialUpdate): update() has been called for the
  // part. Its values are the old ones until complete_parts().
  struct OpenPart {
    std::size_t parameter;
    FlatRange range;
    at::Tensor direction;
  };
  std::span<const OpenPart> open_parts() const { return open_parts_; }
  // Completes the updates of all open parts: `norms` has those of each one's parameter, over all of its parts.
  void complete_parts(std::span<const WholeNorms> norms);
  // Whether this parameter is updated by such norms.
  bool depends_on_norms(std::size_t parameter) const;
  void end_step(std::span<const std::uint8_t> used);
  // Moves the schedule on by one optimizer step.
  void advance_schedule();
  // A graph that was captured from begin_step() to end_step() has run: counts the step, which the capture did not.
  void count_updates(std::span<const std::uint8_t> used);
  std::int64_t steps() const { return steps_; }
  // Of all learning rates from the next step on, besides the schedule's.
  void set_rate_factor(double factor) { rate_factor_ = factor; }
  // Of the parameters that no group includes (of the first group's, if groups include all): of the next step; of the
  // last step, before the first one of that.
  double learning_rate() const;
  double last_learning_rate() const;
  // Of the next step: first the one above, then those of the groups in their order.
  std::vector<float> learning_rates() const;
  // What belongs to no group, then each group: its parameters, their elements, its rate before the schedule's factor.
  struct GroupRate {
    std::int64_t parameters = 0, elements = 0;
    double rate = 0;
  };
  std::vector<GroupRate> group_sizes() const;

  // How the gradients of groups with limits of their own are clipped.
  const GradientLimits& gradient_limits() const { return limits_; }

  // Where updates are sharded, a rank's state is up to date in its own parts alone.
  void visit(StateVisitor& visitor);
  // After visit(), on a device where updates may have a found_inf: how many of each parameter's updates have run, which
  // the host does not know. It is no part of visit(), whose tensors are copied in the parts that ranks divide them
  // into.
  void visit_counters(StateVisitor& visitor);

  // On a device. Learning rates are rounded to float32 from now on, as a tensor has them: so updates that take theirs
  // from a tensor give the same bits as those that do not.
  void round_rates() { rounds_rates_ = true; }
  // The next steps are captured as a graph, on a device: they read learning_rates() from this tensor, float32, when the
  // graph runs, and are not counted. Undefined: steps are as ever.
  void capture_steps(at::Tensor rates) { rates_on_device_ = std::move(rates); }
  // Differs once something that a captured step uses lies elsewhere.
  std::int64_t moves() const { return moves_; }

  // What the optimizer remembers of a group, in tensors laid out as its flat values. The strategy decides what memory
  // they lie in, and which of their elements this rank keeps up to date. Not while keep_parts() holds.
  std::span<at::Tensor> state(std::size_t group);
  const std::vector<std::string>& state_names() const { return state_names_; }
  // How many such tensors a group has.
  std::size_t state_tensors() const { return state_names_.size(); }

  bool averages_weights() const { return average_.has_value(); }
  // Which tensor of a group's state is the average of the weights, where there is one.
  std::size_t average_index() const { return state_tensors() - 1; }
  // A copy of this rank's average of the weights, for each group laid out as its values; before the first step the
  // values. Not while keep_parts() holds.
  std::vector<at::Tensor> own_weight_averages();
  // Of copies of the averages, of each group: gives weights that no step was for yet their values.
  void complete_averages(std::span<const at::Tensor> averages) const;

  // The next steps are the updates that `copy` copies at; the last of them lets go of it. On a host.
  void copy_at_next_steps(std::shared_ptr<UpdateCopy> copy) { copy_ = std::move(copy); }

  // What the copy was to hold has been changed.
  void spoil_copy() {
    if (copy_) copy_->spoil();
  }

  // From now on the state of these ranges is kept alone, which takes memory for them alone; only they are updated.
  // keep_all() ends it: the state of other elements is zero then.
  void keep_parts(std::vector<FlatRange> parts);
  // What lies at `range` of a state tensor, the `index`-th of the group; after keep_parts() within one of the parts.
  at::Tensor state_slice(const FlatRange& range, std::size_t index);
  void keep_all();

 private:
  struct Segment {
    FlatRange range;
    std::int64_t updates;  // made so far
    at::Tensor number;     // as UpdateStep has it
    bool narrow;           // the gradients are FlatParameters::Group::narrow_gradients
    std::size_t rule;
    bool used = true;           // false: nothing but the average of these weights moves
    bool averaged = true;       // there is an average of these weights
    std::ptrdiff_t whole = -1;  // the parameter that is updated whole; -1: any stretch
  };
  // How the parameters of a group are updated.
  struct Rule {
    std::unique_ptr<OptimizerUpdate> update;
    LrSchedule schedule;
    std::vector<std::size_t> states{};  // which tensors of a group's state are its own
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
  // On a device.
  void make_counters(std::span<const float> counts);
  void separate_counters(std::span<const std::uint8_t> used);
  std::vector<at::Tensor> counters_of(std::span<const std::uint8_t> used) const;
  double rate_at(std::int64_t step, std::size_t rule) const;
  std::vector<Segment> segments(std::span<const std::uint8_t> used, std::span<const std::uint8_t> in_step) const;
  void update(const FlatRange& range, const Segment& segment);
  void apply_rule(const FlatRange& range, const Segment& segment);
  void begin_part(const FlatRange& range, const Segment& segment);
  UpdateStep step_of(const FlatRange& range, const Segment& segment) const;
  at::Tensor gradients_of(const FlatRange& range, const Segment& segment) const;
  std::vector<at::Tensor> states_of(const FlatRange& range, const Segment& segment);
  // Where a range begins among the parts that are kept of its group.
  std::int64_t kept_offset(const FlatRange& range) const;
  std::int64_t kept_elements(std::size_t group) const;

  FlatParameters& parameters_;
  std::optional<WeightAverage> average_;  // its tensor is the last one of the state
  std::vector<Rule> rules_;               // the first of parameters without a group
  std::vector<std::size_t> rule_of_;      // of each parameter
  std::vector<std::uint8_t> whole_;       // of each parameter: its rule updates it whole
  GradientLimits limits_;
  // What the rules remember, and the average of the weights: the same tensors for all rules that have one by that name.
  std::vector<std::string> state_names_;
  // Of each group, in the order of their names. Undefined: zeros that nothing has used yet, on a device, where memory
  // is taken at once.
  std::vector<std::vector<at::Tensor>> states_;
  std::optional<std::vector<FlatRange>> kept_;  // by keep_parts(): in the state tensors one after the other
  std::vector<Segment> segments_;               // of the step that has begun
  std::vector<OpenPart> open_parts_;            // of that step
  DeviceInputs inputs_;                         // of that step
  std::vector<std::int64_t> updates_;           // of each parameter, with those that found_inf stopped
  // On a device: float32 scalars that count the updates that were not stopped, and which of them is a parameter's. Two
  // parameters have the same one while they have been used in the same steps.
  std::vector<at::Tensor> counters_;
  std::vector<std::size_t> counter_of_;
  std::vector<std::uint8_t> averaged_;  // for each parameter: whether there is an average
  bool rounds_rates_ = false;
  at::Tensor rates_on_device_;  // while steps are captured
  std::int64_t moves_ = 0;
  std::shared_ptr<UpdateCopy> copy_;  // none: nothing is copied
  std::int64_t steps_ = 0;
  std::optional<double> last_rate_;  // of the last step; of Python's schedules only the next one's can be asked for
  double rate_factor_ = 1;
};

}  // namespace dtrain::train
