// libtorch's profiler (Kineto): records the times of this rank's operators while a window is open. The thread that
// starts a session also marks its steps and stops it; any thread may save the trace. A process has one session at a
// time, because libtorch has one profiler.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/profile/trace_file.h"

namespace dtrain::train {

class KinetoTrace {
 public:
  struct Impl;
  explicit KinetoTrace(std::unique_ptr<Impl> impl);
  ~KinetoTrace();
  // Chrome trace JSON, not compressed. A full disk is not reported: the reader must check the file.
  void save(const std::filesystem::path& path);
  const std::vector<profile::TraceClockPoint>& clock() const;
  // Returns the events that the profiler was to record and did not (the work of a GPU), and why. Empty: none.
  const std::string& missing() const;

 private:
  std::unique_ptr<Impl> impl_;
};

class KinetoSession {
 public:
  // c10::Error when another profiler is active.
  KinetoSession(const Clock& clock, bool with_gpu);
  ~KinetoSession();  // discards a session that was not stopped
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  // Marks a step in the trace as "ProfilerStep#<batch>", the name that readers of traces expect.
  void begin_step(std::int64_t batch);
  void end_step();
  // Returns the number of operators recorded up to the last begin_step().
  std::int64_t operators() const;
  std::unique_ptr<KinetoTrace> stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::train
