// The recorder's events in memory while a deep window is open. The training thread fills it; afterwards it is written
// to the trace file. It holds a limited number of entries; further ones are only counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/profile/recorder.h"
#include "dtrain/profile/step_observer.h"

namespace dtrain::profile {

class TraceLog final : public StepObserver {
 public:
  struct PhaseSpan {
    Phase phase;
    std::int64_t start_ns, end_ns;
  };
  struct StepSpan {
    std::int64_t batch, start_ns, end_ns;
  };
  struct ScopeSpan {
    std::string path;
    std::int64_t start_ns, end_ns;
  };
  static constexpr std::size_t kMostSpans = 200'000;  // of each kind

  void on_phase(Phase phase, std::int64_t start_ns, std::int64_t end_ns) override {
    if (end_ns > start_ns) keep(phases_, {phase, start_ns, end_ns});
  }
  void on_scope(std::string_view path, std::int64_t start_ns, std::int64_t end_ns) override {
    keep(scopes_, {std::string(path), start_ns, end_ns});
  }
  void on_step(std::int64_t batch, std::int64_t start_ns, std::int64_t end_ns) override {
    keep(steps_, {batch, start_ns, end_ns});
  }
  void on_collective(std::int64_t batch, const CollectiveRecord& collective) override {
    keep(collectives_, {batch, collective});
  }

  const std::vector<PhaseSpan>& phases() const { return phases_; }
  const std::vector<ScopeSpan>& scopes() const { return scopes_; }
  const std::vector<StepSpan>& steps() const { return steps_; }
  const std::vector<std::pair<std::int64_t, CollectiveRecord>>& collectives() const { return collectives_; }
  std::int64_t left_out() const { return left_out_; }

 private:
  template <typename T>
  void keep(std::vector<T>& list, T entry) {
    if (list.size() < kMostSpans) {
      list.push_back(std::move(entry));
    } else {
      ++left_out_;
    }
  }

  std::vector<PhaseSpan> phases_;
  std::vector<ScopeSpan> scopes_;
  std::vector<StepSpan> steps_;
  std::vector<std::pair<std::int64_t, CollectiveRecord>> collectives_;
  std::int64_t left_out_ = 0;
};

}  // namespace dtrain::profile
