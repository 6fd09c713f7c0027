// The change of a launch to another number of slots (`dtrain task resize`), while its task waits or its ranks train.
// The plan for the new number is made and checked as that of a continuation is, before the ranks are asked to stop. One
// thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/rank/environment.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "launch/launch_task.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

class Resizing {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `plan`: the launch's first one.
  Resizing(LaunchPlan plan, const rank::RunFolder& folder, const rank::Variables& variables, LaunchTask& task,
           rank::EventLog& events)
      : plan_(std::move(plan)), folder_(folder), variables_(variables), task_(task), events_(events) {}
  Resizing& operator=(Resizing&&) = delete;

  // The plan that the ranks follow, or will follow once they have their slots.
  const LaunchPlan& plan() const { return plan_; }

  // Makes the plan of an order. True: requeue() takes it once the ranks have stopped. False: the order was refused,
  // which is said, or there is nothing to change.
  bool accepts(const scheduler::Resize& order, const Say& say);
  // Queues the task again, with the plan that was accepted last if there is one. The ranks are gone.
  void requeue(const std::string& reason);
  // Makes the plan for the slots that an elastic task has got, if these are more or fewer than those of the plan.
  void take(int slots);
  // Says that the ranks are placed by another plan than before, and go on from `resume`.
  void tell(const rank::ResumePoint& resume, const Say& say);
  // The new plan has failed before a batch was trained with it: queues the task again with the plan before. False:
  // there is none, and nothing has changed.
  bool go_back(const std::string& cause, const Say& say);
  // A batch was trained with the new plan: there is no way back.
  void batch_is_done() { former_.reset(); }

 private:
  struct Change {
    LaunchPlan plan;
    std::string why;
  };
  LaunchPlan plan_for(int slots) const;
  // The plan becomes this one, and the one before is kept until a batch is trained.
  void replace_plan(Change next);
  void write(const std::string& event, const Json& fields);

  LaunchPlan plan_;
  const rank::RunFolder& folder_;
  const rank::Variables& variables_;
  LaunchTask& task_;
  rank::EventLog& events_;
  std::optional<Change> next_;    // accepted; the ranks may still be stopping
  std::optional<Change> former_;  // the plan before, until a batch is trained with plan_
  bool told_ = true;
};

// "dtrain task resize to 3 slots"
std::string text_of(const scheduler::Resize& order);

}  // namespace dtrain::launcher
