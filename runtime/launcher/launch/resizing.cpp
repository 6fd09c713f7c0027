#include "launch/resizing.h"

#include <algorithm>

#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::launcher {
namespace {

// Where a checkpoint stands in its epoch. `sample`: how many samples of the epoch are trained, if its loader counts
// them.
struct EpochPosition {
  std::int64_t epoch = 0;  // from 0
  std::optional<std::int64_t> sample;
};

EpochPosition position_of(const rank::ResumePoint& resume) {
  EpochPosition position{.epoch = resume.epoch, .sample = {}};
  if (!resume.exists()) return {.epoch = 0, .sample = 0};
  try {
    const Json state = read_json(resume.path / checkpoints::kStateFile);
    const Json loader = Json::parse(text_at(state, "data/position"));
    if (value_at<std::int64_t>(loader, "epoch") == resume.epoch)
      position.sample = value_at<std::int64_t>(loader, "position");
  } catch (const std::exception&) {  // a loader of the program's own says something else, or nothing
  }
  return position;
}

// "batch 41 (sample 961 of epoch 2)", the first one after the checkpoint
std::string next_text(const rank::ResumePoint& resume, const EpochPosition& position) {
  const std::string epoch = "epoch " + std::to_string(position.epoch + 1);
  return "batch " + std::to_string(resume.step + 1) + " (" +
         (position.sample ? "sample " + std::to_string(*position.sample + 1) + " of " + epoch : epoch) + ")";
}

}  // namespace

std::string text_of(const scheduler::Resize& order) {
  return order.why + " to " + count_of(order.slots, "slot");
}

LaunchPlan Resizing::plan_for(int slots) const {
  LaunchRequest asked = plan_.asked;
  std::vector<std::string> number{"resources.slots_per_trial=" + std::to_string(slots)};
  if (is_of_script(plan_.experiment)) number.push_back("hyperparameters.global_batch_size=" + std::to_string(slots));
  asked.overrides = rank::merge_overrides(plan_.asked.overrides, number);
  // A run that has trained is continued, with the checks and warnings of that.
  asked.continue_run.clear();
  if (rank::read_state(folder_).trained >= 0) asked.continue_run = folder_.path.string();
  const auto request = complete_request(asked, variables_);
  if (!request) throw Error("a signal has stopped the planning");
  LaunchPlan plan = make_launch_plan(*request, variables_);
  check_can_start(place_launch(plan, plan.first_slots, variables_));
  return plan;
}

void Resizing::write(const std::string& event, const Json& fields) {
  try {
    events_.write(event, fields);
  } catch (const SystemError& error) {
    std::fprintf(stderr, "dtrain: warning: the event %s is missing: %s\n", event.c_str(), error.what());
  }
}

bool Resizing::accepts(const scheduler::Resize& order, const Say& say) {
  const int slots = plan_.request.slots;
  if (order.slots == slots) {
    task_.refuse_slots(slots, "");
    return false;
  }
  try {
    next_ = Change{plan_for(order.slots), order.why};
    return true;
  } catch (const Error& error) {
    const std::string cause = error.what() + (error.remedy().empty() ? "" : "; " + error.remedy());
    task_.refuse_slots(order.slots, cause);
    write("resize_refused", {{"from", slots}, {"to", order.slots}, {"why", order.why}, {"cause", cause}});
    say("dtrain: " + text_of(order) + " is refused: " + cause + "; the run keeps " + count_of(slots, "slot"));
    return false;
  }
}

void Resizing::requeue(const std::string& reason) {
  if (!next_) return task_.requeue(reason);
  replace_plan(*std::exchange(next_, std::nullopt));
  const scheduler::TaskRequest resized = task_request(plan_, folder_.path);
  task_.requeue(reason, &resized);
}

void Resizing::take(int slots) {
  if (slots == plan_.request.slots) return;
  if (rank::read_state(folder_).trained < 0) {
    plan_ = plan_for(slots);
  } else {
    replace_plan({plan_for(slots), former_ ? former_->why : "the queue"});
  }
}

void Resizing::replace_plan(Change next) {
  Change before{std::move(plan_), std::move(next.why)};
  plan_ = std::move(next.plan);
  // Of several changes without a batch between them, the first has the plan with which batches were trained.
  if (former_) {
    former_->why = std::move(before.why);
  } else {
    former_ = std::move(before);
  }
  told_ = false;
}

void Resizing::tell(const rank::ResumePoint& resume, const Say& say) {
  if (std::exchange(told_, true) || !former_) return;
  const LaunchPlan& before = former_->plan;
  const int from = before.request.slots, to = plan_.request.slots;
  const EpochPosition position = position_of(resume);
  write("resized", {{"from", from},
                    {"to", to},
                    {"why", former_->why},
                    {"step", resume.step},
                    {"epoch", position.epoch},
                    {"sample", or_null(position.sample)},
                    {"effective_batch_size", plan_.split.effective},
                    {"effective_batch_size_before", before.split.effective}});
  std::string line = "dtrain: " + former_->why + ": the run goes on with " + count_of(to, "slot") + " instead of " +
                     std::to_string(from) + ", from " + next_text(resume, position) + " on";
  if (before.split.effective != plan_.split.effective && !is_of_script(plan_.experiment)) {
    line += ", where a batch has " + count_of(plan_.split.effective, "sample") + " instead of " +
            std::to_string(before.split.effective);
  }
  say(line);
  for (const std::string& warning : plan_.warnings) {
    const bool is_old = std::find(before.warnings.begin(), before.warnings.end(), warning) != before.warnings.end();
    if (!is_old) say("dtrain: warning: " + warning);
  }
}

bool Resizing::go_back(const std::string& cause, const Say& say) {
  if (!former_) return false;
  const int slots = plan_.request.slots;
  const Change former = *std::exchange(former_, std::nullopt);
  next_.reset();
  plan_ = former.plan;
  write("resize_refused", {{"from", plan_.request.slots}, {"to", slots}, {"why", former.why}, {"cause", cause}});
  say("dtrain: " + former.why + " to " + count_of(slots, "slot") + " has failed: " + cause + "; the run goes on with " +
      count_of(plan_.request.slots, "slot"));
  const scheduler::TaskRequest request = task_request(plan_, folder_.path);
  task_.refuse_slots(slots, cause);  // an elastic task is not given that number again
  task_.requeue(former.why + " to " + count_of(slots, "slot") + " has failed", &request);
  return true;
}

}  // namespace dtrain::launcher
