// libtorch's own profiler (Kineto): what each operator of this rank took, while a window is open. The thread that
// starts a session also marks its steps and stops it; what it gives back may be saved by any thread. There is one
// session at a time in a process, libtorch's profiler being one.
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
  // Chrome trace JSON, not compressed. It says nothing when the disk is full: the reader has to look.
  void save(const std::filesystem::path& path);
  const std::vector<profile::TraceClockPoint>& clock() const;
  // What the profiler was told to see and did not, and why: the work of a GPU. Empty: nothing.
  const std::string& missing() const;

 private:
  std::unique_ptr<Impl> impl_;
};

class KinetoSession {
 public:
  // c10::Error when another profiler is active.
  KinetoSession(const Clock& clock, bool with_gpu);
  ~KinetoSession();  // one that was not stopped is thrown away
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  // Steps are seen in the trace as "ProfilerStep#<batch>", by which its readers know them.
  void begin_step(std::int64_t batch);
  void end_step();
  // Recorded so far, as of the last begin_step().
  std::int64_t operators() const;
  std::unique_ptr<KinetoTrace> stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::train
